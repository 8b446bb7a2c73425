//! Futures whose output tells whether they failed.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::core::ends::Ending;
use crate::core::group::Group;
use crate::core::task::{Instrumented, Task};

pin_project! {
    /// A future that is charged to a group, and whose outcome is `error` if its output is an error;
    /// see [`Group::instrument_result`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InstrumentedResult<F> {
        #[pin]
        inner: Instrumented<F>,
    }
}

impl Group {
    /// Does what [`Group::instrument`] does. If the future's output is an `Err`, the outcome of the
    /// task is `error`.
    ///
    /// ```
    /// use dormouse::Group;
    ///
    /// # async fn row(line: &str) -> Result<u32, std::num::ParseIntError> { line.parse() }
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// let import = Group::new("import row");
    /// # let failed =
    /// runtime.block_on(import.instrument_result(row("tea")));
    /// # assert!(failed.is_err());
    /// ```
    pub fn instrument_result<F, T, E>(self, future: F) -> InstrumentedResult<F>
    where
        F: Future<Output = Result<T, E>>,
    {
        self.task().instrument_result(future)
    }
}

impl Task {
    /// A future that is this task, whose outcome is `error` if its output is an `Err`; see
    /// [`Group::instrument_result`].
    pub fn instrument_result<F, T, E>(self, future: F) -> InstrumentedResult<F>
    where
        F: Future<Output = Result<T, E>>,
    {
        InstrumentedResult { inner: self.instrument(future) }
    }
}

impl<F> InstrumentedResult<F> {
    /// The group that is charged.
    pub fn group(&self) -> Group {
        self.inner.group()
    }
}

impl<F, T, E> Future for InstrumentedResult<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ending = |output: &Self::Output| if output.is_err() { Ending::Error } else { Ending::Completed };
        self.project().inner.poll_until(cx, ending)
    }
}
