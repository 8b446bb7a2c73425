//! Why a batch was refused. The keys are as they were, whatever the reason; so is the text, except
//! after [`Error::HalfWritten`].

use std::collections::TryReserveError;
use std::io;
use std::time::Duration;

use dormouse_sys::loader::PinError;
use dormouse_sys::masks::Blocking;
use dormouse_sys::process::lock::Reentrant;
use dormouse_sys::rendezvous::Conflict;

use crate::arch::LENGTH;
use crate::key::Key;

/// Why a batch was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A site does not hold what it should: a debugger, a uprobe or another patcher was there.
    #[error(
        "site {addr:#x} of key {key} holds {found:02x?} instead of {expected:02x?}: {}; it is left alone",
        suspect(*found)
    )]
    UnexpectedText {
        /// The key's name.
        key: &'static str,
        /// The site's address.
        addr: usize,
        /// The bytes of the instruction that belongs there.
        expected: [u8; LENGTH],
        /// The bytes that are there.
        found: [u8; LENGTH],
    },
    /// None of a key's sites lies in readable code of a loaded object, so none can be checked or
    /// written.
    #[error("key {key} cannot be switched: its site {addr:#x} is not in readable code of a loaded object")]
    NotText {
        /// The key's name.
        key: &'static str,
        /// The address of its first site.
        addr: usize,
    },
    /// A site's code is mapped so that a write would change the file and every process that maps
    /// it.
    #[error(
        "site {addr:#x} of key {key} is in shared memory, where a write would reach other processes: map the code privately (MAP_PRIVATE)"
    )]
    SharedText {
        /// The key's name.
        key: &'static str,
        /// The site's address.
        addr: usize,
    },
    /// A site's branch would lead farther than its instruction can.
    #[error(
        "site {addr:#x} of key {key} cannot branch to {target:#x}: on this processor that is too far; link the cold part of its function nearer to the rest (no splitting of functions, or a linker script)"
    )]
    TooFar {
        /// The key's name.
        key: &'static str,
        /// The site's address.
        addr: usize,
        /// Where it would branch to.
        target: usize,
    },
    /// A page of the object is gone: its file was cut short in place, or its file system is out of
    /// reach. The object cannot be switched any more; other objects' keys can.
    #[error(
        "{} cannot be read at {addr:#x}: its file was cut short or is out of reach; keys with sites in it are left alone until it is loaded anew",
        if object.is_empty() { "an object" } else { object }
    )]
    Unreadable {
        /// The object's file name, or empty if it is unknown.
        object: String,
        /// The address that cannot be read.
        addr: usize,
        /// The address of the key that was to change.
        key: usize,
    },
    /// The kernel refused what patching needs.
    #[error("{what} was refused: {source}; {setting}")]
    Denied {
        /// The refused operation.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// The setting to change.
        setting: &'static str,
    },
    /// No way to write code is left.
    #[error("code cannot be written: mprotect: {mprotect}; /proc/thread-self/mem: {memory}; {setting}")]
    Unwritable {
        /// Why not by making pages writable.
        mprotect: io::Error,
        /// Why not through `/proc/thread-self/mem`.
        memory: io::Error,
        /// The setting that is the easiest to change.
        setting: &'static str,
    },
    /// Writing failed half-way, and so did putting back: some sites keep what was written. Their
    /// keys read as before.
    #[error("{source}; {sites} sites could not be put back and keep what was written")]
    HalfWritten {
        /// How many.
        sites: usize,
        /// The failure.
        source: Box<Error>,
    },
    /// After [`Error::HalfWritten`] by int3 there is no further batch by int3: threads may still be
    /// trapping.
    #[error("the int3 protocol is refused: sites of a failed batch still hold an int3; restart the process")]
    Stuck,
    /// Another handler has taken SIGTRAP since ours was installed, and need not pass on our traps.
    #[error(
        "the int3 protocol is refused: {} has taken SIGTRAP; install it before dormouse's (dormouse_keys::prepare() with DORMOUSE_KEYS=int3, or the first such batch), or use the flip protocol",
        taker(handler.as_ref())
    )]
    SignalTaken {
        /// The handler's address and the file name of the object that it lies in (empty: in none);
        /// `None`: the signal has its default action again or is ignored.
        handler: Option<(usize, String)>,
    },
    /// Threads block SIGTRAP, and the kernel would kill the process if one of them ran into an
    /// `int3`.
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
    /// A batch over another call of the same thread into this crate, which could only wait for
    /// itself.
    #[error(
        "this thread is in the middle of a batch, a listing or a fork: a signal handler must not start a batch"
    )]
    Reentrant,
    /// The object that a key or the library lives in is being unloaded.
    #[error("{0}; do not unload an object while its keys are in use")]
    Leaving(#[from] PinError),
    /// There is no memory for the records of a batch or listing.
    #[error("there is no memory left: raise the process's limit")]
    NoMemory,
    /// Another copy of dormouse leads this process, and this one cannot follow it.
    #[error(transparent)]
    Copies(#[from] Conflict),
    /// The environment has turned dormouse off.
    #[error("{}", dormouse_sys::environment::OFF)]
    Off,
}

impl From<TryReserveError> for Error {
    fn from(_: TryReserveError) -> Self {
        Self::NoMemory
    }
}

impl From<Reentrant> for Error {
    fn from(_: Reentrant) -> Self {
        Self::Reentrant
    }
}

impl Error {
    /// Memory cannot be read that no key is known of.
    #[cfg(dormouse_patching)]
    pub(crate) fn unreadable(addr: usize) -> Self {
        Self::Unreadable { object: String::new(), addr, key: 0 }
    }

    /// Whether a site of this key is in the way, or perhaps one of it.
    pub(crate) fn concerns(&self, key: &Key) -> bool {
        match self {
            // The names may be what cannot be read.
            Self::Unreadable { key: unreadable, .. } => [0, key.address()].contains(unreadable),
            Self::HalfWritten { source, .. } => source.concerns(key),
            Self::UnexpectedText { key: name, .. }
            | Self::NotText { key: name, .. }
            | Self::SharedText { key: name, .. }
            | Self::TooFar { key: name, .. } => key.name() == *name,
            _ => true,
        }
    }

    /// This error, outside of the patch lock, where the loader can be asked for names.
    pub(crate) fn outside(self) -> Self {
        match self {
            Self::SignalTaken { handler: Some((address, _)) } => {
                Self::SignalTaken { handler: Some((address, dormouse_sys::loader::object_of(address))) }
            }
            Self::Unreadable { object, addr, key } if object.is_empty() => {
                Self::Unreadable { object: dormouse_sys::loader::object_of(addr), addr, key }
            }
            other => other,
        }
    }

    /// The error [`Error::HalfWritten`]: this one happened, and `sites` sites could not be put back
    /// afterwards.
    #[cfg(dormouse_patching)]
    pub(crate) fn with_left(self, sites: usize) -> Self {
        if sites == 0 { self } else { Self::HalfWritten { sites, source: Box::new(self) } }
    }
}

/// The usual writer of such bytes.
fn suspect(found: [u8; LENGTH]) -> &'static str {
    #[cfg(dormouse_patching)]
    if let Some(known) = crate::arch::suspect(found) {
        return known;
    }
    let _ = found;
    "something else has patched it (a binary rewriter, a hook, a removed uprobe)"
}

fn taker(handler: Option<&(usize, String)>) -> String {
    match handler {
        None => "code that reset it to its default action or to being ignored".to_owned(),
        Some((address, object)) if object.is_empty() => format!("a handler at {address:#x}"),
        Some((address, object)) => format!("a handler at {address:#x} in {object}"),
    }
}

fn list(threads: &[Blocking]) -> String {
    let names: Vec<String> = threads.iter().map(|t| format!("thread {} ({})", t.tid, t.name)).collect();
    names.join(", ")
}
