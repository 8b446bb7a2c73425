//! Single requests to an agent: over a connection of this command, or over the one that
//! `dormouse serve` has, where they come one after the other between its own.
//!
//! A shared connection is for verbs that leave nothing behind on it. A verb has one of its own if
//! it has something counted, sampled, watched or traced: that ends with the connection, and must
//! end with the verb.

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "nobody shares a connection"))]

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, sync_channel};
use std::time::Duration;

use dormouse_protocol::Verb;

use super::Client;
use super::silent;
use crate::exit::Outcome;
use crate::exit::{Failure, Report};
use crate::target::describe;
use crate::target::{Finder, Process, Target};

/// The process that a verb is about.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) target: Target,
    shared: Option<Shared>,
}

/// An agent that answers single requests.
#[derive(Debug)]
pub(crate) enum Session {
    Own(Box<Client>),
    Shared(Shared, Duration),
}

/// The connection of a server to an agent, which a thread of its own uses.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) process: Process,
    pub(crate) errands: Sender<Errand>,
    /// Each request that the thread has not begun has a clone of it.
    pub(crate) pending: Arc<()>,
}

/// The most requests that wait for the thread. (A service that was stopped keeps it busy.)
const MOST_PENDING: usize = 128;

/// A request for that thread, which gives the connection or tells why there is none. Returns the
/// failure after which the connection cannot be used again.
pub(crate) struct Errand(Box<Run>);

type Run = dyn FnOnce(Result<&mut Client, &Report>) -> Option<Failure> + Send;

impl Subject {
    /// The process that somebody at the terminal means.
    pub(crate) fn of(target: &Target) -> Subject {
        Subject { target: target.clone(), shared: None }
    }

    /// The process of a shared connection.
    pub(crate) fn shared(shared: Shared) -> Subject {
        let target = Target::Exact(shared.process.pid, shared.process.start_ticks);
        Subject { target, shared: Some(shared) }
    }

    /// Its agent, which it must have.
    pub(crate) fn session(&self, patience: Duration) -> Outcome<Session> {
        if let Some(shared) = &self.shared {
            return Ok(Session::Shared(shared.clone(), patience));
        }
        let (client, _) = Client::open(&self.target, patience)?;
        Ok(Session::Own(Box::new(client)))
    }

    /// The process, and its agent if it has one.
    pub(crate) fn look(&self, patience: Duration) -> Outcome<(Process, Option<Session>)> {
        if let Some(shared) = &self.shared {
            return Ok((shared.process.clone(), Some(Session::Shared(shared.clone(), patience))));
        }
        let finder = Finder::new();
        let found = finder.look(&self.target)?;
        if !found.has_agent() {
            return Ok((found.process, None));
        }
        let (client, _) = Client::reach(&finder, &found, patience)?;
        Ok((found.process, Some(Session::Own(Box::new(client)))))
    }
}

impl Session {
    /// The process in our own namespace.
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Session::Own(client) => client.pid,
            Session::Shared(shared, _) => shared.process.pid,
        }
    }

    /// `teaparty (process 12)`, for messages.
    pub(crate) fn who(&self) -> String {
        match self {
            Session::Own(client) => client.who.clone(),
            Session::Shared(shared, _) => describe(&shared.process),
        }
    }

    /// Asks, and waits for the answer for as long as patience lasts.
    pub(crate) fn call<V: Verb>(&mut self, request: V) -> Outcome<V::Answer> {
        self.with(|client| client.call(request))
    }

    /// Calls the operation as [`Session::call`] does; `None` if the agent does not support it.
    pub(crate) fn call_known<V: Verb>(&mut self, request: V) -> Outcome<Option<V::Answer>> {
        self.with(|client| client.knows::<V>().then(|| client.call(request)).transpose())
    }

    fn with<T: Send + 'static>(
        &mut self,
        ask: impl FnOnce(&mut Client) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        match self {
            Session::Own(client) => ask(client),
            Session::Shared(shared, patience) => shared.with(*patience, ask),
        }
    }
}

impl Shared {
    fn with<T: Send + 'static>(
        &self,
        patience: Duration,
        ask: impl FnOnce(&mut Client) -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        if Arc::strong_count(&self.pending) > MOST_PENDING {
            let who = describe(&self.process);
            return Err(Failure::failed(format!("{who} has {MOST_PENDING} requests to answer")));
        }
        let pending = Arc::clone(&self.pending);
        let (answer, answered) = sync_channel(1);
        let here = Arc::new(());
        let is_here = Arc::downgrade(&here);
        let errand = Errand::new(move |client| {
            drop(pending);
            // A service that was stopped is not asked for what nobody waits for any more.
            is_here.upgrade()?;
            let result = match client {
                Ok(client) => ask(client),
                Err(report) => Err(Failure::Said(Box::new(report.clone()))),
            };
            let broken = result.as_ref().err().and_then(Failure::breaks);
            let _ = answer.send(result);
            broken
        });
        let gone = || Failure::failed(format!("{} ended, or closed the connection", describe(&self.process)));
        self.errands.send(errand).map_err(|_| gone())?;
        match answered.recv_timeout(patience) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                Err(silent(&describe(&self.process), "given no answer", patience))
            }
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

impl Errand {
    pub(crate) fn new(
        run: impl FnOnce(Result<&mut Client, &Report>) -> Option<Failure> + Send + 'static,
    ) -> Errand {
        Errand(Box::new(run))
    }

    /// Runs it on the thread of the connection.
    pub(crate) fn run(self, client: Result<&mut Client, &Report>) -> Option<Failure> {
        (self.0)(client)
    }
}
