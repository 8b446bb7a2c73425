//! The users of a slot, and the runtime's waker in it.
//!
//! # The word
//!
//! | bits | are |
//! |---|---|
//! | [`TASK`] | a task holds the slot |
//! | [`WAKER`], counted | the wakers that leaves hold |
//! | [`CELL`], counted | the slots that are only further wakers of this slot's task |
//!
//! # Invariants
//!
//! 1. While the count of wakers is not 0, the runtime's waker is there, and does not change. Each
//!    waker that is counted may use it.
//! 2. Only the thread that polls the slot's task changes the count from 0 to 1, within the poll,
//!    and adds cells. So only that thread writes the runtime's waker, when no other reads it, and
//!    only it writes a word that equals [`TASK`].
//! 3. The thread that changes the count to 0 has read the runtime's waker before, and owns it from
//!    then on.
//! 4. The thread that changes the word to 0 gives the slot back, and does not touch it before the
//!    next use.
//!
//! # Safety
//!
//! The unsafe code follows the pointer to a static vtable.

use std::sync::atomic::Ordering;
use std::task::{RawWaker, RawWakerVTable};

use crate::primitive::{AtomicPtr, AtomicU64};

pub(crate) const TASK: u64 = 1;
pub(crate) const CELL: u64 = 1 << 32;
const WAKER: u64 = 1 << 1;
const WAKERS: u64 = CELL - WAKER;
/// The most wakers that are counted; further ones are the runtime's.
const FULL: u64 = WAKERS / 2;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Share {
    word: AtomicU64,
    /// The runtime's waker: its data, and its vtable.
    data: AtomicPtr<()>,
    vtable: AtomicPtr<RawWakerVTable>,
}

/// A waker of the runtime's, as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) data: *const (),
    pub(crate) vtable: *const RawWakerVTable,
}

/// Whether one waker more counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// It counts now.
    Counted,
    /// There is no waker yet.
    Empty,
    /// There are too many wakers.
    Full,
}

/// The things that the last waker takes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Last {
    /// The runtime's waker, which is the caller's now.
    pub(crate) raw: Raw,
    /// The caller is to give the slot back.
    pub(crate) is_free: bool,
}

impl Raw {
    #[inline]
    pub(crate) fn new(data: *const (), vtable: &'static RawWakerVTable) -> Self {
        Self { data, vtable }
    }

    /// # Safety
    ///
    /// It is of a waker that is still there.
    #[inline]
    #[allow(unsafe_code)]
    pub(crate) unsafe fn into_raw_waker(self) -> RawWaker {
        // SAFETY: vtables are static.
        RawWaker::new(self.data, unsafe { &*self.vtable })
    }
}

impl Share {
    /// Marks a slot that is in no use as held by a task.
    pub(crate) fn hold(&self) {
        debug_assert_eq!(self.word.load(Ordering::Relaxed), 0);
        self.word.store(TASK, Ordering::Relaxed);
    }

    /// One cell more, for the task that holds the slot.
    pub(crate) fn add_cell(&self) {
        self.word.fetch_add(CELL, Ordering::Relaxed);
    }

    /// How many cells there are.
    pub(crate) fn cells(&self) -> u64 {
        self.word.load(Ordering::Relaxed) / CELL
    }

    /// How many wakers leaves have.
    pub(crate) fn wakers(&self) -> u64 {
        (self.word.load(Ordering::Relaxed) & WAKERS) / WAKER
    }

    /// Takes away [`TASK`] or [`CELL`], which is the caller's; true: the caller is to give the slot
    /// back.
    #[must_use]
    pub(crate) fn leave(&self, what: u64) -> bool {
        // AcqRel: what all have done with the slot comes before its next use.
        self.word.fetch_sub(what, Ordering::AcqRel) == what
    }

    /// Whether leaves have wakers. Acquire: pairs with the exchange in `release`; if there are
    /// none, the next poll may write the runtime's.
    #[inline]
    pub(crate) fn has_wakers(&self) -> bool {
        self.word.load(Ordering::Acquire) & WAKERS != 0
    }

    /// The runtime's waker. It is there for callers that count; others may compare with it.
    #[inline]
    pub(crate) fn raw(&self) -> Raw {
        Raw { data: self.data.load(Ordering::Relaxed), vtable: self.vtable.load(Ordering::Relaxed) }
    }

    /// Counts one waker more, if there is one.
    #[inline]
    pub(crate) fn more(&self) -> More {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            match word & WAKERS {
                0 => return More::Empty,
                wakers if wakers >= FULL => return More::Full,
                _ => {}
            }
            // Acquire: pairs with the exchange in `fill`; who counts finds the runtime's waker.
            match self.word.compare_exchange_weak(word, word + WAKER, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return More::Counted,
                Err(now) => word = now,
            }
        }
    }

    /// Counts one waker more, the first one with `raw` as the runtime's: true if that is so. On the
    /// thread that polls.
    #[inline]
    pub(crate) fn fill(&self, raw: Raw) -> bool {
        // Acquire: pairs with the exchange in `release`; the last one has read what we write.
        let mut word = self.word.load(Ordering::Acquire);
        if word == TASK {
            self.write(raw);
            // No other thread has a waker or a cell, so no other thread writes the word. Release:
            // pairs with the exchanges of threads that count later.
            self.word.store(TASK + WAKER, Ordering::Release);
            return true;
        }
        loop {
            let is_first = word & WAKERS == 0;
            if is_first {
                self.write(raw);
            }
            // Release: as above.
            match self.word.compare_exchange_weak(word, word + WAKER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return is_first,
                Err(now) => word = now,
            }
        }
    }

    fn write(&self, raw: Raw) {
        self.data.store(raw.data.cast_mut(), Ordering::Relaxed);
        self.vtable.store(raw.vtable.cast_mut(), Ordering::Relaxed);
    }

    /// A waker counts no longer. The last one takes the runtime's with it.
    #[inline]
    pub(crate) fn release(&self) -> Option<Last> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            match self.step_down(word) {
                Ok(last) => return last,
                Err(now) => word = now,
            }
        }
    }

    /// Does what [`Share::release`] does if the caller's waker is the only one; otherwise changes
    /// nothing.
    #[inline]
    pub(crate) fn release_last(&self) -> Option<Last> {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & WAKERS == WAKER {
            match self.step_down(word) {
                Ok(last) => return last,
                Err(now) => word = now,
            }
        }
        None
    }

    #[inline]
    fn step_down(&self, word: u64) -> Result<Option<Last>, u64> {
        debug_assert_ne!(word & WAKERS, 0);
        // By invariant 1 it is there, before the exchange.
        let raw = self.raw();
        let next = word - WAKER;
        // AcqRel: pairs with itself and with `fill`: what others have done with the runtime's waker
        // comes before its drop, and what we have read before the next is written.
        self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)?;
        Ok((next & WAKERS == 0).then_some(Last { raw, is_free: next == 0 }))
    }
}

#[cfg(all(test, loom))]
mod interleavings;
