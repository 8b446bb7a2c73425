//! The poll loop.
//!
//! # Invariants
//!
//! 1. At most [`MAX_CLIENTS`] connections, and [`FOR_ROOT`] more for root. A further one replaces
//!    the one that has been idle longest (silent ones first), or gets an error and is closed.
//! 2. A client's leases end with the client, all of them with the loop. Timed leases are elsewhere:
//!    the keys' timer ends them.
//! 3. The loop ends when the socket on which it listens is no longer the agent's.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dormouse_keys::{Batch, Lease};
use dormouse_protocol::{Code, MAX_LINE, WireError};
use dormouse_sys::directory::{OVERFLOW, shares_its_number};
use rustix::io::Errno;

use super::client::{Client, Input};
use super::descriptors::{MAX_SOCKETS, Socket, Sockets};
use super::place::Place;
use super::verb::{self, Asked, Companion};
use crate::core::memory::{self, Step};

/// Connections at once.
const MAX_CLIENTS: usize = 32;

/// One connection more, which is root's alone.
const FOR_ROOT: usize = 1;

/// The descriptors of a poll: all connections, and the socket that listens.
const POLLED: usize = MAX_CLIENTS + FOR_ROOT + 1;

// Open at once: those, a connection that is being refused, and a new socket that listens.
const _: () = assert!(POLLED + 2 == MAX_SOCKETS);

/// How often a stream looks for what has come.
const STREAM_INTERVAL: Duration = Duration::from_millis(20);

/// How long to wait after the system has refused something (no descriptors left), so as not to
/// spin.
const PAUSE: Duration = Duration::from_millis(200);

/// How often the loop looks whether its socket file is there, and what groups do: when it is awake
/// anyway, and when nothing wakes it.
const LOOK_AWAKE: Duration = Duration::from_secs(1);
const LOOK_ASLEEP: Duration = Duration::from_secs(60);

/// Connections accepted, and requests of one client answered, before the others have their turn.
const AT_ONCE: usize = 64;

/// The state of the loop.
#[derive(Debug)]
pub(super) struct Server {
    clients: Vec<Client>,
    place: Arc<Place>,
    companions: &'static [Companion],
    remember: Remember,
    listener: Socket,
    sockets: Arc<Sockets>,
    no_accept_until: Option<Instant>,
    /// There was no memory to release the leases of clients that are gone.
    no_release_until: Option<Instant>,
    looked_at: Instant,
    look_again: Duration,
}

/// Called at each step, for what must be seen from time to time. Returns the longest time until the
/// next step, if that is limited.
pub(crate) type Remember = fn(&mut [Client]) -> Option<Duration>;

/// The listener is no longer the agent's.
struct Lost;

/// The agent's thread.
pub(super) fn run(mut server: Server) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // A limit of CPU time begins now.
        server.look();
        while server.turn().is_ok() {}
    }));
    server.end();
}

impl Server {
    pub(super) fn new(
        place: Arc<Place>,
        companions: &'static [Companion],
        remember: Remember,
        listener: Socket,
        sockets: Arc<Sockets>,
    ) -> Self {
        Self {
            clients: Vec::with_capacity(POLLED),
            place,
            companions,
            remember,
            listener,
            sockets,
            no_accept_until: None,
            no_release_until: None,
            looked_at: Instant::now(),
            look_again: LOOK_ASLEEP,
        }
    }

    /// Waits for something to happen, and deals with it.
    fn turn(&mut self) -> Result<(), Lost> {
        let now = Instant::now();
        let count = self.clients.len();
        let mut polled = [libc::pollfd { fd: -1, events: 0, revents: 0 }; POLLED];
        for (entry, client) in polled.iter_mut().zip(&self.clients) {
            *entry = client.interest();
        }
        let is_accepting = self.no_accept_until.is_none_or(|until| until <= now);
        polled[count].fd = self.listener.number();
        polled[count].events = if is_accepting { libc::POLLIN } else { 0 };
        match self.sockets.poll(&mut polled[..=count], Some(self.timeout(now))) {
            Ok(()) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(_) => {
                // Out of memory, or of descriptors under a lowered limit: it may pass, the leases
                // must not.
                std::thread::sleep(PAUSE);
                for entry in &mut polled {
                    entry.revents = 0;
                }
            }
        }
        for (at, entry) in polled[..count].iter().enumerate() {
            // A fault of ours ends the client that met it; the others go on.
            if catch_unwind(AssertUnwindSafe(|| self.serve(at, entry.revents))).is_err() {
                // Its answer may be where the fault is.
                let failing = catch_unwind(AssertUnwindSafe(|| self.clients[at].fail()));
                self.clients[at].gone |= failing.is_err();
            }
        }
        let listener = polled[count].revents;
        if listener & !libc::POLLIN != 0 || !self.listener.is_ours() {
            return Err(Lost);
        }
        if listener != 0 {
            self.accept()?;
        }
        let now = Instant::now();
        self.expire(now);
        if self.looked_at + LOOK_AWAKE <= now {
            self.looked_at = now;
            self.look();
        }
        Ok(())
    }

    fn serve(&mut self, at: usize, events: libc::c_short) {
        if events & !libc::POLLOUT != 0 {
            self.clients[at].receive();
        }
        self.clients[at].send();
        for _ in 0..AT_ONCE {
            match self.clients[at].next_line() {
                Input::Line(line) => {
                    let _step = Step::begin();
                    if memory::is_there_for_keys() {
                        let Self { clients, place, companions, .. } = self;
                        verb::answer(Asked { clients, at, place, companions }, &line);
                    } else {
                        self.clients[at].gone = true;
                    }
                }
                Input::TooLong => {
                    let message = format!("a request is longer than {MAX_LINE} bytes");
                    self.clients[at].refuse(0, WireError::new(Code::TooLong, message));
                }
                Input::Nothing => break,
            }
            self.clients[at].send();
        }
        if self.clients[at].is_streaming() && !self.clients[at].gone {
            self.clients[at].pump(Instant::now());
            self.clients[at].send();
        }
        self.clients[at].end(events & libc::POLLHUP != 0);
    }

    fn accept(&mut self) -> Result<(), Lost> {
        let own = rustix::process::geteuid().as_raw();
        for _ in 0..AT_ONCE {
            let (socket, peer) = match self.listener.accept() {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::BADF | Errno::NOTSOCK | Errno::INVAL) => return Err(Lost),
                Err(_) => break,
            };
            let _step = Step::begin();
            if !memory::is_there(memory::SOME) {
                continue;
            }
            let mut client = Client::new(socket, peer);
            let is_own = peer.uid == own && !shares_its_number(own);
            if !is_own && peer.uid != 0 {
                client.refuse(0, WireError::new(Code::Denied, denial(own, peer.uid)));
            } else if !self.has_room(peer.uid) {
                let message = format!("{MAX_CLIENTS} clients are connected, and none is idle: close one");
                client.refuse(0, WireError::new(Code::Busy, message));
            }
            // A refused client takes its answer at once or not at all.
            client.send();
            if !client.closing {
                self.clients.push(client);
            }
        }
        // The system refuses more connections, or a burst of them would take CPU time from the
        // host.
        self.no_accept_until = Some(Instant::now() + PAUSE);
        Ok(())
    }

    /// Whether there is room for a client of `uid`, after the one that has been idle longest has
    /// given up its place if need be.
    fn has_room(&mut self, uid: u32) -> bool {
        if self.clients.len() < MAX_CLIENTS {
            return true;
        }
        // A request may just have come.
        self.clients.iter_mut().for_each(Client::receive);
        let idle = self.clients.iter().enumerate();
        // No user takes a place of root's, nor the one that is kept for root. A client that never
        // said a word comes before one that did.
        let idle = idle.filter(|(_, client)| uid == 0 || client.peer.uid != 0);
        let idle =
            idle.filter_map(|(at, client)| Some((!client.is_silent(), client.idle_since()?, at))).min();
        if let Some((.., at)) = idle {
            let mut client = self.clients.remove(at);
            let message = "closed for another client: this one was idle for longest";
            client.refuse(0, WireError::new(Code::Busy, message));
            client.send();
            return true;
        }
        uid == 0 && self.clients.len() < MAX_CLIENTS + FOR_ROOT
    }

    /// Ends clients that have exhausted patience, and gives back the leases of those that are gone.
    fn expire(&mut self, now: Instant) {
        for client in &mut self.clients {
            if client.deadline().is_some_and(|d| d <= now) {
                if !client.is_busy() && !client.gone {
                    let seconds = client.patience().as_secs();
                    let message = format!("the request is not complete after {seconds} s");
                    client.refuse(0, WireError::new(Code::BadRequest, message));
                    client.send();
                }
                client.gone = true;
            }
            if client.gone {
                client.close();
            }
        }
        if self.clients.iter().any(|client| client.gone) {
            let _step = Step::begin();
            let is_there = memory::is_there_for_keys();
            self.no_release_until = (!is_there).then(|| now + PAUSE);
            if is_there {
                self.give_back();
            }
        }
    }

    /// Gives back the leases of gone clients, all in one batch. If that is refused, each lease
    /// tries again when it is dropped.
    fn give_back(&mut self) {
        let gone = self.clients.iter_mut().filter(|client| client.gone);
        let mut leases: Vec<&mut Lease> = gone.flat_map(Client::leases_mut).collect();
        if !leases.is_empty() {
            let _ = Batch::new().apply_releasing(&mut leases, |_| true);
        }
        self.clients.retain(|client| !client.gone);
    }

    /// Makes a new socket where the file of the old one was removed, as cleaners of temporary files
    /// do. Then calls `remember`.
    ///
    /// No socket under a filter, which may have come after the start, and may kill for the calls
    /// that it takes.
    fn look(&mut self) {
        let _step = Step::begin();
        if !self.place.is_there()
            && !dormouse_sys::perf::is_filtered()
            && memory::is_there(memory::SOME)
            && let Some(listener) = self.place.restore(&self.sockets)
        {
            self.listener = listener;
        }
        self.look_again =
            (self.remember)(&mut self.clients).map_or(LOOK_ASLEEP, |at_most| at_most.min(LOOK_ASLEEP));
    }

    /// For how long to wait for something to happen.
    fn timeout(&self, now: Instant) -> Duration {
        if self.clients.iter().any(Client::is_due) {
            return Duration::ZERO;
        }
        let streaming = self.clients.iter().any(Client::is_streaming).then(|| now + STREAM_INTERVAL);
        let wake = (self.clients.iter().filter(|client| !client.gone).filter_map(Client::deadline))
            .chain(self.no_accept_until.filter(|&until| until > now))
            .chain(self.no_release_until)
            .chain(streaming)
            .fold(self.looked_at + self.look_again, Instant::min);
        // Rounded up, so that the loop does not turn idly for the last microseconds.
        wake.saturating_duration_since(now) + Duration::from_millis(1)
    }

    /// Leaves nothing behind: no lease, no socket file, and no agent in the table that copies
    /// share, so that the next `init` starts one.
    fn end(mut self) {
        self.clients.iter_mut().for_each(Client::close);
        self.place.remove();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            while !memory::is_there_for_keys() {
                std::thread::sleep(PAUSE);
            }
            self.give_back();
        }));
        super::forget();
    }
}

fn denial(own: u32, peer: u32) -> String {
    let advice = match peer {
        OVERFLOW if own == OVERFLOW => {
            "; users outside of its user namespace may have that number, too, so be root inside"
        }
        // Everybody outside of its user namespace.
        OVERFLOW => {
            "; root outside of its user namespace must enter that first (nsenter --user --target PID)"
        }
        _ => "",
    };
    format!("this process belongs to uid {own}, you are uid {peer}: be that user or root{advice}")
}

#[cfg(all(test, not(any(dormouse_fallback, miri))))]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    use dormouse_protocol::{HelloRequest, OnRequest, Op, Request};
    use dormouse_testkit::{HANG, eventually, in_child};

    use super::*;
    use crate::agent::Agent;

    dormouse_keys::static_key! {
        static FAULTY: "agent.faulty" = false;
        static HELD: "agent.held" = false;
    }

    static COMPANIONS: [Companion; 1] =
        [Companion { key: "agent.faulty", is_clients: "", begin: |_| panic!("a test's"), end: |_| () }];

    static HAS_FAULT: AtomicBool = AtomicBool::new(false);

    fn remember(_: &mut [Client]) -> Option<Duration> {
        assert!(!HAS_FAULT.load(Ordering::Relaxed), "a test's");
        None
    }

    /// A client, greeted.
    struct Visitor(BufReader<UnixStream>);

    impl Visitor {
        fn of(agent: &Agent) -> Self {
            let mut visitor = Self(BufReader::new(UnixStream::connect(agent.path()).unwrap()));
            visitor.0.get_ref().set_read_timeout(Some(HANG)).unwrap();
            let answer = visitor.ask(hello());
            assert!(answer.contains("\"ok\""), "{answer}");
            visitor
        }

        /// The answer; empty if the agent has closed the connection.
        fn ask(&mut self, op: Op) -> String {
            let request = serde_json::to_string(&Request { v: 1, id: 1, op }).unwrap();
            let mut answer = String::new();
            if writeln!(self.0.get_mut(), "{request}").is_ok() {
                // An error: it was closed before it had read all.
                let _ = self.0.read_line(&mut answer);
            }
            answer
        }
    }

    fn hello() -> Op {
        HelloRequest { client: "a test".into(), notices: false }.into()
    }

    fn on(glob: &str) -> Op {
        OnRequest { glob: glob.into(), ..OnRequest::default() }.into()
    }

    #[test]
    fn a_panic_ends_the_client_that_met_it() {
        in_child(|| {
            assert!(!dormouse_keys::unlikely!(FAULTY));
            let agent = crate::agent::start(&COMPANIONS, remember).unwrap();
            let (mut other, mut faulty) = (Visitor::of(&agent), Visitor::of(&agent));
            let answer = faulty.ask(on("agent.faulty"));
            assert!(answer.contains("\"fault\"") && answer.contains("standard error"), "{answer}");
            assert_eq!(faulty.0.read(&mut [0]).unwrap(), 0, "the connection has ended");
            assert!(other.ask(hello()).contains("\"ok\""), "it goes on");
            assert!(!FAULTY.is_enabled(), "the lease has ended with its client");
        });
    }

    #[test]
    fn a_panic_between_requests_ends_the_agent() {
        in_child(|| {
            assert!(!dormouse_keys::unlikely!(HELD));
            let agent = crate::agent::start(&[], remember).unwrap();
            let mut visitor = Visitor::of(&agent);
            assert!(visitor.ask(on("agent.held")).contains("\"ok\"") && HELD.is_enabled());
            HAS_FAULT.store(true, Ordering::Relaxed);
            // The agent looks around about once a second while it is awake.
            eventually(|| visitor.ask(hello()).is_empty());
            eventually(|| !HELD.is_enabled());
            HAS_FAULT.store(false, Ordering::Relaxed);
            eventually(|| crate::agent::start(&[], remember).unwrap().path().exists());
            let agent = crate::agent::start(&[], remember).unwrap();
            assert!(Visitor::of(&agent).ask(on("agent.held")).contains("\"ok\"") && HELD.is_enabled());
        });
    }

    /// A request that is answered briefly.
    const OFF: &str = "{\"v\":1,\"id\":2,\"op\":\"off\",\"glob\":\"no.such\"}\n";
    const HELLO: &str = "{\"v\":1,\"id\":1,\"op\":\"hello\",\"client\":\"a test\"}\n";

    #[test]
    fn requests_that_have_come_are_not_waited_for() {
        const REQUESTS: usize = 3 * AT_ONCE;
        in_child(|| {
            let sockets = Sockets::new();
            let (place, listener) = Place::open(&sockets).unwrap();
            let stream = UnixStream::connect(place.name()).unwrap();
            stream.set_read_timeout(Some(HANG)).unwrap();
            let mut stream = BufReader::new(stream);
            let mut server = Server::new(Arc::new(place), &[], |_| None, listener, sockets);
            stream.get_mut().write_all([HELLO, &OFF.repeat(REQUESTS - 1)].concat().as_bytes()).unwrap();
            // The first turn accepts it.
            assert!(server.turn().is_ok());
            for answered in (AT_ONCE..=REQUESTS).step_by(AT_ONCE) {
                assert!(server.turn().is_ok());
                for _ in 0..AT_ONCE {
                    assert!(stream.read_line(&mut String::new()).unwrap() > 0);
                }
                let waits = server.timeout(Instant::now()) > Duration::ZERO;
                assert_eq!(waits, answered == REQUESTS, "after {answered} answers");
            }
        });
    }

    #[test]
    fn a_client_that_only_listens_is_answered() {
        in_child(|| {
            let agent = crate::agent::start(&[], |_| None).unwrap();
            let answers = |requests: &str| {
                let mut stream = UnixStream::connect(agent.path()).unwrap();
                stream.set_read_timeout(Some(HANG)).unwrap();
                stream.write_all(requests.as_bytes()).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                BufReader::new(stream).lines().map(Result::unwrap).count()
            };
            assert_eq!(answers(""), 0);
            assert_eq!(answers(&[HELLO, OFF].concat()), 2);
            assert_eq!(answers(&[HELLO, &OFF.repeat(3 * AT_ONCE)].concat()), 1 + 3 * AT_ONCE);
            assert_eq!(answers(&[HELLO, OFF, "{\"v\":1,"].concat()), 2, "half a request has no answer");
        });
    }
}
