//! Why a batch was refused. Whatever it says, the text and the keys are as they were.

use std::fmt;
use std::io;

use dormouse_sys::loader::PinError;
use dormouse_sys::lock::Held;
use dormouse_sys::rendezvous::Conflict;
use dormouse_sys::trap::Blocking;

/// Why a batch was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A site does not hold what it should: a debugger, a uprobe or another patcher was there.
    #[error(
        "site {addr:#x} of key {key} holds {found:02x?} instead of {expected:02x?}: \
         something else has patched it (a debugger's breakpoint, a uprobe, a binary rewriter)"
    )]
    UnexpectedText {
        /// The key's name.
        key: &'static str,
        /// The site's address.
        addr: usize,
        /// What was to be found.
        expected: [u8; 5],
        /// What was found.
        found: [u8; 5],
    },
    /// None of a key's sites lies in readable code of a loaded object, so none can be checked or written.
    #[error("key {key} cannot be switched: its site {addr:#x} is not in readable code of a loaded object")]
    NotText {
        /// The key's name.
        key: &'static str,
        /// The address of its first site.
        addr: usize,
    },
    /// The kernel refused what patching needs.
    #[error("{what} was refused: {source}; {setting}")]
    Denied {
        /// The refused operation.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// What to change.
        setting: &'static str,
    },
    /// Threads block SIGTRAP, and the kernel would kill the process if one of them ran into an `int3`.
    #[error(
        "the int3 protocol is refused: SIGTRAP is blocked by {}; unblock it there, or use the flip protocol",
        list(threads)
    )]
    TrapsBlocked {
        /// The threads.
        threads: Vec<Blocking>,
    },
    /// A key holds more leases than can be counted.
    #[error("key {key} cannot take another lease: {leases} are held")]
    TooManyLeases {
        /// The key's name.
        key: &'static str,
        /// Leases held.
        leases: u32,
    },
    /// A batch inside a batch of the same thread, which could only wait for itself.
    #[error("a batch is under way on this thread; a signal handler must not start another")]
    Reentrant,
    /// The object that a key or the library lives in is being unloaded.
    #[error("{0}; do not unload an object while its keys are in use")]
    Leaving(#[from] PinError),
    /// Another copy of dormouse leads this process, and this one cannot follow it.
    #[error(transparent)]
    Copies(#[from] Conflict),
}

impl From<Held> for Error {
    fn from(_: Held) -> Self {
        Self::Reentrant
    }
}

fn list(threads: &[Blocking]) -> String {
    let names: Vec<String> = threads.iter().map(|t| format!("thread {} ({})", t.tid, t.name)).collect();
    names.join(", ")
}

/// A lease that could not be given back, with the reason.
#[derive(Debug)]
pub struct ReleaseError {
    /// The lease, still held.
    pub lease: crate::Lease,
    /// Why.
    pub error: Error,
}

impl fmt::Display for ReleaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lease on {} keys is still held: {}", self.lease.keys().len(), self.error)
    }
}

impl std::error::Error for ReleaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
