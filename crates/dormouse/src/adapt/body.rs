//! A response and its body that are charged to the group of the request, whatever they are to the
//! server.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use dormouse_waits::Head;
use pin_project_lite::pin_project;

use super::first_message::{FirstMessage, PREFIX, SentFrames};
use super::responded::responded;
use crate::core::ends::Ending;
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
        sending: Sending,
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

/// A response of whichever server, or its error. Only this library implements it.
#[doc(hidden)]
pub trait ServerResponse<E>: Sized {
    /// The response with a body that is charged.
    type Grouped;

    /// Lets the task pay for the body, and end as the answer says.
    fn charged(answer: Result<Self, E>, task: Option<Task>, sending: Sending) -> Result<Self::Grouped, E>;
}

impl<F> GroupResponse<F> {
    pub(super) fn new(task: Task, future: F, sending: Sending) -> Self {
        Self { future: Some(future), task: Some(task), sending }
    }
}

/// How the server sends the body of a response, as its request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Not at all: the method is HEAD.
    Nothing,
    /// With the head (HTTP/1). A server that asks for no frame sends no body, because of the status
    /// that a layer has set.
    WithHead,
    /// Once the client's window has room (HTTP/2), after it has asked whether there is a body.
    WithinWindow,
    /// Not at all if the response succeeds: the method is CONNECT, so a tunnel, or a WebSocket of
    /// HTTP/2, begins in place of a body. Otherwise as `WithinWindow`.
    Tunnel,
}

impl Sending {
    #[inline]
    pub(super) fn new(is_head: bool, has_windows: bool) -> Self {
        match (is_head, has_windows) {
            (true, _) => Self::Nothing,
            (false, false) => Self::WithHead,
            (false, true) => Self::WithinWindow,
        }
    }
}

/// How a request ends that is answered with this status.
#[inline]
pub(super) fn ending_of(status: u16) -> Ending {
    match status {
        // Of nginx: the client has closed the connection.
        499 => Ending::Cancelled,
        400..=498 => Ending::ClientError,
        500.. => Ending::Error,
        _ => Ending::Completed,
    }
}

/// The bytes of a body that is not to be sent, or of one of which nobody says how long it is.
pub(super) const NO_BODY: u64 = 0;
pub(super) const UNKNOWN_LENGTH: u64 = u64::MAX;

/// Whether the server sends no body with this status.
pub(super) fn has_no_body(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// How a response with that status begins, whose body has `left` bytes: only one whose length
/// nobody knows may be a stream.
#[inline]
pub(super) fn head_of<'a>(status: u16, left: u64, content_type: impl FnOnce() -> Option<&'a [u8]>) -> Head {
    match status {
        // Switching protocols.
        101 => Head::Stream,
        200..=299 if left == UNKNOWN_LENGTH => content_type().map_or(Head::Answer, head_of_type),
        _ => Head::Answer,
    }
}

fn head_of_type(content_type: &[u8]) -> Head {
    let name = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |of: &str| name.eq_ignore_ascii_case(of.as_bytes());
    if is("text/event-stream") || is("multipart/x-mixed-replace") {
        return Head::Stream;
    }
    // Calls and streams of gRPC have one type. gRPC-Web, which has its trailers in the body, has
    // another one.
    let is_grpc = is("application/grpc") || is("application/grpc+proto");
    if is_grpc { Head::Unsure } else { Head::Answer }
}

/// The meaning of a frame of a body for the request.
pub(super) enum Sent {
    /// The number of bytes, and the first five of them.
    Bytes(usize, Option<[u8; PREFIX]>),
    #[cfg_attr(not(feature = "tower"), expect(dead_code, reason = "of HTTP's frames"))]
    /// The last frame, which may say how the request ends.
    Trailers(Option<Ending>),
}

impl<F, A, E> Future for GroupResponse<F>
where
    F: Future<Output = Result<A, E>>,
    A: ServerResponse<E>,
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
        Poll::Ready(A::charged(answer, task, *this.sending))
    }
}

pin_project! {
    /// A response's body whose frames are charged to the group of the request. The request ends
    /// with it: after the last frame, after an error, or when it is dropped. If frames are left
    /// then, it is cancelled, unless nobody has begun to send the body: then another layer has
    /// replaced it, and the request ends as its status says.
    #[derive(Debug)]
    pub struct GroupBody<B> {
        // `None` after its end. It is dropped inside the group.
        #[pin]
        body: Option<B>,
        task: Option<Task>,
        // The bytes that are still to come.
        left: u64,
        sending: Sending,
        // Whether the server has begun to send the body.
        is_taken: AtomicBool,
        // While it is not known whether it is a stream.
        unsure: Option<FirstMessage>,
    }

    impl<B> PinnedDrop for GroupBody<B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            let Some(task) = this.task else { return };
            if let Some(sent) = this.unsure.as_mut().and_then(FirstMessage::end) {
                task.was_stream(sent.frames, sent.bytes);
            }
            // Some servers ask no further for a body whose length they have sent.
            if *this.left != NO_BODY && *this.is_taken.get_mut() {
                task.drop_future(this.body);
            } else {
                let mut body = this.body;
                task.run_drop(|| body.set(None));
            }
        }
    }
}

/// An empty one in no group, which other layers put in place of a response.
impl<B: Default> Default for GroupBody<B> {
    fn default() -> Self {
        Self::new(B::default(), None, NO_BODY, Sending::WithHead, Head::Answer)
    }
}

impl<B> GroupBody<B> {
    /// A body of `left` bytes, after such a head.
    #[inline]
    pub(super) fn new(body: B, mut task: Option<Task>, left: u64, sending: Sending, head: Head) -> Self {
        let unsure = (head == Head::Unsure).then(FirstMessage::default);
        if let Some(task) = &mut task {
            task.head(head);
        }
        Self { body: Some(body), task, left, sending, is_taken: AtomicBool::new(false), unsure }
    }

    /// The server has asked how much is left, and it was not nothing.
    pub(super) fn is_asked_for(&self) {
        if matches!(self.sending, Sending::WithinWindow | Sending::Tunnel) {
            self.is_taken.store(true, Ordering::Relaxed);
        }
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
        sent: impl FnOnce(&T) -> Sent,
    ) -> Poll<Option<Result<T, E>>> {
        let mut this = self.project();
        *this.is_taken.get_mut() = true;
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
        match &frame {
            Poll::Ready(Some(Ok(frame))) => match sent(frame) {
                Sent::Bytes(n, prefix) => {
                    let mut sent = SentFrames { frames: 1, bytes: n as u64 };
                    if *this.left != UNKNOWN_LENGTH {
                        *this.left = this.left.saturating_sub(sent.bytes);
                    }
                    if let Some(first) = this.unsure
                        && let Some(all) = first.next(sent.bytes, prefix)
                    {
                        sent = all;
                        *this.unsure = None;
                        task.lives_long();
                    }
                    task.frames(sent.frames, sent.bytes);
                }
                Sent::Trailers(ending) => {
                    *this.left = NO_BODY;
                    if let Some(ending) = ending {
                        task.ends(ending);
                    }
                }
            },
            Poll::Ready(Some(Err(_))) => task.ends(Ending::Error),
            Poll::Ready(None) => {}
            Poll::Pending => {
                if let Some(first) = this.unsure {
                    first.is_silent();
                }
            }
        }
        if this.body.is_none() {
            // The body has ended before its length: the server cuts the connection.
            if *this.left != NO_BODY && *this.left != UNKNOWN_LENGTH {
                task.ends(Ending::Error);
            }
            if let Some(sent) = this.unsure.as_mut().and_then(FirstMessage::end) {
                task.was_stream(sent.frames, sent.bytes);
            }
            *this.task = None;
        }
        frame
    }
}
