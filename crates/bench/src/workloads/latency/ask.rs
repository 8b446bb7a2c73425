//! A request and its answer, as each protocol sends and reads them.
//!
//! # Safety
//!
//! The unsafe code lets the kernel write into bytes that have values.
#![allow(unsafe_code)]

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use dormouse_sys::receive::{receive, want_times};

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask {
    /// Its id, which the answer repeats.
    pub(super) id: usize,
    pub(super) due: Instant,
    pub(super) is_measured: bool,
    pub(super) awaits: Duration,
    pub(super) keeps: Duration,
}

/// A request that has been answered, by the client's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) id: usize,
    pub(super) sent: Instant,
    /// When the first bytes of the answer were read.
    pub(super) first_byte: Moments,
}

/// When bytes came.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moments {
    /// When the client had read them.
    pub(super) read: Instant,
    /// When the kernel had received them for the client; `None`: it did not stamp them.
    pub(super) received: Option<Instant>,
}

/// Reads a connection, and keeps when the last bytes came.
#[derive(Debug)]
pub(super) struct Stamped<'a> {
    stream: &'a TcpStream,
    pub(super) last: Moments,
}

impl<'a> Stamped<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Self {
        Self { stream, last: Moments { read: Instant::now(), received: None } }
    }
}

impl Read for Stamped<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = (&raw mut *buffer) as *mut [MaybeUninit<u8>];
        // SAFETY: the same bytes; the kernel writes no others than such with values.
        let got = receive(self.stream.as_fd(), unsafe { &mut *bytes })?;
        let (read, wall) = (Instant::now(), SystemTime::now());
        let age = |realtime_ns| wall.duration_since(UNIX_EPOCH + Duration::from_nanos(realtime_ns)).ok();
        let received = got.realtime_ns.and_then(age).and_then(|age| read.checked_sub(age));
        self.last = Moments { read, received };
        Ok(got.bytes)
    }
}

impl Ask {
    /// The path of its request: the route, the two times in microseconds, and the id.
    pub(super) fn path(&self) -> String {
        let route = if self.is_measured { "measured" } else { "long" };
        format!("/{route}/{}/{}/{}", self.awaits.as_micros(), self.keeps.as_micros(), self.id)
    }

    /// Sleeps until it is due, unless that has passed.
    pub(super) fn wait(&self) {
        sleep(self.due.saturating_duration_since(Instant::now()));
    }
}

/// A connection to the service.
pub(super) fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    want_times(stream.as_fd(), true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

pub(super) fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
