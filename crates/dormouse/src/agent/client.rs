//! One connection: its peer, the bytes from and to it, the leases that it holds, and what features
//! do for it.
//!
//! # Invariants
//!
//! 1. `input` holds at most one line and the beginning of the next: the agent reads nothing while
//!    an answer is unsent.
//! 2. Nothing here waits: the socket does not block.
//! 3. A client for which there is no memory is dropped. Lines, answers and frames, which may be
//!    long, grow by `try_reserve`; the rest fits into the memory that [`crate::core::memory`] has
//!    reserved.

use std::time::{Duration, Instant};
use std::{fmt, io};

use dormouse_keys::{Key, Lease};
use dormouse_protocol::{Code, Ended, MAX_LINE, Note, Notice, PROTOCOL, Response, WireError};
use rustix::io::Errno;
use serde::Serialize;

use super::descriptors::{Peer, Socket};
use super::output::Output;
use super::state::{ClientState, ClientStates};
use crate::core::memory::{self, Step};

/// The time for the rest of a request, and for the client to take an answer. After it the agent
/// closes the connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The limit for a connection that has not sent anything yet, so that silent connections do not
/// keep others out.
const SILENCE: Duration = Duration::from_secs(3);

/// The longest name of a client, in bytes.
const MAX_NAME: usize = 64;

/// Unsent bytes beyond which a stream holds its records back, to be dropped and counted there.
const HIGH_WATER: usize = 256 * 1024;

/// A connection.
#[derive(Debug)]
pub(crate) struct Client {
    /// `None`: closed, while its leases are still to be given back.
    socket: Option<Socket>,
    pub(crate) peer: Peer,
    input: Vec<u8>,
    output: Output,
    /// When it connected.
    pub(crate) since: Instant,
    /// When it last said something, or took something.
    active: Instant,
    /// Once it has said hello: whether it takes notices between answers.
    pub(super) greeted: Option<bool>,
    /// Its name, from its hello.
    pub(crate) name: String,
    /// Closed as soon as the output is sent.
    pub(super) closing: bool,
    /// Gone: nothing can be sent any more.
    pub(super) gone: bool,
    /// Since when a request is incomplete or an answer is not taken.
    waiting: Option<Instant>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) states: ClientStates,
    stream: Option<Box<dyn Stream>>,
    /// It sends nothing more, and may still read.
    ended: bool,
}

/// Frames that a client takes after an answer, until it closes the connection.
pub(crate) trait Stream: Send + fmt::Debug {
    /// Puts into frames what has come since the last time.
    fn fill(&mut self, output: &mut Output, now: Instant) -> io::Result<()>;

    /// Takes what has come into a queue of its own, while the client is behind.
    fn gather(&mut self);

    /// The lease on the keys that it needs.
    fn lease(&self) -> Option<&Lease>;

    /// Returns the lease, mutable, for giving something back.
    fn lease_mut(&mut self) -> Option<&mut Lease>;
}

/// The next request of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Line(Vec<u8>),
    TooLong,
    Nothing,
}

impl Client {
    pub(super) fn new(socket: Socket, peer: Peer) -> Self {
        let now = Instant::now();
        Self {
            socket: Some(socket),
            peer,
            input: Vec::new(),
            output: Output::default(),
            since: now,
            active: now,
            greeted: None,
            name: String::new(),
            closing: false,
            gone: false,
            // Until it has said hello.
            waiting: Some(now),
            leases: Vec::new(),
            states: ClientStates::default(),
            stream: None,
            ended: false,
        }
    }

    /// Takes its first hello; later ones change nothing.
    pub(crate) fn greet(&mut self, mut name: String, notices: bool) {
        if self.greeted.is_some() {
            return;
        }
        while name.len() > MAX_NAME {
            name.pop();
        }
        self.name = name;
        self.greeted = Some(notices);
    }

    /// The descriptor and the events to wait for.
    pub(super) fn interest(&self) -> libc::pollfd {
        let is_reading = self.has_room() && !self.closing && !self.ended;
        let reads = if is_reading { libc::POLLIN } else { 0 };
        let writes = if self.is_busy() { libc::POLLOUT } else { 0 };
        let fd = self.socket.as_ref().map_or(-1, Socket::number);
        libc::pollfd { fd, events: reads | writes, revents: 0 }
    }

    /// Closes the connection of a client that is gone, and ends what features do for it, as far as
    /// that takes no memory.
    pub(super) fn close(&mut self) {
        self.gone = true;
        self.socket = None;
        self.states.end_at_once();
    }

    /// The keys that it alone keeps on, for any of its activities, each once for each lease.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let leased = self.leases().flat_map(Lease::keys).copied();
        leased.chain(self.states.iter().flat_map(ClientState::keys))
    }

    /// The leases that it gives back by `off`: those of `on` and of its stream.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().chain(self.stream.iter().filter_map(|stream| stream.lease()))
    }

    /// The same as [`Client::leases`], mutable, for giving leases back.
    pub(crate) fn leases_mut(&mut self) -> impl Iterator<Item = &mut Lease> {
        let streamed = self.stream.iter_mut().filter_map(|stream| stream.lease_mut());
        self.leases.iter_mut().chain(streamed)
    }

    /// How many keys it holds, each as often as it does.
    pub(crate) fn held(&self) -> usize {
        self.leases().map(|lease| lease.keys().len()).sum()
    }

    /// Whether there is room for more input.
    fn has_room(&self) -> bool {
        self.input.len() <= MAX_LINE
    }

    /// Reads the bytes that have come, as far as there is room for them.
    pub(super) fn receive(&mut self) {
        let mut part = [0; 4096];
        while self.has_room() && !self.gone && !self.ended {
            let Some(socket) = &self.socket else { return };
            match socket.receive(&mut part) {
                Ok(0) => self.ended = true,
                // A client sends nothing during its stream, and ends it by closing.
                Ok(_) if self.is_streaming() => self.gone = true,
                Ok(n) if self.input.try_reserve(n).is_ok() => self.input.extend_from_slice(&part[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.gone = true,
            }
        }
    }

    /// Whether there is something to do for it that no event of its socket announces: a request has
    /// come already, or it has sent its last one.
    pub(super) fn is_due(&self) -> bool {
        !self.gone && self.takes_requests() && (self.ended || self.has_request())
    }

    /// Closes the connection of a client that sends nothing more, once it has its answers and no
    /// stream; at once if it does not read either. (During a stream a
    /// full input is not read any further, so the end behind it is not seen: a hang-up is enough.)
    pub(super) fn end(&mut self, is_hung_up: bool) {
        let is_done = self.takes_requests() && !self.has_request();
        self.gone |= self.ended && is_done || is_hung_up && (self.ended || self.is_streaming());
    }

    /// Whether a whole line has come, or more than a line may have.
    fn has_request(&self) -> bool {
        !self.has_room() || self.input.contains(&b'\n')
    }

    /// Whether its next request is answered now: no answer is under way.
    fn takes_requests(&self) -> bool {
        !self.is_busy() && !self.closing && !self.is_streaming()
    }

    /// The next request, if no answer is under way.
    pub(super) fn next_line(&mut self) -> Input {
        if !self.takes_requests() {
            return Input::Nothing;
        }
        match self.input.iter().position(|&b| b == b'\n') {
            Some(end) if end <= MAX_LINE => {
                let mut line = Vec::new();
                if line.try_reserve_exact(end).is_err() {
                    self.gone = true;
                    return Input::Nothing;
                }
                line.extend_from_slice(&self.input[..end]);
                self.input.drain(..=end);
                self.waiting = None;
                self.active = Instant::now();
                Input::Line(line)
            }
            None if self.has_room() => {
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
        !self.output.unsent().is_empty()
    }

    /// Sends as much as it takes, also to a client that has said its last word and may listen
    /// still.
    pub(super) fn send(&mut self) {
        let was_busy = self.is_busy();
        while self.is_busy() && !self.gone {
            let Some(socket) = &self.socket else { return };
            match socket.send(self.output.unsent()) {
                // A stream socket accepts some bytes or returns an error.
                Ok(n) => {
                    self.output.sent(n);
                    self.active = Instant::now();
                    self.waiting = Some(self.active);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.waiting.get_or_insert_with(Instant::now);
                    return;
                }
                Err(_) => self.gone = true,
            }
        }
        if was_busy {
            self.waiting = self.waiting.filter(|_| self.greeted.is_none());
        }
        self.gone |= self.closing;
    }

    /// When patience with this client ends.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.map(|since| since + self.patience())
    }

    /// How long it may take over a request or an answer that is under way.
    pub(super) fn patience(&self) -> Duration {
        if self.is_silent() { SILENCE } else { PATIENCE }
    }

    /// Whether it has not said a word yet.
    pub(super) fn is_silent(&self) -> bool {
        self.greeted.is_none() && self.input.is_empty() && !self.is_busy()
    }

    /// Since when it neither sends nor receives nor holds anything; `None` if it does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        (!self.has_work() && !self.is_busy() && self.input.is_empty()).then_some(self.active)
    }

    /// Tells it which keys another client has taken from it, if it listens to that.
    pub(crate) fn tell(&mut self, ended: Ended) {
        let note = Note::Ended(ended);
        if self.is_streaming() {
            self.gone |= self.output.note(&note).is_err();
        } else if self.greeted == Some(true) {
            self.say(&Notice { v: PROTOCOL, note });
        }
    }

    /// Whether the agent does anything for it.
    pub(crate) fn has_work(&self) -> bool {
        !self.states.is_empty() || self.is_streaming() || self.held() > 0
    }

    /// Ends what the agent does for it, and tells it so if it listens. Its leases are given back
    /// already. The connection of a stream ends, since nothing else can follow on it.
    pub(crate) fn end_work(&mut self, ended: Ended) {
        self.states.end_all();
        if ended.keys > 0 {
            self.tell(ended);
        }
        self.closing |= self.stream.take().is_some();
    }

    pub(super) fn answer<T: Serialize>(&mut self, id: u64, answer: Result<T, WireError>) {
        let (ok, error) = match answer {
            Ok(ok) => (Some(ok), None),
            Err(error) => (None, Some(error)),
        };
        self.say(&Response { v: PROTOCOL, id, ok, error });
    }

    /// A line. Our own types always serialise; without memory an end is better than silence.
    fn say<T: Serialize>(&mut self, line: &T) {
        self.gone |= self.output.line(line).is_err();
    }

    /// Refuses and closes.
    pub(super) fn refuse(&mut self, id: u64, why: WireError) {
        self.answer::<()>(id, Err(why));
        self.closing = true;
    }

    /// Ends it after a panic of ours in its request.
    pub(super) fn fail(&mut self) {
        if !self.is_streaming() {
            let message = "dormouse has failed in this request: its panic is on the service's standard error";
            self.refuse(0, WireError::new(Code::Fault, message));
        }
        self.send();
        self.gone = true;
    }

    /// Begins a stream, whose frames follow the answer.
    pub(crate) fn begin_stream(&mut self, stream: impl Stream + 'static) {
        self.stream = Some(Box::new(stream));
    }

    pub(crate) fn is_streaming(&self) -> bool {
        self.stream.is_some()
    }

    /// Puts what its stream has into frames, unless the client is behind.
    pub(super) fn pump(&mut self, now: Instant) {
        let Some(stream) = &mut self.stream else { return };
        if self.output.unsent().len() > HIGH_WATER {
            return stream.gather();
        }
        // The names of threads and groups take memory, too.
        let _step = Step::begin();
        self.gone |= !memory::is_there(memory::SOME) || stream.fill(&mut self.output, now).is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::descriptors::Sockets;
    use dormouse_protocol::FrameKind;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn pair() -> (UnixStream, Client) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = Sockets::shared().keep(|| Ok(theirs.into())).unwrap();
        (ours, Client::new(socket, Peer { uid: 0, pid: 0 }))
    }

    #[test]
    fn lines_come_whole_and_one_by_one() {
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
    fn a_line_over_the_bound_is_refused() {
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
    fn a_long_name_is_cut_between_characters() {
        let (_remote, mut client) = pair();
        client.greet("ä".repeat(MAX_NAME) + "b", true);
        client.greet("another".into(), false);
        assert_eq!((client.name, client.greeted), ("ä".repeat(MAX_NAME / 2), Some(true)));
    }

    #[test]
    fn the_next_request_waits_for_the_answer() {
        let (mut remote, mut client) = pair();
        remote.write_all(b"one\ntwo\n").unwrap();
        client.receive();
        assert_eq!(client.next_line(), Input::Line(b"one".to_vec()));
        client.answer(1, Ok("x"));
        assert_eq!(client.next_line(), Input::Nothing);
        client.send();
        assert_eq!(client.next_line(), Input::Line(b"two".to_vec()));
    }

    /// A stream that puts a long frame into each output, and counts what it was called for.
    #[derive(Debug, Default)]
    struct Frames(Arc<[AtomicUsize; 2]>);

    impl Stream for Frames {
        fn fill(&mut self, output: &mut Output, _: Instant) -> io::Result<()> {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            output.frame(FrameKind::Records, &[&vec![0; HIGH_WATER]])
        }

        fn gather(&mut self) {
            self.0[1].fetch_add(1, Ordering::Relaxed);
        }

        fn lease(&self) -> Option<&Lease> {
            None
        }

        fn lease_mut(&mut self) -> Option<&mut Lease> {
            None
        }
    }

    #[test]
    fn a_stream_ends_behind_a_full_input() {
        let (mut remote, mut client) = pair();
        remote.write_all(&vec![b'x'; MAX_LINE + 1]).unwrap();
        client.receive();
        client.begin_stream(Frames::default());
        client.receive();
        client.end(false);
        assert!(!client.gone);
        client.end(true);
        assert!(client.gone);
    }

    #[test]
    fn a_stream_gathers_while_its_client_is_behind() {
        let (_remote, mut client) = pair();
        let frames = Frames::default();
        let calls = Arc::clone(&frames.0);
        client.begin_stream(frames);
        for _ in 0..5 {
            client.pump(Instant::now());
        }
        assert_eq!([0, 1].map(|n| calls[n].load(Ordering::Relaxed)), [1, 4]);
    }
}
