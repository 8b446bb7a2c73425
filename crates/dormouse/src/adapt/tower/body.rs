//! A response whose body is charged to the group of its request.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;
use http_body::{Body, Frame, SizeHint};

use super::super::body::{GroupBody, ServerResponse};
use crate::core::task::Task;

impl<B> ServerResponse for Response<B> {
    type Grouped = Response<GroupBody<B>>;

    fn with_charged_body(self, task: Option<Task>) -> Self::Grouped {
        self.map(|body| GroupBody::new(body, task))
    }
}

impl<B: Body> Body for GroupBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.poll_charged(cx, B::poll_frame, B::is_end_stream)
    }

    fn is_end_stream(&self) -> bool {
        self.inner().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
