//! One connection: who it is, what it has sent, what it is still to be sent, and what it holds.
//!
//! # Invariants
//!
//! 1. `input` holds at most one line and the beginning of the next: nothing is read while an answer is
//!    unsent.
//! 2. Nothing here waits: the socket does not block.
//!
//! # Safety
//!
//! `getsockopt(SO_PEERCRED)` into a local structure.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use dormouse_keys::Lease;
use dormouse_sys::ring::Writer;
use serde::Serialize;

use super::counting::Counting;
use super::descriptors::Kept;
use crate::group::Group;
use crate::recorder::Trace;
use crate::wire::{Code, Ended, FrameKind, MAX_FRAME, MAX_LINE, Note, Notice, PROTOCOL, Response, WireError};

/// A request that was begun, an answer that is not taken: then the connection is closed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The same for a connection that has not said a word, so that silence does not keep others out.
const SILENCE: Duration = Duration::from_secs(3);

/// Unsent bytes beyond which a trace holds its records back, to be dropped and counted there.
const HIGH_WATER: usize = 256 * 1024;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    /// 0 when it lives in another process namespace.
    pub(super) pid: u32,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: Kept<UnixStream>,
    pub(super) peer: Peer,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Once it has said hello.
    pub(super) greeted: Option<Greeted>,
    /// Closed as soon as the output is sent.
    pub(super) closing: bool,
    /// Gone: nothing can be sent any more.
    pub(super) gone: bool,
    /// Since when a request is incomplete or an answer is not taken.
    waiting: Option<Instant>,
    pub(super) leases: Vec<Lease>,
    /// What groups count for it.
    pub(super) counting: Option<Counting>,
    pub(super) tracing: Option<Stream>,
}

/// What a client said of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Greeted {
    /// It takes notices between answers.
    pub(super) notices: bool,
}

/// A trace on its way to a client.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) trace: Trace,
    threads: HashSet<Writer>,
    groups: HashSet<u32>,
    next_clock: Instant,
}

/// What came in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Line(Vec<u8>),
    TooLong,
    Nothing,
}

impl Client {
    pub(super) fn new(stream: Kept<UnixStream>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let peer = peer_of(&stream)?;
        Ok(Self {
            stream,
            peer,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            greeted: None,
            closing: false,
            gone: false,
            // Until it has said hello.
            waiting: Some(Instant::now()),
            leases: Vec::new(),
            counting: None,
            tracing: None,
        })
    }

    /// What it holds, by `on` and by its trace.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().chain(self.tracing.iter().filter_map(|stream| stream.trace.lease()))
    }

    /// As [`Client::leases`], to give something back.
    pub(super) fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        let trace = self.tracing.iter_mut().filter_map(|stream| stream.trace.lease_mut());
        self.leases.iter_mut().chain(trace)
    }

    /// Reads what has come, as far as there is room for it.
    pub(super) fn receive(&mut self) {
        let mut part = [0; 4096];
        while self.input.len() <= MAX_LINE {
            match self.stream.read(&mut part) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                // Nothing is to be said during a trace; it is ended by closing.
                Ok(_) if self.tracing.is_some() => {
                    self.gone = true;
                    return;
                }
                Ok(n) => self.input.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.gone |= error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            }
        }
    }

    /// Whether anything that comes now would be read.
    pub(super) fn is_listening(&self) -> bool {
        self.input.len() <= MAX_LINE && !self.closing
    }

    /// The next request, when no answer is under way.
    pub(super) fn next_line(&mut self) -> Input {
        if self.is_busy() || self.closing || self.tracing.is_some() {
            return Input::Nothing;
        }
        match self.input.iter().position(|&b| b == b'\n') {
            Some(end) if end <= MAX_LINE => {
                let mut line: Vec<u8> = self.input.drain(..=end).collect();
                line.pop();
                self.waiting = None;
                Input::Line(line)
            }
            None if self.input.len() <= MAX_LINE => {
                if self.input.is_empty() {
                    self.waiting = self.waiting.filter(|_| self.greeted.is_none());
                } else {
                    self.waiting.get_or_insert_with(Instant::now);
                }
                Input::Nothing
            }
            _ => Input::TooLong,
        }
    }

    /// Whether an answer is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Sends what it will take.
    pub(super) fn send(&mut self) {
        if !self.is_busy() {
            self.gone |= self.closing;
            return;
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                // A stream socket takes something or says why not.
                Ok(n) => {
                    self.sent += n;
                    self.waiting = Some(Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.waiting.get_or_insert_with(Instant::now);
                    return;
                }
                Err(_) => {
                    self.gone = true;
                    break;
                }
            }
        }
        self.output.clear();
        self.sent = 0;
        self.waiting = self.waiting.filter(|_| self.greeted.is_none());
        self.gone |= self.closing;
    }

    /// When patience with this client ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.map(|since| since + self.patience())
    }

    /// How long it may take over what is under way.
    pub(super) fn patience(&self) -> Duration {
        if self.is_silent() { SILENCE } else { PATIENCE }
    }

    /// Whether it has not said a word yet.
    pub(super) fn is_silent(&self) -> bool {
        self.greeted.is_none() && self.input.is_empty() && !self.is_busy()
    }

    /// How many keys it holds, each as often as it does.
    pub(super) fn held(&self) -> usize {
        self.leases().map(|lease| lease.keys().len()).sum()
    }

    /// Tells it what somebody has taken from it, if it listens to that.
    pub(super) fn tell(&mut self, ended: Ended) {
        if self.tracing.is_some() {
            note(&mut self.output, &Note::Ended(ended));
        } else if self.greeted.is_some_and(|greeted| greeted.notices)
            && let Ok(mut line) = serde_json::to_vec(&Notice { v: PROTOCOL, note: Note::Ended(ended) })
        {
            line.push(b'\n');
            self.output.append(&mut line);
        }
    }

    pub(super) fn answer<T: Serialize>(&mut self, id: u64, answer: Result<T, WireError>) {
        let (ok, error) = match answer {
            Ok(ok) => (Some(ok), None),
            Err(error) => (None, Some(error)),
        };
        match serde_json::to_vec(&Response { v: PROTOCOL, id, ok, error }) {
            Ok(mut line) => {
                line.push(b'\n');
                self.output.append(&mut line);
            }
            // Our own types always serialise; if not, an end is better than silence.
            Err(_) => self.closing = true,
        }
    }

    /// Refuses and closes.
    pub(super) fn refuse(&mut self, id: u64, code: Code, message: impl Into<String>) {
        self.answer::<()>(id, Err(WireError { code, message: message.into(), near: Vec::new() }));
        self.closing = true;
    }

    pub(super) fn start_stream(&mut self, trace: Trace) {
        self.tracing = Some(Stream {
            trace,
            threads: HashSet::new(),
            groups: HashSet::new(),
            next_clock: Instant::now() + Duration::from_secs(1),
        });
    }

    /// Puts what a trace has collected into frames, unless the client is behind.
    pub(super) fn pump(&mut self, now: Instant) {
        let behind = self.output.len() - self.sent > HIGH_WATER;
        let Some(stream) = &mut self.tracing else { return };
        if behind {
            return;
        }
        stream.fill(&mut self.output, now);
    }
}

impl Stream {
    fn fill(&mut self, output: &mut Vec<u8>, now: Instant) {
        let chunks = self.trace.take();
        let groups = if chunks.is_empty() { Vec::new() } else { Group::all() };
        for group in groups {
            if self.groups.insert(group.id()) {
                note(output, &Note::Group { id: group.id(), name: group.name().to_owned() });
            }
        }
        for chunk in chunks {
            if self.threads.insert(chunk.writer) {
                note(
                    output,
                    &Note::Thread {
                        tid: chunk.writer.tid,
                        start: chunk.writer.start,
                        name: super::host::thread_name(chunk.writer.tid),
                    },
                );
            }
            let mut payload = Vec::with_capacity(12 + chunk.bytes.len());
            payload.extend_from_slice(&chunk.writer.tid.to_le_bytes());
            payload.extend_from_slice(&chunk.writer.start.to_le_bytes());
            payload.extend_from_slice(&chunk.bytes);
            frame(output, FrameKind::Records, &payload);
        }
        let dropped = self.trace.dropped();
        if dropped.rings + dropped.trace > 0 {
            note(output, &Note::Dropped { rings: dropped.rings, client: dropped.trace });
        }
        if now >= self.next_clock {
            self.next_clock = now + Duration::from_secs(1);
            note(output, &Note::Clock(super::host::clock_point()));
        }
    }
}

fn note(output: &mut Vec<u8>, note: &Note) {
    if let Ok(json) = serde_json::to_vec(note) {
        frame(output, FrameKind::Note, &json);
    }
}

fn frame(output: &mut Vec<u8>, kind: FrameKind, payload: &[u8]) {
    // A chunk is at most one ring, far below the bound.
    debug_assert!(payload.len() < MAX_FRAME);
    output.extend_from_slice(&(payload.len() as u32 + 1).to_le_bytes());
    output.push(kind as u8);
    output.extend_from_slice(payload);
}

fn peer_of(stream: &UnixStream) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the option writes at most `length` bytes into `credentials`.
    let asked = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer { uid: credentials.uid, pid: credentials.pid.cast_unsigned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, Client) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, Client::new(Kept::new(|| Ok(theirs)).unwrap()).unwrap())
    }

    #[test]
    fn lines_come_one_at_a_time_and_halves_are_waited_for() {
        let (mut remote, mut client) = pair();
        remote.write_all(b"one\ntwo\nthr").unwrap();
        client.receive();
        assert_eq!(client.next_line(), Input::Line(b"one".to_vec()));
        assert_eq!(client.next_line(), Input::Line(b"two".to_vec()));
        assert_eq!(client.next_line(), Input::Nothing);
        assert!(client.deadline().is_some());
        remote.write_all(b"ee\n").unwrap();
        client.receive();
        assert_eq!(client.next_line(), Input::Line(b"three".to_vec()));
        assert!(client.deadline().is_none());
    }

    #[test]
    fn a_line_over_the_bound_is_refused_not_stored() {
        let (mut remote, mut client) = pair();
        remote.set_nonblocking(true).unwrap();
        for _ in 0..64 {
            let _ = remote.write(&[b'x'; 4096]);
        }
        client.receive();
        assert_eq!(client.next_line(), Input::TooLong);
        assert!(client.input.len() <= MAX_LINE + 4096);
    }

    #[test]
    fn the_next_request_waits_for_the_answer_to_be_sent() {
        let (mut remote, mut client) = pair();
        remote.write_all(b"one\ntwo\n").unwrap();
        client.receive();
        assert_eq!(client.next_line(), Input::Line(b"one".to_vec()));
        client.answer(1, Ok("x"));
        assert_eq!(client.next_line(), Input::Nothing);
        client.send();
        assert_eq!(client.next_line(), Input::Line(b"two".to_vec()));
    }
}
