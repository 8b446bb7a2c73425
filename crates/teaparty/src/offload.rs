//! Work that would hold up a worker: it waits for a lock, or computes for a millisecond.

use tokio::task::{JoinError, spawn_blocking};

use crate::instrument::Group;

/// Runs `work` on the blocking pool, charged to `group`.
///
/// A pool thread knows nothing of the request it works for, so the group goes along and is entered there. The
/// alternative, to run it on the worker, would be charged with less ado and would stall every other
/// request of that worker meanwhile.
pub(crate) async fn offload<T: Send + 'static>(
    group: Group,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    spawn_blocking(move || {
        let _charged = group.enter();
        work()
    })
    .await
}
