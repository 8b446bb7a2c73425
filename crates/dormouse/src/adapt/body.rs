//! A response and its body that are charged to the group of the request, whatever they are to the
//! server.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::responded::responded;
use crate::core::task::Task;

pin_project! {
    /// The future of a response: its polls, destructor and body are one task of a group.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct GroupResponse<F> {
        // `None` once dropped, which happens inside the group.
        #[pin]
        future: Option<F>,
        // `None` once the body has it.
        task: Option<Task>,
    }

    impl<F> PinnedDrop for GroupResponse<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(task) = this.task {
                task.drop_future(this.future);
            }
        }
    }
}

/// A response of whichever server. Only this library implements it.
#[doc(hidden)]
pub trait ServerResponse {
    /// The response with a body that is charged.
    type Grouped;

    /// Lets the task pay for the body.
    fn with_charged_body(self, task: Option<Task>) -> Self::Grouped;
}

impl<F> GroupResponse<F> {
    pub(super) fn new(task: Task, future: F) -> Self {
        Self { future: Some(future), task: Some(task) }
    }
}

impl<F, A, E> Future for GroupResponse<F>
where
    F: Future<Output = Result<A, E>>,
    A: ServerResponse,
{
    type Output = Result<A::Grouped, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // None: polled after its end, as in `Instrumented`.
        let Some(task) = this.task else { return Poll::Pending };
        let answer = ready!(task.poll(this.future, cx));
        responded(task.group());
        let task = this.task.take();
        Poll::Ready(answer.map(|answer| answer.with_charged_body(task)))
    }
}

pin_project! {
    /// A response's body whose frames are charged to the group of the request. The request ends
    /// with it: after the last frame, after an error, or when it is dropped.
    #[derive(Debug)]
    pub struct GroupBody<B> {
        // `None` after its end. It is dropped inside the group.
        #[pin]
        body: Option<B>,
        task: Option<Task>,
    }

    impl<B> PinnedDrop for GroupBody<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(task) = this.task {
                task.drop_future(this.body);
            }
        }
    }
}

impl<B> GroupBody<B> {
    pub(super) fn new(body: B, task: Option<Task>) -> Self {
        Self { body: Some(body), task }
    }

    /// The body, until its end.
    pub(super) fn inner(&self) -> Option<&B> {
        self.body.as_ref()
    }

    /// The whole body at once, or else as it was. Then the request ends.
    #[cfg(feature = "actix")]
    pub(super) fn try_take<T>(mut self, take: impl FnOnce(B) -> Result<T, B>) -> Option<Result<T, Self>> {
        let taken = take(self.body.take()?);
        Some(taken.map_err(|body| {
            self.body = Some(body);
            self
        }))
    }

    /// Charges a poll for a frame. The request ends with a frame after which `is_end` holds.
    #[inline]
    pub(super) fn poll_charged<T, E>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut B>, &mut Context<'_>) -> Poll<Option<Result<T, E>>>,
        is_end: impl FnOnce(&B) -> bool,
    ) -> Poll<Option<Result<T, E>>> {
        let mut this = self.project();
        let Some(task) = this.task else { return Poll::Ready(None) };
        let frame = task.poll_with(cx, |cx| {
            let Some(mut body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
            let frame = ready!(poll(body.as_mut(), cx));
            if !matches!(frame, Some(Ok(_))) || is_end(&body) {
                this.body.set(None);
            }
            Poll::Ready(frame)
        });
        if frame.is_ready() {
            responded(task.group());
        }
        if this.body.is_none() {
            *this.task = None;
        }
        frame
    }
}
