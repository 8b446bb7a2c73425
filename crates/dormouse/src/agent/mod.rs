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
mod descriptors;
mod holders;
mod host;
mod ops;
mod place;
mod server;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use place::Place;

/// A running agent. It runs as long as the process does: dropping this stops nothing.
#[derive(Clone)]
pub struct Agent {
    place: Arc<Place>,
}

impl Agent {
    /// The socket on which the agent listens.
    pub fn path(&self) -> &Path {
        self.place.socket()
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("path", &self.path()).finish()
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
    /// The thread could not be started.
    #[error("cannot start the agent's thread: {source}; raise the limit of threads (ulimit -u, pids.max)")]
    Thread {
        /// Why not.
        source: io::Error,
    },
}

/// The agent of this process, with the process id that started it: a forked child is another process.
static AGENT: Mutex<Option<(u32, Agent)>> = Mutex::new(None);

/// Starts the agent, unless it runs already.
///
/// The socket is `$DORMOUSE_RUNTIME_DIR/dormouse/<pid>.sock`, else `$XDG_RUNTIME_DIR/dormouse/<pid>.sock`,
/// else `/tmp/dormouse-<uid>/<pid>.sock`. Only root and the process's own user may talk to it.
///
/// # Cost
///
/// A few system calls and one thread, which then sleeps until somebody connects. What is slow to
/// prepare (the membarrier registration, the clock's calibration) is done on that thread, some time later: a process
/// that is about to give up rights calls [`dormouse_keys::prepare`] itself first.
pub fn init() -> Result<Agent, InitError> {
    let mut started = AGENT.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((by, agent)) = &*started
        && *by == pid
    {
        return Ok(agent.clone());
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
    let agent = Agent { place };
    *started = Some((pid, agent.clone()));
    Ok(agent)
}
