//! The record of one task.
//!
//! A slot is used by a task (its *holder*) and by the wakers that the task's leaves have taken. It
//! is given back when both have left it, so a waker that is used after the task's end finds a slot
//! that belongs to no other task.
//!
//! # Invariants
//!
//! 1. Only the task writes its stamps and sums, within a write of the sequence.
//! 2. `life` is odd while a task holds the slot. It is never the same for two tasks, until it
//!    wraps.
//! 3. A slot of the present run is in a poll, or has an open wait in one row.
//!
//! # Safety
//!
//! The unsafe code asserts that slots may be zeroed and shared, and makes references to slots,
//! which stay.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64 as Plain, Ordering};
use std::task::Waker;

use dormouse_sys::sync::Sequence;

use crate::memory::Zeroed;
use crate::primitive::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
use crate::registration::Registration;
use crate::response::{Response, ResponseState};
use crate::share::Share;
use crate::traced::Traced;

/// The places of one task: it may wait for several things at once, and wakers of polls before may
/// be out. A waker's data have three bits for the number of one, from 1 on.
pub(crate) const PLACES: usize = 7;

/// A wake is a stamp, and in the bits above these the number of the registration whose waker it
/// was; 0: of none. The bits of the stamp are enough for 24 years at 3 GHz; without its lowest
/// ones, a counter at 24 MHz would lose a third of a microsecond.
pub(crate) const STAMP_BITS: u32 = 61;

#[inline]
pub(crate) fn wake(stamp: u64, by: u64) -> u64 {
    wake_stamp(stamp) | by << STAMP_BITS
}

#[inline]
pub(crate) fn wake_stamp(wake: u64) -> u64 {
    wake & ((1 << STAMP_BITS) - 1)
}

/// The first three cache lines are those that a poll uses.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// The users of the slot, and the runtime's waker while leaves hold ours.
    pub(crate) share: Share,
    /// The thread that polls with the slot's waker, by its start number, as long as it does; else
    /// 0.
    pub(crate) poller: AtomicU64,
    /// The runtime's waker of that poll.
    pub(crate) lent: AtomicPtr<Waker>,
    /// The first wake ([`wake`]) since the last poll began, by any thread; 0: none.
    pub(crate) woken: AtomicU64,
    /// The slot of the task that this one wakes; null: this one is it.
    pub(crate) of: AtomicPtr<Slot>,
    /// It is the cell of a part ([`crate::PartWaits`]).
    pub(crate) is_part: AtomicBool,
    pub(crate) answer: ResponseState,
    /// Where the task was spawned, and what is known of its wakers: see [`crate::sites`].
    pub(crate) spawned: AtomicU32,

    pub(crate) sequence: Sequence,
    /// When the last poll ended, or the task began.
    pub(crate) since: AtomicU64,
    /// When the poll that goes on began; 0 in between.
    pub(crate) polling: AtomicU64,
    /// Ticks in polls, runnable, and awaiting.
    pub(crate) ticks: [Plain; 3],
    pub(crate) polls: Plain,
    pub(crate) wakes: Plain,

    /// The run of [`crate::waiting`] to which the stamps belong.
    pub(crate) run: AtomicU64,
    pub(crate) task: AtomicU64,
    pub(crate) group: AtomicU32,
    pub(crate) life: AtomicU32,
    /// The slot whose waker is lent: this one (null), or one of its cells.
    pub(crate) cell: AtomicPtr<Slot>,
    /// The task inside of whose poll this one is polled.
    pub(crate) outer: AtomicPtr<Slot>,
    /// The upper end of the stack of the poll that goes on.
    pub(crate) top: AtomicUsize,
    /// When the poll of `outer` began, and the begin of the poll of which that is true.
    pub(crate) outer_begins: AtomicU64,
    pub(crate) outer_of: AtomicU64,

    /// The CPU time of the task, while it is requested. Only the thread that polls the task
    /// accesses it.
    pub(crate) cpu: CpuTime,
    /// When the task began, as a stamp, or when its request came; 0: before times were taken.
    pub(crate) begun: AtomicU64,
    pub(crate) response: Response,
    pub(crate) traced: Traced,
    /// The drop of the task, if it is dropped before its end ([`crate::cancelled`]); else 0.
    pub(crate) dropped: AtomicU64,
    /// The task is only numbers: see [`crate::numbered`]; else 0.
    pub(crate) numbered: AtomicU64,
    /// The places where leaves have taken wakers.
    pub(crate) registrations: [Registration; PLACES],
    /// The last poll in which a leaf found no registration, by its number.
    pub(crate) crowded: AtomicU32,
    /// The slab's: its number, the list where it belongs, and the next free slot's number and one.
    pub(crate) index: AtomicU32,
    pub(crate) home: AtomicU32,
    pub(crate) next: AtomicU32,
}

#[cfg(not(all(test, loom)))]
const _: () = assert!(std::mem::offset_of!(Slot, cpu) == 3 * 64);

// SAFETY: atomics alone, of which zero is a value.
unsafe impl Zeroed for Slot {}

/// A CPU time, and the number of the run of [`crate::cpu`] to which it belongs.
#[derive(Debug, Default)]
pub(crate) struct CpuTime {
    run: AtomicU64,
    ns: AtomicU64,
}

impl CpuTime {
    /// The time, if it is of that run.
    #[inline]
    pub(crate) fn of(&self, run: u64) -> Option<u64> {
        // Acquire: pairs with the store in `set`; the time is no older than its run.
        // And who sees a thread's time since its last turn sees what the turn gave to the task.
        (self.run.load(Ordering::Acquire) == run).then(|| self.ns.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn set(&self, run: u64, ns: u64) {
        // Release: both pair with the loads in `of`.
        self.ns.store(ns, Ordering::Release);
        self.run.store(run, Ordering::Release);
    }
}

/// The slot at `place`, if there is one.
#[inline]
pub(crate) fn at(place: &AtomicPtr<Slot>) -> Option<&'static Slot> {
    // SAFETY: null, or a slot, which stays. Acquire: pairs with the stores of `rows`.
    unsafe { place.load(Ordering::Acquire).as_ref() }
}

impl Slot {
    /// The slot is for this task, which takes it next.
    #[inline]
    pub(crate) fn prepare(&self, task: u64, group: u32) {
        self.task.store(task, Ordering::Relaxed);
        self.group.store(group, Ordering::Relaxed);
        self.spawned.store(0, Ordering::Relaxed);
    }

    /// The task leaves the slot.
    #[inline]
    pub(crate) fn leave(&self) {
        self.turn();
        self.polling.store(0, Ordering::Relaxed);
    }

    /// The task takes the slot, or leaves it: on its own thread, and no other changes the word.
    #[inline]
    pub(crate) fn turn(&self) {
        // Release: who finds it odd finds what the task has written before; who finds it even may
        // find another task's.
        self.life.store(self.life.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        // Pairs with the fence in `living::stamps`: who finds a word that is written from here on,
        // for no task or for the next, finds this life over.
        fence(Ordering::Release);
    }

    /// The slot of the task.
    #[inline]
    pub(crate) fn main(&self) -> &Slot {
        // A cell keeps its task's slot.
        at(&self.of).unwrap_or(self)
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::woken_by;

    #[test]
    fn a_wake_keeps_its_whole_stamp() {
        for by in 0..=PLACES {
            let woken = wake(12_345, by as u64);
            assert_eq!((wake_stamp(woken), woken_by(woken)), (12_345, by.checked_sub(1)));
        }
    }
}
