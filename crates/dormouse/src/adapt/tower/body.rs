//! A response whose body is charged to the group of its request, and how that request ends.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Buf;
use dormouse_waits::Head;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};

use super::super::body::{
    GroupBody, NO_BODY, Sending, Sent, ServerResponse, UNKNOWN_LENGTH, ending_of, has_no_body, head_of,
};
use crate::core::ends::Ending;
use crate::core::group::Group;
use crate::core::task::Task;

/// The header, or the trailer, with gRPC's status.
pub(super) const GRPC_STATUS: &str = "grpc-status";

impl<B: Body, E> ServerResponse<E> for Response<B> {
    type Grouped = Response<GroupBody<B>>;

    #[inline]
    fn charged(
        answer: Result<Self, E>,
        mut task: Option<Task>,
        sending: Sending,
    ) -> Result<Self::Grouped, E> {
        if let (Err(_), Some(task)) = (&answer, &mut task) {
            task.ends(Ending::Error);
        }
        answer.map(|response| grouped(response, task, sending))
    }
}

/// Lets the task pay for the body, and end as the response says.
#[inline]
pub(in crate::adapt) fn grouped<B: Body>(
    response: Response<B>,
    mut task: Option<Task>,
    sending: Sending,
) -> Response<GroupBody<B>> {
    let is_tunnel = sending == Sending::Tunnel && response.status().is_success();
    let has_none = is_tunnel || sending == Sending::Nothing;
    let left = if has_none { NO_BODY } else { length(&response) };
    if let Some(task) = &mut task {
        task.ends(ending(&response, left));
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            upgrade(task.group(), response.headers());
        }
    }
    let content_type = || response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let head = if is_tunnel { Head::Stream } else { head_of(response.status().as_u16(), left, content_type) };
    response.map(|body| GroupBody::new(body, task, left, sending, head))
}

/// The response of `group` makes another protocol of the connection.
#[cold]
fn upgrade(group: Group, headers: &HeaderMap) {
    #[cfg(feature = "tokio")]
    if headers.get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        super::super::web_socket::upgrades(group);
    }
    #[cfg(not(feature = "tokio"))]
    let _ = (group, headers, UPGRADE);
}

/// How the server sends the body of the response to this request.
#[inline]
pub(in crate::adapt) fn sending<R>(request: &Request<R>) -> Sending {
    if request.method() == Method::CONNECT {
        return Sending::Tunnel;
    }
    Sending::new(request.method() == Method::HEAD, request.version() >= Version::HTTP_2)
}

/// How long the body is. Whether it has ended is asked last, because a layer of ours inside counts
/// that as taking the body.
#[inline]
fn length<B: Body>(response: &Response<B>) -> u64 {
    if has_no_body(response.status().as_u16()) {
        return NO_BODY;
    }
    let announced = || {
        let length = response.headers().get(CONTENT_LENGTH)?.to_str().ok()?;
        length.parse().ok()
    };
    let length = response.body().size_hint().exact().or_else(announced);
    length.unwrap_or_else(|| if response.body().is_end_stream() { NO_BODY } else { UNKNOWN_LENGTH })
}

/// How the request ends if its body does not say otherwise. gRPC answers some errors by headers
/// alone; only such answers are searched for its status.
#[inline]
fn ending<B>(response: &Response<B>, left: u64) -> Ending {
    let by_status = ending_of(response.status().as_u16());
    if by_status == Ending::Completed && left == NO_BODY {
        return grpc_ending(response.headers()).unwrap_or(by_status);
    }
    by_status
}

/// How a request of gRPC ends. Which codes are errors of the server is as in OpenTelemetry's
/// conventions.
fn grpc_ending(headers: &HeaderMap) -> Option<Ending> {
    Some(match headers.get(GRPC_STATUS)?.as_bytes() {
        b"0" => Ending::Completed,
        // CANCELLED.
        b"1" => Ending::Cancelled,
        // INVALID_ARGUMENT, NOT_FOUND to RESOURCE_EXHAUSTED, FAILED_PRECONDITION to OUT_OF_RANGE,
        // UNAUTHENTICATED.
        b"3" | b"5" | b"6" | b"7" | b"8" | b"9" | b"10" | b"11" | b"16" => Ending::ClientError,
        _ => Ending::Error,
    })
}

impl<B: Body> Body for GroupBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let sent = |frame: &Frame<B::Data>| match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Sent::Bytes(data.remaining(), data.chunk().first_chunk().copied()),
            (_, Some(trailers)) => Sent::Trailers(grpc_ending(trailers)),
            _ => Sent::Bytes(0, None),
        };
        self.poll_charged(cx, B::poll_frame, B::is_end_stream, sent)
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.inner().is_none_or(B::is_end_stream);
        if !has_ended {
            self.is_asked_for();
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.inner().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
