//! The blocks: a fixed table with one block for each thread that uses dormouse.
//!
//! The table is in `.bss`: a block's address never becomes invalid, claiming one allocates nothing,
//! and pages that no thread uses take no memory.
//!
//! | state | event | next |
//! |---|---|---|
//! | `FREE` | a thread takes the block | `CLAIMED`, then `LIVE` |
//! | `LIVE` | its thread ends; or a fork, in the child, for all blocks but the only thread's | `FREE` |
//!
//! # Invariants
//!
//! 1. Only its owner, or a fork child that owns all blocks, writes a live block.
//! 2. `tid` and `start` together are never reused in a process: `start` counts claims.
//! 3. The exact current task is for the block's owner, because a thread writes the records about
//!    itself. Other threads can read whether there is one, and which one it was a moment ago.
//!
//! # Safety
//!
//! The unsafe code reads the thread's pointer to its block, which is null or points into the table.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::process::identity;
use crate::ring::{Claimed, POOL, RingOwner};
use crate::{array_of, const_unless_loom, shared, thread_values};

crate::atomics!(AtomicU8, AtomicU32, AtomicU64, AtomicUsize);

/// The number of threads that can have a block at once; further ones run uncounted.
pub const MAX_THREADS: usize = if cfg!(all(test, loom)) { 1 } else { 4096 };

const FREE: u8 = 0;
const CLAIMED: u8 = 1;
const LIVE: u8 = 2;

/// The part of a thread's state that other threads may read.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ThreadBlock {
    state: AtomicU8,
    tid: AtomicU32,
    start: AtomicU64,
    ring: Claimed,
    group: AtomicU32,
    task: AtomicU64,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(size_of::<ThreadBlock>() == 128);

/// The task that a thread runs at one moment. Copies of dormouse share the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Current {
    /// The task's number; 0 outside of tasks.
    pub task: u64,
    /// The number of the task's group; 0 outside of tasks.
    pub group: u32,
}

shared! {
    static BLOCKS: [ThreadBlock; MAX_THREADS] = array_of![ThreadBlock::new(); MAX_THREADS];
    /// One past the highest index ever claimed: [`live`] looks no further.
    static HIGH_WATER: AtomicUsize = AtomicUsize::new(0);
    static NEXT_START: AtomicU64 = AtomicU64::new(1);
    /// How often [`find`] may have come to find another thread.
    static CLAIMS: AtomicU64 = AtomicU64::new(0);
    static REFUSED: AtomicU64 = AtomicU64::new(0);
    /// How often a block was given back.
    static GIVEN_BACK: AtomicU64 = AtomicU64::new(1);
}

thread_values! {
    /// Atomic for the signal handlers of the thread.
    static BLOCK: AtomicPtr<ThreadBlock> = AtomicPtr::new(std::ptr::null_mut());
    static ENDED: Cell<bool> = Cell::new(false);
    static FULL_AT: Cell<u64> = Cell::new(0);
}

impl ThreadBlock {
    const_unless_loom! {
        const fn new() -> Self {
            Self {
                state: AtomicU8::new(FREE),
                tid: AtomicU32::new(0),
                start: AtomicU64::new(0),
                ring: Claimed::new(),
                group: AtomicU32::new(0),
                task: AtomicU64::new(0),
            }
        }
    }

    /// The thread id.
    pub fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// The thread's start number; together with the tid it is never reused in a process.
    #[inline]
    pub fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    /// Writes a record to the thread's ring. On the thread itself only.
    pub(super) fn push(&self, record: &[u8]) -> bool {
        POOL.push(&self.ring, || RingOwner { tid: self.tid(), start: self.start() }, record)
    }

    /// Sets the task that the thread runs from now on. Only on the thread itself.
    #[inline]
    pub fn set_current(&self, current: Current) {
        self.group.store(current.group, Ordering::Relaxed);
        self.task.store(current.task, Ordering::Relaxed);
    }

    /// Sets another task of the same group, or with 0 no task. Only on the thread itself.
    #[inline]
    pub fn set_task(&self, task: u64) {
        self.task.store(task, Ordering::Relaxed);
    }

    /// Whether the thread ran a task a moment ago. For other threads.
    pub fn has_task(&self) -> bool {
        self.task.load(Ordering::Relaxed) != 0
    }

    /// The task that the thread ran a moment ago. Its group may be that of the task before it, if
    /// the thread was just going on to another one. For other threads.
    pub fn seen_current(&self) -> Current {
        self.own_current()
    }

    /// The task that the thread runs. Only on the thread itself.
    #[inline]
    pub fn own_current(&self) -> Current {
        match self.task.load(Ordering::Relaxed) {
            0 => Current::default(),
            task => Current { task, group: self.group.load(Ordering::Relaxed) },
        }
    }

    /// The block's index in the table, below [`MAX_THREADS`]; the next thread that uses the block
    /// has the same.
    #[inline]
    pub fn index(&self) -> usize {
        (std::ptr::from_ref(self) as usize - BLOCKS.as_ptr() as usize) / size_of::<Self>()
    }

    /// Makes the calling thread, with a new start number, the block's.
    fn begin(&self) {
        self.tid.store(identity::tid(), Ordering::Relaxed);
        self.start.store(NEXT_START.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        self.ring.reset();
    }

    fn free(&self) {
        // Pairs with the exchange in `take`: the next owner's stores come after this owner's.
        self.state.store(FREE, Ordering::Release);
        // Release: pairs with the loads in `may_take` and `take`: the block is free before.
        GIVEN_BACK.fetch_add(1, Ordering::Release);
    }
}

/// The calling thread's block, if it has one already.
#[inline]
pub fn try_current() -> Option<&'static ThreadBlock> {
    let block = BLOCK.with(|block| block.load(Ordering::Relaxed));
    // SAFETY: a non-null BLOCK points into BLOCKS, which is static.
    unsafe { block.as_ref() }
}

/// All threads that have a block now.
pub fn live() -> impl Iterator<Item = &'static ThreadBlock> {
    // Pairs with the maximum in `take`, as far as one thread has passed its block to another.
    let claimed = &BLOCKS[..HIGH_WATER.load(Ordering::Acquire)];
    // Pairs with the store of LIVE in `take`: a live block has its tid and start.
    claimed.iter().filter(|block| block.state.load(Ordering::Acquire) == LIVE)
}

/// The block of the thread with this id, if it has one. For code on that thread that must not touch
/// thread-local storage: in an object that was loaded late, the first use by a signal handler would
/// allocate.
pub fn find(tid: u32) -> Option<&'static ThreadBlock> {
    live().find(|block| block.tid() == tid)
}

/// How often threads have claimed blocks. While it does not change, [`find`] finds no other threads
/// than before.
pub fn claims() -> u64 {
    // Pairs with the addition in `take`.
    CLAIMS.load(Ordering::Acquire)
}

/// How often a thread found the table full.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// Whether the calling thread may look for a block: not past its end, and not if none has been
/// given back since the thread found the table full.
pub(super) fn may_take() -> bool {
    !ENDED.with(Cell::get) && FULL_AT.with(Cell::get) != GIVEN_BACK.load(Ordering::Acquire)
}

/// Takes a block for the calling thread; true also if it is a new one, and not that of a signal
/// handler that came before.
pub(super) fn take() -> Option<(&'static ThreadBlock, bool)> {
    let given_back = GIVEN_BACK.load(Ordering::Acquire);
    // The lowest free block, so that the table stays as short as the thread count. The exchange
    // pairs with the stores of FREE in `free` and `begin_in_child`.
    // Looked at first: the exchange would take the line away from the block's thread.
    let block = BLOCKS.iter().find(|b| {
        b.state.load(Ordering::Relaxed) == FREE
            && b.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    });
    let Some(block) = block else {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        FULL_AT.with(|at| at.set(given_back));
        return None;
    };
    // Pairs with the load in `live`.
    HIGH_WATER.fetch_max(block.index() + 1, Ordering::Release);
    block.begin();
    block.set_current(Current::default());
    let own = std::ptr::from_ref(block).cast_mut();
    let none = std::ptr::null_mut();
    if let Err(other) =
        BLOCK.with(|place| place.compare_exchange(none, own, Ordering::Relaxed, Ordering::Relaxed))
    {
        // A signal handler has come before us, and has claimed a block for the thread: this one, if
        // the handler forked.
        if !std::ptr::eq(other, own) {
            block.free();
        }
        // SAFETY: a non-null BLOCK points into BLOCKS, which is static.
        return Some((unsafe { &*other }, false));
    }
    // Pairs with the load in `live`.
    block.state.store(LIVE, Ordering::Release);
    // Only now: a signal handler that has found no block before looks again. Release: pairs with
    // the load in `claims`.
    CLAIMS.fetch_add(1, Ordering::Release);
    Some((block, true))
}

/// The thread ends: from now on it has no block, and gets none.
pub(super) fn end() {
    ENDED.with(|ended| ended.set(true));
    BLOCK.with(|place| place.store(std::ptr::null_mut(), Ordering::Relaxed));
}

/// Gives back the block of the calling thread, which has ended ([`end`]), and its ring.
pub(super) fn give_back(block: &ThreadBlock) {
    debug_assert!(try_current().is_none(), "the block's records could still be written");
    POOL.release(&block.ring);
    block.free();
}

/// In a forked child: the only thread begins anew, and all other blocks and all rings are free.
pub(super) fn begin_in_child() {
    let own = try_current();
    for block in &BLOCKS[..HIGH_WATER.load(Ordering::Relaxed)] {
        if !own.is_some_and(|own| std::ptr::eq(block, own)) {
            block.ring.reset();
            block.state.store(FREE, Ordering::Relaxed);
        }
    }
    POOL.reset();
    if let Some(block) = own {
        block.begin();
        CLAIMS.fetch_add(1, Ordering::Relaxed);
    }
    // The table has room again.
    FULL_AT.with(|at| at.set(0));
}

#[cfg(test)]
pub(super) fn find_table_full() {
    FULL_AT.with(|at| at.set(GIVEN_BACK.load(Ordering::Relaxed)));
}

#[cfg(all(test, loom))]
mod interleavings;
