//! A stream that notes when its bytes came, and may be a task of a group.
//!
//! While times are taken a TCP stream is read by `recvmsg`, which returns when the kernel received
//! the bytes; any other stream is read by its own `poll_read`, and its bytes came when the reading
//! task was woken. Bytes of several packets that one read returns have the time of the last packet,
//! so of several requests in one read the earlier ones may have waited for longer. For requests of
//! HTTP/2 there is a way out: [`super::http2`].
//!
//! # The two clocks
//!
//! The kernel stamps by the wall clock, times of tasks are by the counter. A stamp becomes an age
//! at once. If the wall clock was set since the read before, which shows because counter and clock
//! went differently far, or if the age is negative or longer than [`OLDEST_NS`], nobody knows when
//! the bytes came.
//!
//! # What it takes over
//!
//! A program that wants other stamps of a socket keeps them, and its bytes came when the reading
//! task was woken. Where the kernel decrypts TLS, a record that is no data is an error, as it is
//! for any other read; but it is gone, so the program cannot read it with another call.
//!
//! # Safety
//!
//! The unsafe code marks bytes as initialised that the kernel has written.
#![allow(unsafe_code)]

use std::any::Any;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use ::tokio::net::{TcpListener, TcpStream};
use dormouse_clock::overhead::TASKS;
use dormouse_clock::{ns_to_ticks, realtime_ns, stamp, ticks_to_ns};
use dormouse_sys::receive::{Received, receive, want_times};
use dormouse_waits::{Around, Arrival, Traffic, are_times_taken, around, count_traffic};

use super::http2::Arrivals;
use super::responded::Unwritten;
use super::web_socket::Messages;
use crate::core::arrival::note;
use crate::core::group::Group;
use crate::core::task::Task;

/// Older bytes are not believed: a minute.
const OLDEST_NS: u64 = 60_000_000_000;
/// Counter and wall clock may differ by a millisecond, and by one in 1,024 of the time.
const SLACK_NS: u64 = 1_000_000;
const DRIFT: u64 = 1024;

/// A stream of which requests are read: their latency begins when their bytes came. Its reads,
/// writes and close are a task of a group ([`connection`]), or of the task that calls them
/// ([`received`]). Writes of a response that a layer of ours has made
/// ([`tower`](crate::tower)) are charged to the response's group, where it can be told whose
/// response is written.
///
/// ```
/// # async fn accepted(stream: tokio::net::TcpStream) {
/// let stream = dormouse::tokio::received(stream);
/// assert!(stream.get_ref().is_some());
/// # }
/// ```
#[derive(Debug)]
pub struct ServedStream<I> {
    // `None` once dropped, which happens inside the group.
    io: Option<I>,
    task: Option<Task>,
    receipt: Receipt,
    unwritten: Unwritten,
    messages: Messages,
}

/// A stream whose reads, writes and close are a task of `group`: for servers that spawn the tasks
/// of connections themselves.
///
/// ```
/// use dormouse::Group;
///
/// # fn accepted(stream: tokio::net::TcpStream) {
/// let stream = dormouse::tokio::connection(stream, Group::new("connections"));
/// # drop(stream);
/// # }
/// ```
///
/// # Cost
///
/// While times are taken, a read by `recvmsg` in place of `recv`, and two system calls for each
/// stream. The kernel then also reads the clock for each packet that the machine receives.
pub fn connection<I>(io: I, group: Group) -> ServedStream<I> {
    ServedStream::new(io, Some(group.connection()))
}

/// A stream that is read by a task of [`Group::connection`], or by a task in no group.
///
/// ```
/// use dormouse::Group;
///
/// # async fn serve<I: tokio::io::AsyncRead + tokio::io::AsyncWrite>(_: I) {}
/// # fn accepted(stream: tokio::net::TcpStream) {
/// let stream = dormouse::tokio::received(stream);
/// let serving = Group::new("connections").connection().instrument(serve(stream));
/// # drop(serving);
/// # }
/// ```
///
/// # Cost
///
/// As of [`connection`].
pub fn received<I>(io: I) -> ServedStream<I> {
    ServedStream::new(io, None)
}

/// When the requests came that were read.
#[derive(Debug, Default)]
struct Receipt {
    /// Whether times were taken at the last read.
    is_timed: bool,
    stamps: StampState,
    /// Counter and wall clock at the last read that returned a stamp, or when stamps were asked
    /// for.
    clocks: Option<(u64, u64)>,
    arrivals: Arrivals,
    /// The arrival of the request that the connection may begin now.
    arrival: Option<Arrival>,
}

/// Whether the kernel returns stamps of the stream.
#[derive(Debug, Default, PartialEq, Eq)]
enum StampState {
    #[default]
    NotAsked,
    Returned,
    /// The stream is no TCP socket of tokio's, or the kernel or a filter refuses.
    Refused,
}

/// Stamps of a listening socket, which the kernel hands on to the sockets of connections that are
/// established from then on: bytes that come before a connection is accepted have stamps, too.
#[derive(Debug, Default)]
pub(super) struct ListenerStamps {
    /// Counter and wall clock, if stamps were asked for: of now, and of a minute before or more.
    /// Older bytes are not believed.
    clocks: Option<[(u64, u64); 2]>,
}

#[cfg_attr(not(feature = "axum"), expect(dead_code, reason = "axum's listener has them"))]
impl ListenerStamps {
    /// Asks the kernel for stamps while times are taken, and no longer after. Only a TCP listener
    /// of tokio's has them.
    pub(super) fn follow(&mut self, listener: &dyn Any) {
        if are_times_taken() != self.clocks.is_some() {
            self.turn(listener);
        }
    }

    #[cold]
    fn turn(&mut self, listener: &dyn Any) {
        let Some(listener) = listener.downcast_ref::<TcpListener>() else { return };
        let wants = self.clocks.is_none();
        let is_done = want_times(listener.as_fd(), wants).is_ok();
        self.clocks = (wants && is_done).then(|| [clocks(); 2]);
    }

    /// A connection that was accepted after the last [`ListenerStamps::follow`].
    pub(super) fn accepted<I>(&mut self, io: I, group: Group) -> ServedStream<I> {
        let mut stream = connection(io, group);
        if let Some([last, before]) = &mut self.clocks {
            let now = clocks();
            if ticks_to_ns(now.0.saturating_sub(last.0)) > OLDEST_NS {
                (*last, *before) = (now, *last);
            }
            // The stream asks by itself, too: it may have been established before.
            stream.receipt = Receipt { is_timed: true, clocks: Some(*before), ..Receipt::default() };
        }
        stream
    }
}

/// Counter and wall clock.
fn clocks() -> (u64, u64) {
    (stamp(), realtime_ns())
}

impl<I> ServedStream<I> {
    fn new(io: I, task: Option<Task>) -> Self {
        Self {
            io: Some(io),
            task,
            receipt: Receipt::default(),
            unwritten: Unwritten::Nothing,
            messages: Messages::default(),
        }
    }

    /// Counts bytes for the group whose task the stream is, or is read and written by. While times
    /// are not taken nobody counts.
    #[inline]
    fn carries(&self, of: Traffic) {
        if are_times_taken()
            && let Some(group) = self.task.as_ref().map(Task::group).or_else(Group::current)
        {
            let _timed = TASKS.begin();
            count_traffic(group.id(), of);
        }
    }

    fn has_written(&mut self, slices: &[IoSlice<'_>], n: usize) {
        self.carries(Traffic { written: n as u64, ..Traffic::default() });
        self.messages.written(slices, n);
    }

    /// The stream itself.
    pub fn get_ref(&self) -> Option<&I> {
        self.io.as_ref()
    }
}

impl<I: Unpin> ServedStream<I> {
    /// An operation that writes. Requests may begin after it that were read before.
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        f: impl FnOnce(Pin<&mut I>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if are_times_taken() {
            note(self.receipt.arrival);
        }
        self.unwritten.follow();
        self.messages.follow();
        let Self { io, task, unwritten, receipt, .. } = self;
        // The stream's own task is polled in either case: its waker is the one that the socket has.
        let io = io.as_mut();
        let written = charged(io, task.as_mut(), cx, |io, cx| unwritten.charge(|| f(Pin::new(io), cx)));
        if written.is_pending() && receipt.is_timed {
            receipt.lose_order();
        }
        written
    }
}

/// The stream keeps a waker of the task's: so a connection that waits for its client is a task that
/// somebody will wake.
fn charged<I, T>(
    io: Option<&mut I>,
    task: Option<&mut Task>,
    cx: &mut Context<'_>,
    f: impl FnOnce(&mut I, &mut Context<'_>) -> Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    let Some(io) = io else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
    match task {
        Some(task) => task.poll_with(cx, |cx| f(io, cx)),
        None => f(io, cx),
    }
}

impl<I> Drop for ServedStream<I> {
    fn drop(&mut self) {
        let Self { io, task, .. } = self;
        if let Some(task) = task {
            task.run_drop(|| *io = None);
        }
    }
}

impl<I: AsyncRead + Unpin + 'static> AsyncRead for ServedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { io, task, receipt, .. } = &mut *self;
        let before = buffer.filled().len();
        let read = charged(io.as_mut(), task.as_mut(), cx, |io, cx| {
            if are_times_taken() {
                return receipt.read(io, cx, buffer);
            }
            if receipt.is_timed {
                receipt.forget(io);
            }
            Pin::new(io).poll_read(cx, buffer)
        });
        let bytes = buffer.filled().get(before..).unwrap_or_default();
        if !bytes.is_empty() {
            self.carries(Traffic { read: bytes.len() as u64, ..Traffic::default() });
            self.messages.read(bytes);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for ServedStream<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.written(cx, |io, cx| io.poll_write(cx, bytes));
        if let Poll::Ready(Ok(n)) = written {
            self.has_written(&[IoSlice::new(bytes)], n);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.written(cx, AsyncWrite::poll_flush);
        if flushed.is_ready() {
            self.unwritten = Unwritten::Nothing;
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.written(cx, AsyncWrite::poll_shutdown)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.written(cx, |io, cx| io.poll_write_vectored(cx, slices));
        if let Poll::Ready(Ok(n)) = written {
            self.has_written(slices, n);
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }
}

impl Receipt {
    /// Reads, and notes when the bytes came.
    #[cold]
    fn read<I: AsyncRead + Unpin + 'static>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_timed = true;
        let read = self.read_timed(io, cx, buffer);
        if read.is_pending() {
            // The requests that were read before may begin now.
            self.arrival = self.arrivals.emptied(stamp());
        }
        note(self.arrival);
        read
    }

    /// Requests may begin without a read in between.
    #[cold]
    fn lose_order(&mut self) {
        self.arrival = self.arrivals.lose_order();
        note(self.arrival);
    }

    fn read_timed<I: AsyncRead + Unpin + 'static>(
        &mut self,
        io: &mut I,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let stamped = match self.stamped(io) {
            Some(stream) => {
                let most = self.arrivals.most(stamp());
                Some(ready!(read_stamped(stream, cx, buffer, most)))
            }
            None => None,
        };
        let received = match stamped {
            Some(Ok(received)) => received.realtime_ns,
            // Any other error is the stream's own, which the kernel returns once.
            Some(Err(error)) if !is_refusal(&error) => return Poll::Ready(Err(error)),
            refused => {
                if refused.is_some() {
                    self.stamps = StampState::Refused;
                }
                ready!(Pin::new(io).poll_read(cx, buffer))?;
                None
            }
        };
        if buffer.filled().len() > before {
            let _timed = TASKS.begin();
            let received = received.and_then(|realtime_ns| self.stamp_of(realtime_ns));
            let woken = around().and_then(Around::woken);
            let arrival = Arrival { received, woken: woken.unwrap_or_else(stamp) };
            self.arrivals.read(&buffer.filled()[before..], arrival, stamp());
            self.arrival = Some(arrival);
        }
        Poll::Ready(Ok(()))
    }

    /// The stream, if the kernel returns stamps of it.
    fn stamped<'a>(&mut self, io: &'a mut dyn Any) -> Option<&'a TcpStream> {
        let stream = io.downcast_ref::<TcpStream>();
        if self.stamps == StampState::NotAsked {
            let is_asked = stream.is_some_and(|stream| want_times(stream.as_fd(), true).is_ok());
            self.stamps = if is_asked { StampState::Returned } else { StampState::Refused };
            self.clocks = self.clocks.or_else(|| Some(clocks()));
        }
        stream.filter(|_| self.stamps == StampState::Returned)
    }

    /// Times are not taken any more.
    #[cold]
    fn forget<I: 'static>(&mut self, io: &mut I) {
        let stream = (io as &dyn Any).downcast_ref::<TcpStream>();
        if let Some(stream) = stream.filter(|_| self.stamps == StampState::Returned) {
            // A stream that keeps the option costs the machine a little, and its readers nothing.
            _ = want_times(stream.as_fd(), false);
        }
        // Bytes that are read from now on came later than the last note.
        note(None);
        *self = Self::default();
    }

    /// The counter at a moment of the wall clock that has just passed; see the module.
    fn stamp_of(&mut self, received_ns: u64) -> Option<u64> {
        let now = clocks();
        let before = self.clocks.replace(now)?;
        let went = ticks_to_ns(now.0.saturating_sub(before.0));
        let shown = now.1.checked_sub(before.1)?;
        let age = now.1.checked_sub(received_ns)?;
        let is_steady = shown.abs_diff(went) <= SLACK_NS + went / DRIFT;
        (is_steady && age <= OLDEST_NS).then(|| now.0.saturating_sub(ns_to_ticks(age)))
    }
}

/// Whether a filter of system calls refuses the call.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// Reads a TCP stream as tokio does, with the kernel's stamp: `most` bytes at most.
fn read_stamped(
    stream: &TcpStream,
    cx: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    most: usize,
) -> Poll<io::Result<Received>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        // SAFETY: nothing is written here that is not initialised.
        let room = unsafe { buffer.unfilled_mut() };
        let most = most.min(room.len());
        let room = &mut room[..most];
        let mut read = None;
        let tried = stream.try_io(Interest::READABLE, || {
            let received = receive(stream.as_fd(), room)?;
            read = Some(received);
            // A buffer that was not filled shows that the socket is empty, so tokio need not try.
            if (1..room.len()).contains(&received.bytes) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        match (read, tried) {
            (Some(received), _) => {
                // SAFETY: the kernel has written them.
                unsafe { buffer.assume_init(received.bytes) };
                buffer.advance(received.bytes);
                return Poll::Ready(Ok(received));
            }
            (None, Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                return Poll::Ready(Err(error));
            }
            (None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The age that a stamp becomes, in milliseconds, if it is by a wall clock that shows `ago_ms`
    /// less than it does now, and that was set by `step_ms` since the read before.
    fn age_ms(ago_ms: u64, step_ms: i64) -> Option<u64> {
        let mut receipt = Receipt::default();
        let wall = realtime_ns();
        receipt.clocks = Some((stamp(), wall.wrapping_add_signed(-step_ms * 1_000_000)));
        let received = receipt.stamp_of(wall - ago_ms * 1_000_000)?;
        Some(ticks_to_ns(stamp() - received) / 1_000_000)
    }

    #[test]
    fn a_set_wall_clock_gives_no_age() {
        _ = dormouse_clock::point();
        assert!(age_ms(20, 0).is_some_and(|ms| (20..1_000).contains(&ms)), "{:?}", age_ms(20, 0));
        assert_eq!(age_ms(20, 500), None, "forward");
        assert_eq!(age_ms(20, -500), None, "back");
        assert_eq!(age_ms(100_000, 0), None, "too old");
        let mut receipt = Receipt { clocks: Some(clocks()), ..Receipt::default() };
        assert_eq!(receipt.stamp_of(realtime_ns() + 1_000_000_000), None, "of the future");
    }
}
