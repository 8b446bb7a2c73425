//! Work that no group pays for.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_events::without_tasks;
use dormouse_waits::set_aside;
use pin_project_lite::pin_project;

use crate::core::task::poll_to_its_end;

pin_project! {
    /// A future that runs in no group; see [`outside`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Outside<F> {
        // `None` once dropped, which happens outside of groups, too.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Outside<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut future = this.project().future;
            if future.is_some() {
                in_no_group(|| future.set(None));
            }
        }
    }
}

/// Runs the future in no group, wherever it is polled and dropped; so it also hands none on to what
/// it spawns. For work that is not to be charged to the request which happens to begin it, and
/// needs no figures of its own. (With figures: `dormouse::tokio::spawn_in`.)
///
/// ```
/// use dormouse::{Group, inherit, outside};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let order = Group::new("POST /orders").instrument(async {
///     outside(async { inherit(async { Group::current() }).await }).await
/// });
/// assert_eq!(runtime.block_on(order), None);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Cost
///
/// Within a group each poll leaves the group and enters it again, and copies one kilobyte. Neither
/// its CPU time nor its time in a poll is the group's, and it is in no long poll
/// ([`long_polls`](crate::long_polls)).
pub fn outside<F: Future>(future: F) -> Outside<F> {
    Outside { future: Some(future) }
}

impl<F: Future> Future for Outside<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        in_no_group(|| poll_to_its_end(self.project().future, cx))
    }
}

/// Runs `f` in no group: neither its CPU time nor its time in polls is anybody's.
pub(super) fn in_no_group<T>(f: impl FnOnce() -> T) -> T {
    set_aside(|| without_tasks(f))
}
