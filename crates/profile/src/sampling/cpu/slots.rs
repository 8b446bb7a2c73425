//! The slots: what the handler needs of each thread that has a timer.
//!
//! The table is in `.bss`: a slot's address never becomes invalid, so a late signal finds it, and
//! pages that no thread uses take no memory. A thread's slot is one of the [`PROBES`] at and after
//! its id modulo the size of the table, so that a thread which arms itself and the sampler that
//! arms all find the same slot without a lock.
//!
//! | state | event | next |
//! |---|---|---|
//! | free: `tid` is 0 | [`claim`] by the sampler, or by the thread itself | claimed: no generation |
//! | claimed | the timer is made: [`Slot::begin`] | armed: a generation |
//! | claimed | the kernel refuses a timer: [`Slot::free`] | free |
//! | armed | [`Slot::end`]: the thread has ended, or nobody profiles | free |
//! | armed and [announced](announce) | [`Slot::end`] by its thread: nobody profiles | claimed, until the sampler frees it |
//! | armed by a sampler that was killed | [`abandoned`] by the next one, which ends it | free |
//!
//! # Invariants
//!
//! 1. A generation is used once in a process, and is never 0. So a signal that comes late, for a
//!    timer of an earlier user of the slot, is recognised.
//! 2. A slot that was announced is free again only after [`announced`] has returned it: otherwise
//!    it would be in the list twice.
//! 3. `low..high` is empty, or part of the thread's own stack: it can be read from the stack
//!    pointer on, while the thread runs.
//!
//! # Async-signal-safety
//!
//! All functions.
//!
//! # Safety
//!
//! The unsafe code reads the pointer to a block, which is null or points to a static.

#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::thread::{self, Current, ThreadBlock};

/// The threads that can have a timer at once.
pub(super) const SLOTS: usize = 16 * 1024;

/// The index of one slot more: that of the thread which is asked for its stack ([`asked`]).
pub(super) const ASKED: usize = SLOTS;

/// How many slots a thread may have to choose from.
const PROBES: usize = 16;

/// The first generation: so high that no other number equals it by chance.
pub(super) const FIRST: u32 = 0x6d00_0000;

/// One thread's slot.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Slot {
    tid: AtomicU32,
    generation: AtomicU32,
    timer: AtomicU32,
    /// One more than the index of the next new slot ([`NEW`]).
    next: AtomicU32,
    low: AtomicUsize,
    high: AtomicUsize,
    block: AtomicPtr<ThreadBlock>,
    /// The claims of blocks when the thread was last found to have none.
    claims: AtomicU64,
    /// Whether a sample came from outside of the bounds.
    strayed: AtomicBool,
    /// Whether its thread arms itself, and [`announced`] has not given it yet.
    is_new: AtomicBool,
    /// Whether the handler shall make no system call: a filter may end the thread for it.
    is_filtered: AtomicBool,
    /// Whether a sample had too little room on the thread's alternate stack.
    is_cramped: AtomicBool,
}

const _: () = assert!(size_of::<Slot>() == 64);

pub(super) static TABLE: [Slot; SLOTS + 1] = [const { Slot::new() }; SLOTS + 1];
/// The samples that had too little room since the sampler last looked: counted behind the mark.
pub(super) static CRAMPED: AtomicU32 = AtomicU32::new(0);
/// The fields that the handler needs before it may use its stack.
pub(super) const GENERATION: usize = offset_of!(Slot, generation);
pub(super) const IS_CRAMPED: usize = offset_of!(Slot, is_cramped);
static NEXT_GENERATION: AtomicU32 = AtomicU32::new(FIRST);
/// The slots of threads that armed themselves, as a list for the sampler: one more than the first
/// index.
static NEW: AtomicU32 = AtomicU32::new(0);

/// A slot and its generation: one thread's for one profile after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SlotId {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl SlotId {
    /// In the form of the value of a timer's signal.
    pub(super) fn to_value(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(super) fn from_value(value: u64) -> Self {
        Self { index: value as u32, generation: (value >> 32) as u32 }
    }

    /// Whether a slot may have had this generation.
    pub(super) fn was_given(self) -> bool {
        let given = FIRST..NEXT_GENERATION.load(Ordering::Relaxed);
        (self.index as usize) <= ASKED && given.contains(&self.generation)
    }

    /// Whether it is that of the thread which is asked for its stack.
    pub(super) fn is_asked(self) -> bool {
        self.index as usize == ASKED
    }

    /// The slot, if the generation is its present one.
    pub(super) fn slot(self) -> Option<&'static Slot> {
        let slot = TABLE.get(self.index as usize)?;
        // Pairs with the store in `begin`. A slot without a generation is unused.
        let generation = slot.generation.load(Ordering::Acquire);
        (generation != 0 && generation == self.generation).then_some(slot)
    }
}

/// A thread's place in the table.
#[derive(Debug)]
pub(super) enum Claim {
    /// A slot without a generation yet.
    New(u32),
    /// The thread has a slot with a generation already.
    Known,
    /// All slots that it may use are taken.
    Full,
}

/// Takes a slot for a thread.
pub(super) fn claim(tid: u32) -> Claim {
    let index = |probe: usize| (tid as usize + probe) % SLOTS;
    let slots = || (0..PROBES).map(|probe| (index(probe) as u32, &TABLE[index(probe)]));
    // Acquire: pairs with the store in `free`.
    if slots().any(|(_, slot)| slot.tid.load(Ordering::Acquire) == tid) {
        return Claim::Known;
    }
    for (index, slot) in slots() {
        match slot.tid.compare_exchange(0, tid, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Claim::New(index),
            Err(other) if other == tid => return Claim::Known,
            Err(_) => {}
        }
    }
    Claim::Full
}

/// The slot of the thread whose stack is requested, and its index. Only the requesting thread uses
/// it, one at a time, and the sampler does not know it.
pub(super) fn asked() -> (u32, &'static Slot) {
    (ASKED as u32, &TABLE[ASKED])
}

/// The slot of this index.
pub(super) fn at(index: u32) -> &'static Slot {
    &TABLE[index as usize]
}

/// The id that a claimed slot will have.
pub(super) fn next_id(index: u32) -> SlotId {
    SlotId { index, generation: NEXT_GENERATION.fetch_add(1, Ordering::Relaxed) }
}

/// Tells the sampler of a slot that its thread has armed.
pub(super) fn announce(id: SlotId) {
    let slot = at(id.index);
    let mut first = NEW.load(Ordering::Relaxed);
    loop {
        slot.next.store(first, Ordering::Relaxed);
        // SeqCst: pairs with the swap in `announced`, and comes before the load of the period.
        match NEW.compare_exchange_weak(first, id.index + 1, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => first = other,
        }
    }
}

/// The slots that were announced since the last time; one whose thread has ended its timer itself
/// has no generation, and is the caller's to free. The sampler alone calls it.
pub(super) fn announced() -> impl Iterator<Item = (u32, SlotId)> {
    // SeqCst: pairs with the exchange in `announce`, and comes after the store of the period.
    let mut next = NEW.swap(0, Ordering::SeqCst);
    std::iter::from_fn(move || {
        let index = next.checked_sub(1)?;
        let slot = at(index);
        next = slot.next.load(Ordering::Relaxed);
        slot.is_new.store(false, Ordering::Relaxed);
        let generation = slot.generation.load(Ordering::Acquire);
        Some((slot.tid.load(Ordering::Relaxed), SlotId { index, generation }))
    })
}

/// The armed slots that [`announced`] will not give. The sampler alone calls it, before it has
/// armed any.
pub(super) fn abandoned() -> impl Iterator<Item = SlotId> {
    TABLE[..SLOTS].iter().zip(0..).filter_map(|(slot, index)| {
        // Acquire: pairs with the store in `begin`, which comes after `will_announce`.
        let generation = slot.generation.load(Ordering::Acquire);
        let is_left = generation != 0 && !slot.is_new.load(Ordering::Relaxed);
        is_left.then_some(SlotId { index, generation })
    })
}

/// Whether a sample had too little room since the last call. One whose mark is not seen yet is
/// followed by the next sample of its thread.
pub(super) fn are_cramped() -> bool {
    CRAMPED.load(Ordering::Relaxed) > 0 && CRAMPED.swap(0, Ordering::Relaxed) > 0
}

/// In a child of a fork, where no timer is: all slots are free. The first use there calls it.
pub(super) fn begin_again() {
    NEW.store(0, Ordering::Relaxed);
    for slot in TABLE[..SLOTS].iter().filter(|slot| slot.tid.load(Ordering::Relaxed) != 0) {
        slot.generation.store(0, Ordering::Relaxed);
        slot.free();
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            tid: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            timer: AtomicU32::new(0),
            next: AtomicU32::new(0),
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            block: AtomicPtr::new(ptr::null_mut()),
            claims: AtomicU64::new(0),
            strayed: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            is_filtered: AtomicBool::new(false),
            is_cramped: AtomicBool::new(false),
        }
    }

    /// The thread of a claimed slot arms itself, and will announce it.
    pub(super) fn will_announce(&self) {
        self.is_new.store(true, Ordering::Relaxed);
    }

    /// The slot is that of this thread, which is asked for its stack.
    pub(super) fn begin_to_ask(&self, tid: u32, is_filtered: bool) {
        self.is_filtered.store(is_filtered, Ordering::Relaxed);
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Whether the handler shall make no system call.
    pub(super) fn is_filtered(&self) -> bool {
        self.is_filtered.load(Ordering::Relaxed)
    }

    /// Whether a sample had too little room on the thread's alternate stack.
    pub(super) fn is_cramped(&self) -> bool {
        self.is_cramped.load(Ordering::Relaxed)
    }

    /// The id of the slot's present use, if it has a timer.
    pub(super) fn present(&self, index: u32) -> Option<SlotId> {
        let generation = self.generation.load(Ordering::Relaxed);
        (generation != 0).then_some(SlotId { index, generation })
    }

    /// The timer of a claimed slot is made, and not yet set.
    pub(super) fn begin(&self, id: SlotId, timer: u32) {
        self.timer.store(timer, Ordering::Relaxed);
        // Release: pairs with the load in `SlotId::slot`.
        self.generation.store(id.generation, Ordering::Release);
    }

    /// Ends this use of the slot: returns the timer, unless another thread has ended it. The slot
    /// is not free yet.
    pub(super) fn end(&self, id: SlotId) -> Option<u32> {
        // Before the slot can be another thread's.
        let timer = self.timer();
        let ended = self.generation.compare_exchange(id.generation, 0, Ordering::AcqRel, Ordering::Relaxed);
        (id.generation != 0 && ended.is_ok()).then_some(timer)
    }

    /// Gives back a slot without a generation.
    pub(super) fn free(&self) {
        self.high.store(0, Ordering::Relaxed);
        // Release: pairs with the load in `bounds`.
        self.low.store(0, Ordering::Release);
        self.block.store(ptr::null_mut(), Ordering::Relaxed);
        self.claims.store(0, Ordering::Relaxed);
        self.strayed.store(false, Ordering::Relaxed);
        self.is_new.store(false, Ordering::Relaxed);
        self.is_filtered.store(false, Ordering::Relaxed);
        self.is_cramped.store(false, Ordering::Relaxed);
        // Release: pairs with the exchange in `claim`.
        self.tid.store(0, Ordering::Release);
    }

    pub(super) fn timer(&self) -> u32 {
        self.timer.load(Ordering::Relaxed)
    }

    /// The id of the slot's thread.
    pub(super) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Relaxed)
    }

    /// Sets the bounds of the thread's own stack. It can be read from the stack pointer on, if that
    /// lies in between.
    pub(super) fn set_bounds(&self, low: usize, high: usize) {
        // A handler that sees one of the two alone: while they are empty, `high` is 0. Release: one
        // that sees this `low` with the `high` of an earlier thread looks again.
        self.low.store(low, Ordering::Release);
        // Release: pairs with the load in `bounds`.
        self.high.store(high, Ordering::Release);
    }

    /// The bounds of the thread's own stack.
    pub(super) fn bounds(&self) -> (usize, usize) {
        let high = self.high.load(Ordering::Acquire);
        // Pairs with the store in `free`: the slot may be given back in this moment.
        let low = self.low.load(Ordering::Acquire);
        if self.high.load(Ordering::Relaxed) == high { (low, high) } else { (0, 0) }
    }

    /// A sample came from outside of the bounds. On the thread itself.
    pub(super) fn stray(&self) {
        self.strayed.store(true, Ordering::Relaxed);
    }

    /// Whether a sample came from outside of the bounds since the last call.
    pub(super) fn has_strayed(&self) -> bool {
        self.strayed.swap(false, Ordering::Relaxed)
    }

    /// Remembers the thread's block.
    pub(super) fn set_block(&self, block: &'static ThreadBlock) {
        self.block.store(ptr::from_ref(block).cast_mut(), Ordering::Relaxed);
    }

    /// The task that the thread runs. On the thread itself.
    pub(super) fn current(&self, tid: u32) -> Current {
        let block = self.block.load(Ordering::Relaxed);
        // SAFETY: null, or set from a reference that lives for ever.
        let known = unsafe { block.as_ref() }.filter(|block| block.tid() == tid);
        known.or_else(|| self.find_block(tid)).map(ThreadBlock::own_current).unwrap_or_default()
    }

    /// Looks the thread's block up, if threads have claimed some since the last scan.
    #[cold]
    fn find_block(&self, tid: u32) -> Option<&'static ThreadBlock> {
        let claims = thread::claims();
        if self.claims.swap(claims, Ordering::Relaxed) == claims {
            return None;
        }
        let block = thread::find(tid)?;
        self.set_block(block);
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_given_up_is_free_once() {
        dormouse_testkit::in_child(|| {
            let Claim::New(index) = claim(7) else { panic!() };
            let id = next_id(index);
            at(index).begin(id, 3);
            announce(id);
            // Its thread sees that there is no profile.
            assert_eq!(at(index).end(id), Some(3));
            let mut list = announced();
            let (_, gone) = list.next().unwrap();
            assert_eq!((gone.index, gone.generation), (index, 0));
            assert!(list.next().is_none());
            // A slot without a generation is unused: its timer is not ended twice.
            assert!(gone.slot().is_none());
            assert_eq!(at(index).end(gone), None);
            assert_eq!(gone.slot().is_some(), id.slot().is_some());
            assert!(matches!(claim(7), Claim::Known));
            at(index).free();
            assert!(matches!(claim(7), Claim::New(_)));
        });
    }
}
