//! Parts of a task in a collection that wakes its parts itself.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_waits::PartWaits;
use pin_project_lite::pin_project;

pin_project! {
    /// A part of a collection whose waits `dormouse tasks` shows; see [`part`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you poll them"]
    pub struct Part<F> {
        #[pin]
        future: F,
        waits: PartWaits,
    }
}

/// Lets `dormouse tasks` show where the future waits in a collection that wakes its parts itself:
/// `FuturesUnordered`, `FuturesOrdered`, `buffer_unordered`, `join_all` of more than 30. Its places
/// are among those of the task that polls it. It is no task of its own: it has no account and no
/// number.
///
/// ```
/// use futures_util::future::join_all;
///
/// let quotes = (0..40).map(|shop| dormouse::part(async move { shop * 2 }));
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert_eq!(runtime.block_on(
/// join_all(quotes)
/// # )[39], 78);
/// ```
///
/// # Cost
///
/// A sleeping instruction for each poll while times are not taken; while places are requested, 384
/// bytes for as long as it lives.
pub fn part<F: Future>(future: F) -> Part<F> {
    Part { future, waits: PartWaits::default() }
}

impl<F: Future> Future for Part<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.waits.poll(cx, |cx| this.future.poll(cx))
    }
}
