//! The table that copies share, and its layout.
//!
//! # Invariants
//!
//! 1. A table is constant-initialised, so it can be used before its object's constructors have run.
//!
//! # Safety
//!
//! The unsafe code reads the path of the agent's socket, which only changes under the agent's lock.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ffi::c_void;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::loader::PinError;
use crate::process::lock::{Guard, Lock, Reentrant};
use crate::ring::{OwnPool, POOL};
use crate::thread::{self, Current};
use crate::trap_types::PerfTrap;
use crate::{debug_trap, passing, sigtrap};

/// The version of everything that copies share: [`Table`] and all that it points to (objects,
/// entries, keys, their attachments, rings, records). A copy with another number is refused.
pub const ABI: u32 = 8;

/// The state that the leader keeps for all copies.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// Held while code or the list of objects changes.
    pub patch: Lock,
    /// Set once a batch has changed a key: from then on newly loaded objects are brought up to
    /// date.
    pub switched: AtomicBool,
    /// A round was left with `int3`s in its sites, and a copy's resolver leads threads out of them:
    /// no other round may begin.
    pub(super) stuck: AtomicBool,
    /// How many forks lie between the process that loaded the leader and this one.
    pub(super) forks: AtomicU32,
    /// Set before a fork, and taken by the first handler in the child: one of each copy runs there.
    pub(super) forking: AtomicBool,
    /// Changes, under the patch lock, whenever an object is loaded or unloaded.
    pub generation: AtomicU64,
    /// Changes, under the patch lock, whenever a key gets a state.
    pub switches: AtomicU64,
    /// The first of the objects with sites.
    pub objects: AtomicPtr<c_void>,
    /// The first of the objects whose sites could not be brought to the state of their keys.
    pub waiting: AtomicPtr<c_void>,
    pub(super) agent: Agent,
    /// The table of the copy that reads the rings.
    pub(super) recorder: AtomicPtr<Table>,
    pub(super) next_probe: AtomicU32,
    pub(super) pool: &'static OwnPool,
    pub(super) push: unsafe extern "C" fn(*const u8, usize) -> bool,
    pub(super) current: extern "C" fn(&mut Current),
    pub(super) trap_handler: passing::Handler,
    pub(super) install_trap: extern "C" fn(sigtrap::SharedResolver) -> c_int,
    pub(super) begin_trap_round: extern "C" fn(),
    pub(super) install_watcher: extern "C" fn(debug_trap::SharedWatcher, &mut u32) -> c_int,
}

/// Which copy has the agent of the process.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Agent {
    pub(super) lock: Lock,
    /// The process in which it runs. A fork's handler clears it in the child, which may have the
    /// parent's number in a PID namespace of its own. A child without handlers (`_Fork`) may have
    /// it there, too, and is then taken for the parent: copies have no other number in common.
    pid: AtomicU32,
    path: AtomicPtr<u8>,
    length: AtomicUsize,
}

/// The layout that [`ABI`] stands for: a change of a number here takes a change of that one.
const _: () = {
    macro_rules! lies_at {
        ($($field:ident$(.$part:ident)? $at:literal),*) => {
            $(assert!(offset_of!(Table, $field$(.$part)?) == $at, "the shared layout has changed: raise ABI");)*
        };
    }
    lies_at!(patch 0, switched 8, stuck 9, forks 12, forking 16, generation 24, switches 32, objects 40, waiting 48, agent.pid 64);
    lies_at!(agent.path 72, agent.length 80, recorder 88, next_probe 96, pool 104, push 112, current 120);
    lies_at!(trap_handler 128, install_trap 136, begin_trap_round 144, install_watcher 152);
    assert!(ABI == 8 && size_of::<Table>() == 160 && size_of::<Current>() == 16, "raise ABI");
    // Handed from the leader's handler to the watchers of other copies.
    assert!(size_of::<PerfTrap>() == 80, "raise ABI");
};

/// The table of this copy.
pub(super) static TABLE: Table = Table {
    patch: Lock::new(),
    switched: AtomicBool::new(false),
    stuck: AtomicBool::new(false),
    forks: AtomicU32::new(0),
    forking: AtomicBool::new(false),
    generation: AtomicU64::new(0),
    switches: AtomicU64::new(0),
    objects: AtomicPtr::new(std::ptr::null_mut()),
    waiting: AtomicPtr::new(std::ptr::null_mut()),
    agent: Agent {
        lock: Lock::new(),
        pid: AtomicU32::new(0),
        path: AtomicPtr::new(std::ptr::null_mut()),
        length: AtomicUsize::new(0),
    },
    recorder: AtomicPtr::new(std::ptr::null_mut()),
    next_probe: AtomicU32::new(1),
    pool: &POOL,
    push: thread::push_for_another,
    current: thread::task_for_another,
    trap_handler: sigtrap::handle,
    install_trap: sigtrap::install_here,
    begin_trap_round: sigtrap::begin_round_here,
    install_watcher: sigtrap::install_watcher_here,
};

/// Why a copy cannot use the leader's table.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Conflict {
    /// The leader is of another version.
    #[error(
        "the copy of dormouse in {object} (shared version {version}) cannot work beside that in {leader} \
         (shared version {leaders}): build both with the same version of dormouse"
    )]
    Version {
        /// The object that this copy is in.
        object: String,
        /// This copy's version.
        version: u32,
        /// The object that the leading copy is in.
        leader: String,
        /// The leader's version.
        leaders: u32,
    },
    /// The leader's object may be unloaded.
    #[error("the copy of dormouse that leads this process cannot be followed: {0}")]
    Leaving(#[from] PinError),
}

impl Table {
    /// Waits for other copies that are just starting the agent, and returns the right to start it.
    pub fn agent(&'static self) -> Result<AgentPlace, Reentrant> {
        Ok(AgentPlace { agent: &self.agent, _starting: self.agent.lock.lock()? })
    }
}

impl Agent {
    pub(super) fn clear(&self) {
        self.pid.store(0, Ordering::Relaxed);
    }
}

/// The right to start the agent.
#[derive(Debug)]
pub struct AgentPlace {
    agent: &'static Agent,
    _starting: Guard<'static>,
}

impl AgentPlace {
    /// The path of the socket of process `pid`'s agent.
    pub fn path(&self, pid: u32) -> Option<PathBuf> {
        let agent = self.agent;
        if agent.pid.load(Ordering::Relaxed) != pid {
            return None;
        }
        let (path, length) = (agent.path.load(Ordering::Relaxed), agent.length.load(Ordering::Relaxed));
        // SAFETY: `set` left them there under the lock, for ever.
        let bytes = unsafe { std::slice::from_raw_parts(path, length) };
        Some(Path::new(std::ffi::OsStr::from_bytes(bytes)).to_owned())
    }

    /// Records that the agent of process `pid` listens on `path`.
    pub fn set(&self, pid: u32, path: &Path) {
        // Leaked, because other copies read it as long as the process lives: one path in a process.
        let bytes: &'static [u8] = Box::leak(path.as_os_str().as_bytes().into());
        self.agent.path.store(bytes.as_ptr().cast_mut(), Ordering::Relaxed);
        self.agent.length.store(bytes.len(), Ordering::Relaxed);
        self.agent.pid.store(pid, Ordering::Relaxed);
    }

    /// Records that there is no agent.
    pub fn clear(&self) {
        self.agent.clear();
    }
}
