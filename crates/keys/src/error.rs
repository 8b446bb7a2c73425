//! Why a batch was refused. Whatever it says, the text and the keys are as they were.

use std::fmt;
use std::io;
use std::time::Duration;

use dormouse_sys::loader::PinError;
use dormouse_sys::lock::Held;
use dormouse_sys::masks::Blocking;
use dormouse_sys::rendezvous::Conflict;

/// Why a batch was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A site does not hold what it should: a debugger, a uprobe or another patcher was there.
    #[error(
        "site {addr:#x} of key {key} holds {found:02x?} instead of {expected:02x?}: {}; it is left alone",
        suspect(found[0])
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
    /// A site's code is mapped so that a write would change the file and every process that maps it.
    #[error(
        "site {addr:#x} of key {key} is in shared memory, where a write would reach other processes: map the code privately (MAP_PRIVATE)"
    )]
    SharedText {
        /// The key's name.
        key: &'static str,
        /// The site's address.
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
    /// No way to write code is left.
    #[error("code cannot be written: mprotect: {mprotect}; /proc/self/mem: {memory}; {setting}")]
    Unwritable {
        /// Why not by making pages writable.
        mprotect: io::Error,
        /// Why not through `/proc/self/mem`.
        memory: io::Error,
        /// The setting that is the easiest to change.
        setting: &'static str,
    },
    /// Writing failed half-way, and so did putting back: some sites keep what was written. Their keys read as
    /// before.
    #[error("{source}; {sites} sites could not be put back and keep what was written")]
    HalfWritten {
        /// How many.
        sites: usize,
        /// What failed.
        source: Box<Error>,
    },
    /// After [`Error::HalfWritten`] by int3 there is no further batch by int3: threads may be trapping still.
    #[error("the int3 protocol is refused: sites of a failed batch still hold an int3; restart the process")]
    Stuck,
    /// Somebody has taken SIGTRAP from us since, and need not pass on to us what is ours.
    #[error(
        "the int3 protocol is refused: {} has taken SIGTRAP; install it before dormouse's (dormouse_keys::prepare() with DORMOUSE_KEYS=int3, or the first such batch), or use the flip protocol",
        taker(handler.as_ref())
    )]
    SignalTaken {
        /// The handler's address and the file name of the object that it lies in (empty: in none); `None`: the
        /// signal has its default action again or is ignored.
        handler: Option<(usize, String)>,
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
    /// A time that is none, or too long.
    #[error(
        "a key cannot be held on for {asked:?}: give more than nothing and at most {} days, \
         or enable it to leave it on",
        longest.as_secs() / 86_400
    )]
    HoldLength {
        /// The time.
        asked: Duration,
        /// The longest that can be.
        longest: Duration,
    },
    /// A batch over another call of the same thread into this crate, which could only wait for itself.
    #[error(
        "this thread is in the middle of a batch, a listing or a fork: a signal handler must not start a batch"
    )]
    Reentrant,
    /// A site of an object that has come must be changed by int3, by a copy of dormouse that might leave.
    #[error(
        "its sites take int3, for which this copy of dormouse does not stay loaded yet; the next batch sees to it"
    )]
    Passing,
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

impl Error {
    /// The name of the key whose site is in the way, if it is one key's.
    pub(crate) fn key(&self) -> Option<&str> {
        match self {
            Self::UnexpectedText { key, .. } | Self::NotText { key, .. } | Self::SharedText { key, .. } => {
                Some(key)
            }
            Self::HalfWritten { source, .. } => source.key(),
            _ => None,
        }
    }

    /// This error, outside of the patch lock, where the loader can be asked for names.
    pub(crate) fn outside(self) -> Self {
        match self {
            Self::SignalTaken { handler: Some((address, _)) } => {
                Self::SignalTaken { handler: Some((address, dormouse_sys::loader::object_of(address))) }
            }
            other => other,
        }
    }

    /// This error, after which so many sites could not be put back.
    #[cfg(dormouse_patching)]
    pub(crate) fn with_left(self, sites: usize) -> Self {
        if sites == 0 { self } else { Self::HalfWritten { sites, source: Box::new(self) } }
    }
}

/// Who writes such a first byte.
fn suspect(first: u8) -> &'static str {
    match first {
        0xcc => "cc is a breakpoint: a debugger's, a uprobe's (perf probe, bpftrace) or another patcher's",
        0xe8 => "a call: the kernel's form of a uprobe on a nop, or a hook of another patcher",
        _ => "something else has patched it (a binary rewriter, a hook, a removed uprobe)",
    }
}

fn taker(handler: Option<&(usize, String)>) -> String {
    match handler {
        None => "whoever reset it to its default action or to being ignored".to_owned(),
        Some((address, object)) if object.is_empty() => {
            format!("a handler at {address:#x}")
        }
        Some((address, object)) => format!("a handler at {address:#x} in {object}"),
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
