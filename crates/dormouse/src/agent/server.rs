//! The poll loop.
//!
//! # Invariants
//!
//! 1. At most [`MAX_CLIENTS`] connections; a further one takes the place of the one that has been silent longest, or
//!    is told so and closed.
//! 2. A client's leases end with the client, all of them with the loop. What a client left on for a time is not
//!    here: the keys' timer ends it.

use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use dormouse_keys::{Batch, Lease};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::Place;
use super::client::{Client, Input};
use super::descriptors::Kept;
use crate::wire::{Code, MAX_LINE};

/// Connections at once.
pub(super) const MAX_CLIENTS: usize = 32;

/// How often a running trace looks for records.
const TRACE_INTERVAL: Duration = Duration::from_millis(20);

/// How long to leave alone what the system has refused (no descriptors left), so as not to spin.
const PAUSE: Duration = Duration::from_millis(200);

/// Connections accepted, and requests of one client answered, before the others have their turn.
const AT_ONCE: usize = 64;

/// What the loop holds.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) clients: Vec<Client>,
    no_accept_until: Option<Instant>,
}

/// The agent's thread.
pub(super) fn run(listener: Kept<UnixListener>, place: &Place) {
    let served = catch_unwind(AssertUnwindSafe(|| {
        // Slow the first time, so not on the host's thread. A refusal is met again, and reported, by who
        // switches keys.
        let _ = dormouse_keys::prepare();
        dormouse_clock::tier();
        let mut server = Server::default();
        loop {
            if let Err(errno) = server.turn(&listener)
                && errno != Errno::INTR
            {
                // Out of memory, or of descriptors under a lowered limit: it may pass, the leases must not.
                std::thread::sleep(PAUSE);
                server.expire(Instant::now());
            }
        }
    }));
    // Whatever ended the loop, leases have gone with the server, and nobody shall find a dead socket.
    drop(served);
    drop(listener);
    place.remove();
}

impl Server {
    /// Waits for something to happen, and deals with it.
    fn turn(&mut self, listener: &Kept<UnixListener>) -> Result<(), Errno> {
        let now = Instant::now();
        let accepting = self.no_accept_until.is_none_or(|until| until <= now);
        let mut places: Vec<PollFd<'_>> = self.clients.iter().map(interest).collect();
        if accepting {
            places.push(PollFd::new(listener, PollFlags::IN));
        }
        poll(&mut places, self.timeout(now).as_ref())?;
        let ready: Vec<PollFlags> = places.iter().map(PollFd::revents).collect();
        drop(places);

        for (at, ready) in ready.iter().take(self.clients.len()).enumerate() {
            let readable = ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
            self.serve(at, readable);
        }
        if accepting && ready.last().is_some_and(|r| r.contains(PollFlags::IN)) {
            self.accept(listener);
        }
        self.expire(Instant::now());
        Ok(())
    }

    fn serve(&mut self, at: usize, readable: bool) {
        if readable {
            self.clients[at].receive();
        }
        self.clients[at].send();
        for _ in 0..AT_ONCE {
            match self.clients[at].next_line() {
                Input::Line(line) => self.request(at, &line),
                Input::TooLong => {
                    let message = format!("a request is longer than {MAX_LINE} bytes");
                    self.clients[at].refuse(0, Code::TooLong, message);
                }
                Input::Nothing => break,
            }
            self.clients[at].send();
        }
        if self.clients[at].tracing.is_some() {
            self.clients[at].pump(Instant::now());
            self.clients[at].send();
        }
    }

    fn accept(&mut self, listener: &Kept<UnixListener>) {
        for _ in 0..AT_ONCE {
            match Kept::new(|| listener.accept().map(|(stream, _)| stream)) {
                Ok(stream) => {
                    let Ok(mut client) = Client::new(stream) else { continue };
                    let own = rustix::process::geteuid().as_raw();
                    if client.peer.uid != own && client.peer.uid != 0 {
                        let message = format!(
                            "this process belongs to uid {own}, you are uid {}: be that user or root",
                            client.peer.uid
                        );
                        client.refuse(0, Code::Denied, message);
                    } else if self.clients.len() >= MAX_CLIENTS && !self.make_room() {
                        client.refuse(
                            0,
                            Code::Busy,
                            format!("{MAX_CLIENTS} clients are connected: close one"),
                        );
                    }
                    // A refused client takes its answer at once or not at all.
                    client.send();
                    if !client.closing {
                        self.clients.push(client);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(_) => {
                    self.no_accept_until = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }

    /// Closes the connection that has been silent longest; false: none is.
    fn make_room(&mut self) -> bool {
        // What it says may just have come.
        self.clients.iter_mut().filter(|client| client.is_silent()).for_each(Client::receive);
        // They stand in the order in which they came.
        let Some(at) = self.clients.iter().position(Client::is_silent) else { return false };
        let mut client = self.clients.remove(at);
        client.refuse(0, Code::Busy, "closed for somebody else: no hello came");
        client.send();
        true
    }

    /// Ends what has come to its end: exhausted patience, gone clients with what they hold.
    fn expire(&mut self, now: Instant) {
        for client in &mut self.clients {
            if client.deadline().is_some_and(|d| d <= now) {
                if !client.is_busy() && !client.gone {
                    let seconds = client.patience().as_secs();
                    let message = format!("the request is not complete after {seconds} s");
                    client.refuse(0, Code::BadRequest, message);
                    client.send();
                }
                client.gone = true;
            }
        }
        let mut ended: Vec<Client> = self.clients.extract_if(.., |client| client.gone).collect();
        let mut leases: Vec<&mut Lease> = ended.iter_mut().flat_map(Client::leases_mut).collect();
        if !leases.is_empty() {
            // All in one batch. If that is refused, each goes its own way when it is dropped.
            let _ = Batch::new().apply_releasing(&mut leases, |_| true);
        }
    }

    fn timeout(&self, now: Instant) -> Option<Timespec> {
        let tracing = self.clients.iter().any(|c| c.tracing.is_some()).then(|| now + TRACE_INTERVAL);
        let wake = (self.clients.iter().filter_map(Client::deadline))
            .chain(self.no_accept_until.filter(|&until| until > now))
            .chain(tracing)
            .min()?;
        // Rounded up, so that the loop does not turn idly for the last microseconds.
        let wait = wake.saturating_duration_since(now) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }
}

fn interest(client: &Client) -> PollFd<'_> {
    let mut flags = PollFlags::empty();
    if client.is_listening() {
        flags |= PollFlags::IN;
    }
    if client.is_busy() {
        flags |= PollFlags::OUT;
    }
    PollFd::new(&client.stream, flags)
}
