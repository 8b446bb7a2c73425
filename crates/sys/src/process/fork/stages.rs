//! The table of stages, and the handlers that go through it.
//!
//! # Safety
//!
//! The unsafe code is `pthread_atfork`, the constructor that calls it, and the pointers in the
//! table, which point to statics.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::process::identity;
use crate::process::lock::Lock;

/// The order in which a fork, and every thread, takes locks. In a child the phases are reset from
/// the last to the first, so a reset may rely on each phase after its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Phase {
    /// Lock: countings requested by the environment.
    Environment,
    /// Lock: what is published for readers outside of the process.
    Publishing,
    /// Lock: the events that are counted, and their changes.
    Countings,
    /// Stage: the lock of changes of what is counted, for which a fork does not wait, and the
    /// generation.
    Changes,
    /// Lock: beginning and ending the kernel's events.
    Units,
    /// Lock: beginning and ending the counting of allocations.
    Allocations,
    /// Lock: watches, and the registers that they hold.
    Watches,
    /// Lock: the flight recorder's keys.
    Recorder,
    /// Lock: the traces, and their queues.
    Hub,
    /// Lock: text, and the list of objects with sites, shared by all copies.
    Patch,
    /// Lock: the index of keys.
    Registry,
    /// Lock: leases that end by time.
    Holds,
    /// Lock: the agent's sockets.
    Descriptors,
    /// Lock: errands for the keeper of watches; held for moments.
    Arming,
    /// Lock: errands for the sampler of profiles; held for moments.
    Profiles,
    /// Lock: the unwind tables that handlers search, while some are replaced.
    Tables,
    /// Lock: errands for the lookout; held for moments.
    Lookout,
    /// Lock: results of earlier readings of the process; held for moments.
    Readings,
    /// Lock: the stalled time of groups; held for moments.
    Stalls,
    /// Lock: the objectives that groups have; held for moments.
    Objectives,
    /// Lock: the runtimes that the service has shown; held while they are read.
    Runtimes,
    /// Reset: the files through which text is written.
    Text,
    /// Reset: the kernel's events of each thread.
    Rows,
    /// Reset: the breakpoints of groups that each thread has.
    Lines,
    /// Reset: the number of the run to which times of tasks belong, and what threads have added up.
    Waits,
    /// Reset: the holders of locks, and the waits for them.
    Locks,
    /// Reset: the stacks at which tasks wait.
    Places,
    /// Reset: the cells that each thread adds to.
    Cells,
    /// Reset: the spans of threads, which have pending counts.
    Spans,
    /// Reset: the estimate of the process's CPU time.
    Estimates,
    /// Reset: the clock of the only thread.
    Clocks,
    /// Reset: thread blocks and rings.
    Threads,
    /// Reset: the memory reserved for steps.
    Reserves,
    /// Reset: the count of forks that all copies share.
    Copies,
    /// Stage: calls of `dl_iterate_phdr`.
    Loader,
}

const PHASES: usize = Phase::Loader as usize + 1;

const _: () = assert!(PHASES < 64, "each phase has a bit, and joining has one");

/// One side of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The process that forked. Only stages whose `before` returned true are called.
    Parent,
    /// The new process.
    Child {
        /// Whether the fork has the stage's lock; if not, the thread had it already (see
        /// [`Lock::before_fork`]).
        taken: bool,
    },
    /// The new process, which goes on with the handlers of another fork that this one has
    /// interrupted.
    ChildInside {
        /// The id of the parent's thread, under which the child's thread still holds locks.
        before: u32,
    },
}

/// The part of a fork that belongs to one phase. `before` waits for the stage's lock, and returns
/// whether the fork has it.
#[derive(Debug)]
pub struct Stage {
    phase: Phase,
    before: unsafe fn(*const Stage) -> bool,
    after: unsafe fn(*const Stage, Side),
}

/// Null: no thread has needed that phase yet.
static TABLE: [AtomicPtr<Stage>; PHASES] = [const { AtomicPtr::new(ptr::null_mut()) }; PHASES];

/// Held while a stage joins. A fork takes it after all stages, checks the table again, and begins
/// anew if a stage has joined meanwhile. So no thread has ever taken a lock whose stage a fork does
/// not know.
static JOINING: Lock = Lock::new();

/// The bit of [`JOINING`] among those of the phases.
const JOINING_BIT: u64 = 1 << 63;

thread_local! {
    /// The forks that the thread is in the middle of: more than one, if a signal handler forks.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The phases that the thread's fork has, by bits.
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    /// The phases that had joined when the fork began: no thread has the others' locks.
    static JOINED: Cell<u64> = const { Cell::new(0) };
}

impl Stage {
    /// A stage with other functions than those of a [`super::Mutex`] or a [`Reset`].
    ///
    /// # Safety
    ///
    /// The functions are called with the static that this becomes, on the thread that forks;
    /// `after` only as [`Side`] describes.
    pub const unsafe fn custom(
        phase: Phase,
        before: unsafe fn(*const Self) -> bool,
        after: unsafe fn(*const Self, Side),
    ) -> Self {
        Self { phase, before, after }
    }

    /// The phase.
    pub(super) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Adds the stage to the table that forks go through. Returns false, without effect, in the
    /// middle of a fork by this thread.
    pub fn join(&'static self) -> bool {
        join(self)
    }
}

/// A phase that has no lock, and is reset in each child.
#[derive(Debug)]
#[repr(C)]
pub struct Reset {
    /// First: [`Reset::after`] is given its address.
    stage: Stage,
    reset: fn(),
}

impl Reset {
    /// Once the phase has joined, `reset` is called in each forked child. It may do no more than a
    /// signal handler.
    pub const fn new(phase: Phase, reset: fn()) -> Self {
        Self { stage: Stage { phase, before: |_| true, after: Self::after }, reset }
    }

    /// See [`Stage::join`].
    pub fn join(&'static self) -> bool {
        join(ptr::from_ref(self).cast())
    }

    unsafe fn after(stage: *const Stage, side: Side) {
        if side != Side::Parent {
            // SAFETY: `new` puts this function into values of this type, and `join` gives the table
            // pointers to them.
            (unsafe { &*stage.cast::<Self>() }.reset)();
        }
    }
}

/// Puts the static that begins with `stage` into the table; false in the middle of a fork of this
/// thread. That fork would not have the new stage, but other threads could take its lock, and the
/// child might find it taken.
pub(super) fn join(stage: *const Stage) -> bool {
    // SAFETY: each caller passes a static.
    let phase = unsafe { &*stage }.phase;
    let place = &TABLE[phase as usize];
    if ptr::eq(place.load(Ordering::Relaxed), stage) {
        return true;
    }
    if is_forking() {
        return false;
    }
    install();
    // A fork takes this lock after those of all stages, so it waits for no lock of this thread. A
    // signal handler over these lines is refused, because its thread has the lock, and may go on.
    let _joining = JOINING.lock();
    // Pairs with the load in `stages`.
    let there = place.swap(stage.cast_mut(), Ordering::Release);
    debug_assert!(there.is_null() || ptr::eq(there, stage), "two stages in {phase:?}");
    true
}

/// Whether the calling thread is in the middle of a fork.
pub fn is_forking() -> bool {
    DEPTH.get() > 0
}

/// Installs the handlers, once.
fn install() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        // An allocator that installs handlers at its first allocation, as jemalloc does, has to
        // have done so: see the module.
        let mut first = Vec::<u8>::new();
        _ = first.try_reserve_exact(1);
        drop(black_box(first));
        // SAFETY: plain functions of this object; the C library forgets them when it leaves.
        // Without memory for them a child of a fork in the middle of a change must not use
        // dormouse.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// Installs the handlers before `main`, so that they are older than the host's.
#[cfg(all(target_os = "linux", not(any(miri, dormouse_off))))]
#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = {
    extern "C" fn constructor() {
        install();
    }
    constructor
};

/// The stages that have joined, each with its bit, in the order in which a fork takes them.
fn stages() -> impl DoubleEndedIterator<Item = (u64, *const Stage)> {
    // Pairs with the swap in `join`.
    let joined = TABLE.iter().map(|place| place.load(Ordering::Acquire).cast_const()).enumerate();
    joined.filter(|(_, stage)| !stage.is_null()).map(|(n, stage)| (1_u64 << n, stage))
}

extern "C" fn before() {
    DEPTH.set(DEPTH.get() + 1);
    if DEPTH.get() > 1 {
        return;
    }
    identity::set_forker(identity::tid());
    loop {
        JOINED.set(0);
        for (bit, stage) in stages() {
            JOINED.set(JOINED.get() | bit);
            // SAFETY: a static, by `join`; called as `Stage::custom` requires.
            if unsafe { ((*stage).before)(stage) } {
                TAKEN.set(TAKEN.get() | bit);
            }
        }
        if JOINING.before_fork() {
            TAKEN.set(TAKEN.get() | JOINING_BIT);
        }
        if stages().fold(0, |all, (bit, _)| all | bit) == JOINED.get() {
            return;
        }
        // A stage has joined meanwhile, and another thread may have its lock: begin again, in
        // order.
        give_back(TAKEN.replace(0));
    }
}

/// Gives up the stages of these bits, which the thread's fork has taken.
fn give_back(taken: u64) {
    if taken & JOINING_BIT != 0 {
        JOINING.in_parent();
    }
    for (_, stage) in stages().rev().filter(|(bit, _)| taken & bit != 0) {
        // SAFETY: as in `before`.
        unsafe { ((*stage).after)(stage, Side::Parent) };
    }
}

/// Leaves a fork, and returns how many others the thread is still in the middle of. `None` if the
/// handlers were installed in the middle of this fork, so `before` has not run.
fn leave() -> Option<u32> {
    let depth = DEPTH.get().checked_sub(1)?;
    DEPTH.set(depth);
    Some(depth)
}

extern "C" fn in_parent() {
    // Before the fork is left: a signal handler that forks from then on has stages of its own.
    let taken = if DEPTH.get() == 1 { TAKEN.replace(0) } else { 0 };
    if leave() == Some(0) {
        identity::set_forker(0);
        give_back(taken);
    }
}

extern "C" fn in_child() {
    identity::count_fork();
    let Some(depth) = leave() else { return };
    let is_inside = depth > 0;
    let taken = if is_inside { TAKEN.get() } else { TAKEN.replace(0) };
    let before = identity::forker();
    if is_inside {
        JOINING.rename_owner(before);
    } else {
        JOINING.in_child(taken & JOINING_BIT != 0);
    }
    let joined = JOINED.get();
    for (bit, stage) in stages().rev().filter(|(bit, _)| joined & bit != 0) {
        let side =
            if is_inside { Side::ChildInside { before } } else { Side::Child { taken: taken & bit != 0 } };
        // SAFETY: as in `before`.
        unsafe { ((*stage).after)(stage, side) };
    }
    // Last: until then a lock may be under the parent's id still, and a signal handler is refused.
    identity::set_forker(if is_inside { identity::tid() } else { 0 });
}
