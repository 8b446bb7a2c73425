//! The agent: a thread in the service that answers the `dormouse` command.
//!
//! It listens on a Unix socket in a directory that is its user's alone, speaks [`crate::wire`], and holds the
//! leases of those who switch keys on and stay. (What they leave on for a time is held and ended by the keys'
//! own timer, whatever becomes of the agent.) One thread serves all clients from one `poll` loop: it waits on
//! nothing else, so a client that stalls, floods or dies harms itself only.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process, so that the host's handlers run on the host's
//! threads. It takes no lock of the host's. If it should panic, the panic ends with it, and the keys that its clients
//! hold go off. A forked child has neither the thread nor its sockets ([`descriptors`]).

mod client;
mod counting;
mod descriptors;
mod holders;
mod host;
mod ops;
mod place;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dormouse_sys::loader::PinError;
use dormouse_sys::rendezvous::{self, AgentPlace, Conflict, Table};

pub(crate) use place::Place;

/// A running agent. It runs as long as the process does: dropping this stops nothing.
#[derive(Debug, Clone)]
pub struct Agent {
    path: PathBuf,
}

impl Agent {
    /// The socket on which the agent listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is wrong with settings that the environment gives (`DORMOUSE_KEYS`, `DORMOUSE_CLOCK`), one sentence each:
    /// the default is used instead. For the service's log; `dormouse doctor` says the same.
    pub fn warnings(&self) -> Vec<String> {
        let clock = dormouse_clock::complaint().map(str::to_owned);
        dormouse_keys::Protocol::complaint().into_iter().chain(clock).collect()
    }
}

/// Why there is no agent. Everything else of dormouse works without it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// No directory for the socket.
    #[error("no directory for the agent's socket: {}; set DORMOUSE_RUNTIME_DIR to a directory that this user can write to", tried.join("; "))]
    NoDirectory {
        /// What was tried, and why it would not do.
        tried: Vec<String>,
    },
    /// The socket could not be made.
    #[error("cannot listen on {}: {source}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another copy of dormouse leads this process, and this one cannot follow it.
    #[error(transparent)]
    Copies(#[from] Conflict),
    /// The object that this copy of dormouse is in is being unloaded.
    #[error(transparent)]
    Leaving(#[from] PinError),
    /// A handler interrupted this thread in the middle of `init`.
    #[error("this thread is starting the agent already: do not call `init` from a signal handler")]
    Reentrant,
    /// The thread could not be started.
    #[error("cannot start the agent's thread: {source}; raise the limit of threads (ulimit -u, pids.max)")]
    Thread {
        /// Why not.
        source: io::Error,
    },
}

/// Starts the agent, unless it runs already.
///
/// The socket is `$DORMOUSE_RUNTIME_DIR/dormouse/<pid>.sock`, else `$XDG_RUNTIME_DIR/dormouse/<pid>.sock`,
/// else `/tmp/dormouse-<uid>/<pid>.sock`. Only root and the process's own user may talk to it.
///
/// There is one agent in a process, however many copies of dormouse it holds: that of the copy which asked
/// first. It lists and switches the keys of all, and traces the probes of all; groups are a copy's own.
///
/// Where the environment has `DORMOUSE_COUNT=task-clock,page-faults`, these events are counted for all groups from here
/// on; `dormouse doctor` tells what came of it.
///
/// # Cost
///
/// A few system calls and one thread, which then sleeps until somebody connects. What is slow to
/// prepare (the membarrier registration, the clock's calibration) is done on that thread, some time later: a process
/// that is about to give up rights calls [`dormouse_keys::prepare`] itself first. With `DORMOUSE_COUNT` also what
/// [`count`](crate::count) costs, here.
///
/// # Errors
///
/// When there is no directory or socket, or this copy of dormouse cannot take part (see [`InitError`]). The service goes on
/// without an agent; what `DORMOUSE_COUNT` asks for is counted all the same.
pub fn init() -> Result<Agent, InitError> {
    crate::environment::count();
    let table = rendezvous::table()?;
    if let (_, Some(agent)) = look(table)? {
        return Ok(agent);
    }
    // A thread and an exit handler run our code from now on. Asked before the lock: a constructor that calls this
    // has them the other way round.
    rendezvous::stay()?;
    let (seat, running) = look(table)?;
    if let Some(agent) = running {
        return Ok(agent);
    }
    descriptors::close_in_children();
    let (place, listener) = Place::open()?;
    let place = Arc::new(place);
    let served = Arc::clone(&place);
    dormouse_sys::signals::with_all_blocked(|| {
        std::thread::Builder::new()
            .name("dormouse".into())
            .stack_size(512 * 1024)
            .spawn(move || server::run(listener, &served))
    })
    .map_err(|source| {
        place.remove();
        InitError::Thread { source }
    })?;
    place::remove_at_exit(&place);
    let agent = Agent { path: place.socket().to_owned() };
    seat.set(std::process::id(), agent.path());
    Ok(agent)
}

/// The agent of this process, if it has one: a forked child is another process.
fn look(table: &'static Table) -> Result<(AgentPlace, Option<Agent>), InitError> {
    let seat = table.agent().map_err(|_| InitError::Reentrant)?;
    let running = seat.path(std::process::id()).map(|path| Agent { path });
    Ok((seat, running))
}
