//! A body that is charged to the group of its request, whatever a body is to the server.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::core::task::Task;

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

    /// Charges a poll for a frame.
    pub(super) fn poll_charged<T, E>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut B>, &mut Context<'_>) -> Poll<Option<Result<T, E>>>,
    ) -> Poll<Option<Result<T, E>>> {
        let mut this = self.project();
        let Some(task) = this.task else { return Poll::Ready(None) };
        let frame = task.poll_with(cx, |cx| {
            let Some(body) = this.body.as_mut().as_pin_mut() else { return Poll::Ready(None) };
            let frame = ready!(poll(body, cx));
            if !matches!(frame, Some(Ok(_))) {
                this.body.set(None);
            }
            Poll::Ready(frame)
        });
        if this.body.is_none() {
            *this.task = None;
        }
        frame
    }
}
