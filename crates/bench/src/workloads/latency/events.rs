//! Server-sent events in the route of the measured requests.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;

/// The path of streams, whose group is that of the measured requests.
pub(super) const EVENTS: &str = "/events";

/// How often each stream sends.
const EVERY: Duration = Duration::from_secs(1);
const EVENT: &[u8] = b"data: tea\n\n";

/// Server-sent events without an end.
pub(super) async fn events() -> Response {
    let body = Body::new(Events(tokio::time::interval(EVERY)));
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

struct Events(tokio::time::Interval);

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.0.poll_tick(cx));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(EVENT)))))
    }
}
