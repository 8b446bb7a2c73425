//! The agent: a thread in the service that answers the `dormouse` command.
//!
//! It listens on a Unix socket in a directory that belongs to its user alone, speaks
//! [`dormouse_protocol`], and holds the leases of connected clients that have switched keys on.
//! (The keys' own timer holds and ends timed leases, independently of the agent.) One thread serves
//! all clients from one `poll` loop. It waits for no client, so one that stalls, floods or dies
//! harms only itself. Apart from `poll`, it waits only for threads of this process: those in a
//! batch or in the loader, those that change what is counted, the one that arms watches, and that
//! of its sockets.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process, so that the host's handlers run on
//! the host's threads. It takes no lock of the host's. Its sockets are in no table of the host's
//! ([`door`]), and where they must be, it uses no number that has become the host's
//! ([`descriptors`]). A client for which there is no memory is dropped ([`crate::core::memory`]).
//! If the thread panics, or its socket is taken, it ends, and the keys that its clients hold go
//! off: the next [`init`] starts another. A forked child has neither the thread nor its sockets.

mod client;
mod descriptors;
mod door;
mod output;
mod place;
pub(crate) mod request;
mod server;
mod state;
mod verb;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dormouse_sys::loader::PinError;
use dormouse_sys::rendezvous::{self, AgentPlace, Conflict, Table};

use self::descriptors::Sockets;
use self::place::Place;
use self::server::{Remember, Server};

pub(crate) use self::client::{Client, Stream};
pub(crate) use self::descriptors::Peer;
pub(crate) use self::output::Output;
pub(crate) use self::state::ClientState;
pub(crate) use self::verb::{Answered, Asked, Companion};

/// The stack of the agent's thread.
const STACK: usize = 512 * 1024;

/// A running agent. It runs as long as the process does: dropping this does not stop it.
///
/// ```no_run
/// match dormouse::init() {
///     Ok(agent) => {
///         eprintln!("dormouse listens on {}", agent.path().display());
///         agent.warnings().iter().for_each(|warning| eprintln!("{warning}"));
///     }
///     // The service goes on.
///     Err(why) => eprintln!("dormouse is off: {why}"),
/// }
/// ```
#[derive(Debug, Clone)]
pub struct Agent {
    path: PathBuf,
    config_error: Option<String>,
}

impl Agent {
    /// The socket on which the agent listens: a file, or `@` and an abstract name if no directory
    /// is usable.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The fault of the place of its socket.
    pub(crate) fn config_error(&self) -> Option<&str> {
        self.config_error.as_deref()
    }
}

/// Why there is no agent. Everything else in dormouse works without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// The environment has turned dormouse off (`DORMOUSE=off`).
    #[error("{}", dormouse_sys::environment::OFF)]
    Off,
    /// No place for the socket.
    #[error("no place for the agent's socket: {}", tried.join("; "))]
    NoPlace {
        /// Each place that was tried, and its fault.
        tried: Vec<String>,
    },
    /// Another copy of dormouse leads this process, and this one cannot follow it.
    #[error(transparent)]
    Copies(#[from] Conflict),
    /// The object that contains this copy of dormouse is being unloaded.
    #[error(transparent)]
    Leaving(#[from] PinError),
    /// A signal handler interrupted this thread in the middle of `init`.
    #[error("this thread is starting the agent already: do not call `init` from a signal handler")]
    Reentrant,
    /// The thread could not be started.
    #[error("cannot start the agent's thread: {source}; raise the limit of threads (ulimit -u, pids.max)")]
    Thread {
        /// Why not.
        source: io::Error,
    },
}

/// Starts the agent, unless it runs already: [`init`](crate::init) for the rest.
///
/// The agent calls `remember` whenever it looks whether its socket file is there.
pub(crate) fn start(companions: &'static [Companion], remember: Remember) -> Result<Agent, InitError> {
    let table = rendezvous::table()?;
    if let (_, Some(agent)) = look(table)? {
        return Ok(agent);
    }
    // A thread and an exit handler run our code from now on. Before the lock: a constructor that
    // calls this has the loader's lock first.
    dormouse_sys::loader::pin_self()?;
    prepare();
    let (entry, running) = look(table)?;
    if let Some(agent) = running {
        return Ok(agent);
    }
    let sockets = Sockets::new();
    let (place, listener) = Place::open(&sockets)?;
    let place = Arc::new(place);
    let server = Server::new(Arc::clone(&place), companions, remember, listener, sockets);
    dormouse_sys::signals::spawn("dormouse", STACK, move || server::run(server)).map_err(|source| {
        place.remove();
        InitError::Thread { source }
    })?;
    place::remove_at_exit(&place);
    let config_error = place.config_error();
    let agent = Agent { path: place.name().to_owned(), config_error };
    entry.set(std::process::id(), agent.path());
    Ok(agent)
}

/// Does what a client's request, or the host's first budget, would do: by then a filter may kill
/// the thread that does it, and a thread that finds no memory when it begins ends the process. The
/// first thread that needs a step which fails now tries it again, and gets the refusal.
fn prepare() {
    // A filter that is there already may kill, and no client has asked for anything yet.
    if !dormouse_sys::perf::is_filtered() {
        // Before there are threads: with several, the kernel has the process wait.
        let _ = dormouse_keys::prepare();
        dormouse_clock::prepare();
    }
    let _ = dormouse_keys::start_timer();
    let _ = dormouse_clock::start_timer();
}

/// The agent of this process, if it has one: a forked child is another process.
fn look(table: &'static Table) -> Result<(AgentPlace, Option<Agent>), InitError> {
    let entry = table.agent().map_err(|_| InitError::Reentrant)?;
    let running = entry.path(std::process::id()).map(|path| Agent { path, config_error: None });
    Ok((entry, running))
}

/// Says that this process has no agent any more.
fn forget() {
    if let Ok(entry) = rendezvous::table().map(Table::agent)
        && let Ok(entry) = entry
    {
        entry.clear();
    }
}
