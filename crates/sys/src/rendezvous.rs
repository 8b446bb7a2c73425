//! Several copies of dormouse in one process, and what they share.
//!
//! A plugin that was linked with a copy of its own, a C library beside a Rust program, two plugins in a host
//! that knows nothing of dormouse: each copy has statics of its own, but there is one text, one SIGTRAP, one
//! current task. So one copy *leads*, and the others use its [`Table`].
//!
//! Each copy carries an ELF note (owner `dormouse`, type 1, section `.note.dormouse`): the version of what
//! copies share ([`ABI`]), and the distance from that field to a word with the address of the table. The first
//! note in the loader's list leads: the executable's, else that of the first object loaded. The list only
//! grows at its end, so copies that ask at different times get the same answer, and a leader that others
//! follow is pinned. A copy of another version is refused by name ([`Conflict`]): what it
//! would share, it does not do.
//!
//! | one for the process | a copy's own |
//! |---|---|
//! | patch lock, objects with sites, SIGTRAP handler | the index of keys that it builds of them |
//! | rings and their reader, numbers of probes, the task in a record | thread blocks, clocks, groups and their tasks |
//! | agent | |
//!
//! # Invariants
//!
//! 1. A table is constant-initialised, so it can be used before its object's constructors have run.
//! 2. Who uses another copy's table has pinned that copy; who leaves something of its own behind (a signal
//!    handler, a thread, a thread's destructor) has pinned itself ([`stay`]).
//!
//! # Locking
//!
//! The election asks the loader (see [`crate::loader`]), so it comes before any lock of the table.
//!
//! # Safety
//!
//! A note of our version, in an object that stays, leads to a table of the layout that the version stands for.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::ffi::c_int;
use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::loader::{self, PinError};
use crate::lock::{Guard, Held, Lock};
use crate::ring::Pool;
use crate::thread::Current;
#[cfg(target_arch = "x86_64")]
use crate::trap;
use crate::{ring, thread};

/// The version of everything that copies share: [`Table`] and what it leads to (objects, entries, keys, what is
/// attached to them, rings, records). A copy of another number is refused.
pub const ABI: u32 = 1;

/// What the leader has for all copies.
#[derive(Debug)]
#[repr(C)]
pub struct Table {
    /// Held while code or the list of objects changes.
    pub patch: Lock,
    /// A batch has changed a key: objects that come from now on are looked at.
    pub switched: AtomicBool,
    /// Sites were left with an `int3`, and a copy's table leads threads out of it: no other round may begin.
    stuck: AtomicBool,
    /// How many forks lie between the process that loaded the leader and this one.
    forks: AtomicU32,
    /// Set before a fork, and taken by the first handler in the child: one of each copy runs there.
    forking: AtomicBool,
    /// Moves, under the patch lock, whenever an object comes or leaves.
    pub generation: AtomicU64,
    /// The first of the objects with sites.
    pub objects: AtomicPtr<c_void>,
    /// The first of those whose sites could not be brought to the state of their keys.
    pub waiting: AtomicPtr<c_void>,
    agent: Agent,
    /// The table of the copy that reads the rings.
    recorder: AtomicPtr<Table>,
    next_probe: AtomicU32,
    pub(crate) pool: &'static Pool,
    pub(crate) push: unsafe extern "C" fn(*const u8, usize) -> bool,
    pub(crate) current: extern "C" fn(&mut Current),
    #[cfg(target_arch = "x86_64")]
    pub(crate) trap_handler: trap::Handler,
    #[cfg(target_arch = "x86_64")]
    pub(crate) install_trap: extern "C" fn(trap::SharedResolver) -> c_int,
    #[cfg(target_arch = "x86_64")]
    pub(crate) begin_trap_round: extern "C" fn(),
}

/// Which copy has the agent of the process.
#[derive(Debug)]
#[repr(C)]
struct Agent {
    lock: Lock,
    /// The process in which it runs: a forked child has none.
    pid: AtomicU32,
    path: AtomicPtr<u8>,
    length: AtomicUsize,
}

static TABLE: Table = Table {
    patch: Lock::new(),
    switched: AtomicBool::new(false),
    stuck: AtomicBool::new(false),
    forks: AtomicU32::new(0),
    forking: AtomicBool::new(false),
    generation: AtomicU64::new(0),
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
    pool: ring::own_pool(),
    push: ring::push_for_another,
    current: thread::current_for_another,
    #[cfg(target_arch = "x86_64")]
    trap_handler: trap::handle,
    #[cfg(target_arch = "x86_64")]
    install_trap: trap::install_here,
    #[cfg(target_arch = "x86_64")]
    begin_trap_round: trap::begin_round_here,
};

/// The leader's table; null before the election, and for ever in a copy that was refused.
static LEADER: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// Why this copy takes no part in what copies share.
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
    /// The leader might leave.
    #[error("the copy of dormouse that leads this process cannot be followed: {0}")]
    Leaving(#[from] PinError),
}

/// The leader's table.
///
/// # Cost
///
/// The first call looks through the loader's list; later ones load a pointer.
pub fn table() -> Result<&'static Table, Conflict> {
    static REFUSED: OnceLock<Conflict> = OnceLock::new();
    if let Some(leader) = leader() {
        return Ok(leader);
    }
    if let Some(conflict) = REFUSED.get() {
        return Err(conflict.clone());
    }
    match elect() {
        Ok(leader) => {
            // Pairs with the load in `leader`. Who is quicker stores the same.
            LEADER.store(std::ptr::from_ref(leader).cast_mut(), Ordering::Release);
            respect_forks();
            Ok(leader)
        }
        Err(conflict) => Err(REFUSED.get_or_init(|| conflict).clone()),
    }
}

fn leader() -> Option<&'static Table> {
    // Pairs with the store in `table`. SAFETY: the own table or that of a pinned object.
    unsafe { LEADER.load(Ordering::Acquire).as_ref() }
}

/// The table of another copy that this one follows.
#[inline]
pub(crate) fn followed() -> Option<&'static Table> {
    leader().filter(|&table| !std::ptr::eq(table, &raw const TABLE))
}

/// The table that this copy works with now, without an election: signal-safe.
#[inline]
pub(crate) fn used() -> &'static Table {
    leader().unwrap_or(&TABLE)
}

/// Has forks wait for the patch lock. By a handler of each copy: the second to take the lock finds it held by
/// its own thread, and leaves it to the first.
fn respect_forks() {
    extern "C" fn before() {
        let table = used();
        table.patch.before_fork();
        table.forking.store(true, Ordering::Relaxed);
    }
    extern "C" fn parent() {
        used().patch.in_parent();
    }
    extern "C" fn child() {
        let table = used();
        table.patch.in_child();
        table.agent.lock.reset();
        if table.forking.swap(false, Ordering::Relaxed) {
            table.forks.fetch_add(1, Ordering::Relaxed);
        }
    }
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions of this object; the C library forgets them when it leaves. Without memory for
        // them, a child of a fork in the middle of a batch cannot change keys.
        unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    }
}

/// Whether a copy has left sites with an `int3`.
pub fn stuck() -> &'static AtomicBool {
    &used().stuck
}

/// How many forks lie behind this process: a number that all its copies agree on, and that a forked child has for
/// itself. (A fork that runs no handlers, as `_Fork`, does not count.)
pub fn forks() -> u32 {
    // It changes while a process has one thread, which has just been made.
    used().forks.load(Ordering::Relaxed)
}

/// The number of a probe, which no other probe of the process has.
pub fn next_probe() -> u32 {
    used().next_probe.fetch_add(1, Ordering::Relaxed)
}

/// Makes this copy the one that reads the rings; else says in which object that is.
pub fn read_rings() -> Result<(), String> {
    let own = (&raw const TABLE).cast_mut();
    match used().recorder.compare_exchange(std::ptr::null_mut(), own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != own => Err(loader::object_of(other as usize)),
        _ => Ok(()),
    }
}

/// Has the object that this copy is in stay until the process ends.
///
/// # Cost
///
/// The first call asks the loader, and so must not come under a lock that a constructor takes.
pub fn stay() -> Result<(), PinError> {
    if !stays() {
        loader::pin(&raw const TABLE as usize)?;
        STAYS.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether [`stay`] has been called, and has had its way.
pub fn stays() -> bool {
    // It comes true once, and orders nothing.
    STAYS.load(Ordering::Relaxed)
}

static STAYS: AtomicBool = AtomicBool::new(false);

impl Table {
    /// Waits for other copies that are just starting the agent.
    pub fn agent(&'static self) -> Result<AgentPlace, Held> {
        Ok(AgentPlace { agent: &self.agent, _starting: self.agent.lock.lock()? })
    }
}

/// The right to start the agent.
#[derive(Debug)]
pub struct AgentPlace {
    agent: &'static Agent,
    _starting: Guard<'static>,
}

impl AgentPlace {
    /// The socket of the agent that process `pid` has.
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

    /// Says that the agent of process `pid` listens on `path`.
    pub fn set(&self, pid: u32, path: &Path) {
        // Leaked: other copies read it as long as the process lives. One a process.
        let bytes: &'static [u8] = Box::leak(path.as_os_str().as_bytes().into());
        self.agent.path.store(bytes.as_ptr().cast_mut(), Ordering::Relaxed);
        self.agent.length.store(bytes.len(), Ordering::Relaxed);
        self.agent.pid.store(pid, Ordering::Relaxed);
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod note;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
use note::elect;

/// Where copies cannot find one another, each is alone.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64", not(miri))))]
#[expect(clippy::unnecessary_wraps, reason = "the same shape as where they can")]
fn elect() -> Result<&'static Table, Conflict> {
    Ok(&TABLE)
}
