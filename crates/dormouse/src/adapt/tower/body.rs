//! A response whose body is charged to the group of its request.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::super::body::GroupBody;
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

impl<F> GroupResponse<F> {
    pub(super) fn new(task: Task, future: F) -> Self {
        Self { future: Some(future), task: Some(task) }
    }
}

impl<F, B, E> Future for GroupResponse<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<GroupBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // None: polled after its end, as in `Instrumented`.
        let Some(task) = this.task else { return Poll::Pending };
        let answer = ready!(task.poll(this.future, cx));
        let task = this.task.take();
        Poll::Ready(answer.map(|response| response.map(|body| GroupBody::new(body, task))))
    }
}

impl<B: Body> Body for GroupBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.poll_charged(cx, B::poll_frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
