//! Work that would hold up a worker: it waits for a lock, or computes for a millisecond.

use tokio::task::{JoinError, spawn_blocking};

use crate::instrument::{Group, counted};

/// Runs `work` on the blocking pool, charged to `group` and counted in the request's CPU budget.
///
/// A pool thread knows nothing of the request it works for, so both go along and are entered there. The
/// alternative, to run it on the worker, would be charged with less ado and would stall every other
/// request of that worker meanwhile.
pub(crate) async fn offload<T: Send + 'static>(
    group: Group,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let work = counted(work);
    spawn_blocking(move || {
        let _charged = group.enter();
        work()
    })
    .await
}
