//! Bodies of given frames, of which nobody knows how long they are.
#![cfg(feature = "tower")]

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use axum::http::HeaderMap;
use http_body::{Body, Frame};

pub(crate) type FrameResult = Result<Frame<Bytes>, &'static str>;

pub(crate) struct Framed(VecDeque<FrameResult>);

pub(crate) fn framed(frames: impl IntoIterator<Item = FrameResult>) -> Framed {
    Framed(frames.into_iter().collect())
}

/// gRPC's status.
#[expect(clippy::unnecessary_wraps, reason = "what a body has")]
pub(crate) fn trailers(status: &str) -> FrameResult {
    Ok(Frame::trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), status.parse().unwrap())])))
}

#[expect(clippy::unnecessary_wraps, reason = "what a body has")]
pub(crate) fn data(bytes: &'static [u8]) -> FrameResult {
    Ok(Frame::data(Bytes::from_static(bytes)))
}

impl Body for Framed {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<FrameResult>> {
        Poll::Ready(self.0.pop_front())
    }
}
