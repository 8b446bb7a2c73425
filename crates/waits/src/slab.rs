//! All slots: mapped when they are needed, reused, and never unmapped.
//!
//! # Invariants
//!
//! 1. A slot stays where it is, and remains a slot for ever. So reading one needs no lock, and the
//!    reader checks what it saw by the slot's `life`.
//! 2. A free slot is in one list. A list is one word: its first slot, and a count of changes, so
//!    that a thread that has read a first slot detects that others have taken it and given it back.
//!    (The count wraps after 2^32 changes of one list in the midst of one exchange.)
//! 3. Slots of threads that a fork does not copy stay taken in the child.
//!
//! # Safety
//!
//! The unsafe code makes references to slots, whose mappings stay.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::memory;
use crate::slot::Slot;

/// How many slots are mapped at once.
const CHUNK: usize = 1024;

/// How many chunks there can be.
const CHUNKS: usize = 1024;

/// How many slots there can be.
pub(crate) const SLOTS: usize = CHUNK * CHUNKS;

/// Lists of free slots: threads that begin tasks at the same time have different ones, mostly.
const LISTS: usize = 16;

static MAPPED: [AtomicPtr<Slot>; CHUNKS] = [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS];
/// How many slots somebody has had: those from here on are as the kernel gives them.
static USED: AtomicU32 = AtomicU32::new(0);
/// Tasks for which there was no slot.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The first free slot's index and one in the lower half, and a count of changes in the upper.
#[repr(align(128))]
struct List(AtomicU64);

static FREE: [List; LISTS] = [const { List(AtomicU64::new(0)) }; LISTS];

/// The slot with that index, if its chunk is mapped: used, free, or never used.
pub(crate) fn slot(index: u32) -> Option<&'static Slot> {
    // Acquire: pairs with the exchange in `put`.
    let chunk = MAPPED.get(index as usize / CHUNK)?.load(Ordering::Acquire);
    // SAFETY: null, or a chunk of that many slots, which stays.
    (!chunk.is_null()).then(|| unsafe { &*chunk.add(index as usize % CHUNK) })
}

impl List {
    fn pop(&self) -> Option<&'static Slot> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let first = slot((head as u32).checked_sub(1)?)?;
            let next = u64::from(first.next.load(Ordering::Relaxed));
            let changed = (head >> 32).wrapping_add(1) << 32 | next;
            match self.0.compare_exchange_weak(head, changed, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(first),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a slot in front.
    fn push(&self, slot: &Slot) {
        let number = u64::from(slot.index.load(Ordering::Relaxed) + 1);
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            slot.next.store(head as u32, Ordering::Relaxed);
            let changed = (head >> 32).wrapping_add(1) << 32 | number;
            // Release: who pops finds the slot as it was left.
            match self.0.compare_exchange_weak(head, changed, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// A slot that is in no use; `None` if there is no room, which is counted. Threads that begin tasks
/// pass different `near`.
pub(crate) fn take(near: usize) -> Option<&'static Slot> {
    let home = near % LISTS;
    let found = FREE[home].pop().or_else(|| FREE.iter().find_map(List::pop)).or_else(fresh);
    match found {
        Some(slot) => slot.home.store(home as u32, Ordering::Relaxed),
        None => _ = REFUSED.fetch_add(1, Ordering::Relaxed),
    }
    found
}

/// A slot that was never used.
fn fresh() -> Option<&'static Slot> {
    let mut index = USED.load(Ordering::Relaxed);
    loop {
        let Some(slot) = slot(index) else {
            grow(index as usize / CHUNK)?;
            continue;
        };
        // Release: a reading of all slots finds the chunk of this one.
        match USED.compare_exchange_weak(index, index + 1, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                slot.index.store(index, Ordering::Relaxed);
                return Some(slot);
            }
            Err(now) => index = now,
        }
    }
}

/// Maps the chunk with that number, unless another thread was quicker.
#[cold]
fn grow(number: usize) -> Option<()> {
    let place = MAPPED.get(number)?;
    memory::put(place, memory::map::<Slot>(CHUNK)?);
    Some(())
}

/// Gives back a slot that is in no use any more.
pub(crate) fn give_back(slot: &Slot) {
    let home = slot.home.load(Ordering::Relaxed) as usize % LISTS;
    FREE[home].push(slot);
}

/// All slots that somebody has had, used and free.
pub(crate) fn all() -> impl Iterator<Item = &'static Slot> {
    part(0, usize::MAX).0
}

/// At most `most` slots from the one with this index on, used and free; and how many there are in
/// all.
pub(crate) fn part(from: usize, most: usize) -> (impl Iterator<Item = &'static Slot>, usize) {
    // Acquire: pairs with the exchange in `fresh`.
    let all = USED.load(Ordering::Acquire) as usize;
    let end = all.min(from.saturating_add(most));
    ((from.min(end)..end).filter_map(|index| slot(index as u32)), all)
}

/// How often there was no room for a task's times: such tasks have none.
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}
