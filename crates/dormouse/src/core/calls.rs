//! Outgoing calls: whom the service asks, by the group that asks.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dormouse_clock::overhead::TASKS;
use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_waits::calls::{CallKind, Peer, PeerName};
use pin_project_lite::pin_project;

/// A call to another service: a request of HTTP, a statement, a command. It belongs to the group
/// that is current where it begins, and is counted there by its kind and its peer, with the time
/// that it took.
///
/// Calls are timed while times are taken ([`waits`](crate::waits)). Adapters make them
/// (`dormouse::tower::calls`, `dormouse::tracing::calls`); where none fits, make them yourself:
///
/// ```
/// use dormouse::{Call, CallKind};
///
/// # struct Row; struct Gone;
/// # impl Row {
/// #     async fn fetch(_: &str) -> Result<Row, Gone> { Err(Gone) }
/// #     fn read(_: &str) -> Result<Row, Gone> { Ok(Row) }
/// # }
/// # async fn handler() {
/// const STATEMENT: &str = "SELECT name FROM tea WHERE cups > $1";
/// let row = Call::begin(CallKind::Sql, STATEMENT).instrument(Row::fetch(STATEMENT)).await;
/// // Or where the thread waits for it:
/// let row = Call::begin(CallKind::Sql, STATEMENT).run(|| Row::read(STATEMENT));
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(handler());
/// ```
///
/// A call that is dropped before its end was given up: it is counted as cancelled, and its time is
/// no latency.
///
/// # Cost
///
/// A sleeping instruction while times are not taken. Otherwise two stamps and a look-up; the first
/// call of a group to a peer maps memory. No lock, no allocation.
#[derive(Debug)]
#[must_use = "a call that is dropped counts as cancelled"]
pub struct Call(Option<Open>);

#[derive(Debug, Clone, Copy)]
struct Open {
    peer: Peer,
    /// When it began, as a stamp.
    begun: u64,
}

impl Call {
    /// Begins a call of that kind. `text` names whom it goes to: a host or a URL, gRPC's method, a
    /// statement, a command. [`CallKind`] has what is kept of it: no value of a request.
    ///
    /// A group tells 64 peers apart. The calls to all others are added up.
    #[inline]
    pub fn begin(kind: CallKind, text: &str) -> Self {
        Self::to(|| PeerName::of(kind, text))
    }

    /// Begins a call to a peer whose name is found only if calls are timed.
    #[inline]
    pub(crate) fn to(peer: impl FnOnce() -> PeerName) -> Self {
        Self(if dormouse_waits::are_times_taken() { Open::to(peer) } else { None })
    }

    /// Ends the call.
    #[inline]
    pub fn end(self, is_error: bool) {
        _ = self.answered(is_error);
    }

    /// Ends the call, and returns the peer: a failure may still come.
    #[inline]
    pub(crate) fn answered(mut self, is_error: bool) -> Option<Peer> {
        self.0.take().map(|open| open.answered(is_error))
    }

    /// Makes a future the call: the call ends when the future does, and has failed if the output is
    /// an `Err`.
    pub fn instrument<F, T, E>(self, future: F) -> InstrumentedCall<F>
    where
        F: Future<Output = Result<T, E>>,
    {
        InstrumentedCall { future, call: Some(self) }
    }

    /// Does what `f` does, which is the call; it failed if `f` returns an `Err`.
    pub fn run<T, E>(self, f: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let result = f();
        self.end(result.is_err());
        result
    }
}

/// Not inlined, so that a call that nobody times need not save the registers that these use.
impl Open {
    #[inline(never)]
    fn to(peer: impl FnOnce() -> PeerName) -> Option<Self> {
        let _timed = TASKS.begin();
        let peer = Peer::of(dormouse_events::current_context(), &peer())?;
        Some(Self { peer, begun: stamp() })
    }

    #[inline(never)]
    fn answered(self, is_error: bool) -> Peer {
        let _timed = TASKS.begin();
        self.peer.answered(ticks_to_ns(stamp().saturating_sub(self.begun)), Some(is_error));
        self.peer
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        if let Some(Open { peer, .. }) = self.0 {
            peer.cancelled();
        }
    }
}

pin_project! {
    /// A future that is a call; see [`Call::instrument`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InstrumentedCall<F> {
        #[pin]
        future: F,
        // `None` after its end.
        call: Option<Call>,
    }
}

impl<F, T, E> Future for InstrumentedCall<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let output = ready!(this.future.poll(cx));
        if let Some(call) = this.call.take() {
            call.end(output.is_err());
        }
        Poll::Ready(output)
    }
}
