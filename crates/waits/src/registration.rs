//! A registration: the wakers that leaves of a task have taken at one place.
//!
//! # The words
//!
//! Wakers are counted by the *turn* of the poll that has given them out: polls alternate between
//! turns 1 and 2, so that a waker of the last poll is distinguished from one of this poll. A poll
//! while places are not requested has turn 0, and its wakers are not counted.
//!
//! # Invariants
//!
//! 1. A waker that counts contains its registration and turn, and is subtracted from exactly these.
//!    So no
//!    count ever belongs to another place, whatever polls have come since.
//! 2. Only the thread that polls the task changes a word from 0, and it writes the place while both
//!    words are 0. Other threads only add to the count of a waker that is counted already. So
//!    while no waker counts in a word, or only one that the polling thread drops, no other thread
//!    changes it, and a plain store does.

use std::sync::atomic::Ordering;

use crate::primitive::AtomicU32;

/// A leaf gets a waker of this registration while fewer than this are out from earlier polls of the
/// same turn.
///
/// Some leaves keep each waker that they are given unless one that they have would do
/// (`will_wake`). From this limit on, such a leaf gets a copy of the waker that it was lent. The
/// next poll of that turn lends the same, so the leaf finds that it has it, and takes none any
/// more. It holds eight at most.
const KEPT: u32 = 3;

/// The limit for wakers of the poll that goes on. A waker of a registration differs from the lent
/// one, so a leaf that compares takes another each time that it is polled in this poll. Most
/// collections poll all of their parts from one place in each poll: those beyond the limit have no
/// registration.
const KEPT_IN_POLL: u32 = 64;

/// Stands for the number of the poll in a registration of parts of a set. A set polls each of its
/// parts when that part is woken, so all wakers of the registration count, whichever poll has given
/// them out.
pub(crate) const PART: u32 = u32::MAX;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    /// The wakers of turn 1 and of turn 2.
    wakers: [AtomicU32; 2],
    /// The number of the place; 0: none yet.
    place: AtomicU32,
    /// The last poll in which a leaf has taken a waker here, by its number; 0: one of an earlier
    /// run.
    poll: AtomicU32,
}

/// The turn of a poll by its number.
pub(crate) fn turn(poll: u32) -> usize {
    1 + (poll & 1) as usize
}

impl Registration {
    /// The number of its place, also when the wakers are gone.
    #[inline]
    pub(crate) fn place(&self) -> u32 {
        self.place.load(Ordering::Relaxed)
    }

    /// The poll of its last waker.
    pub(crate) fn poll(&self) -> u32 {
        self.poll.load(Ordering::Relaxed)
    }

    /// Whether no waker of it is out. Acquire: pairs with the subtraction in `remove`; what others
    /// have read of the registration comes before its next place.
    pub(crate) fn is_free(&self) -> bool {
        self.wakers.iter().all(|wakers| wakers.load(Ordering::Acquire) == 0)
    }

    /// Whether a waker of its last poll is out.
    pub(crate) fn is_taken(&self) -> bool {
        match self.poll() {
            PART => !self.is_free(),
            poll => self.wakers_of(turn(poll)) > 0,
        }
    }

    fn wakers_of(&self, turn: usize) -> u32 {
        self.of(turn).load(Ordering::Relaxed)
    }

    #[inline]
    fn of(&self, turn: usize) -> &AtomicU32 {
        &self.wakers[(turn - 1) & 1]
    }

    /// A leaf is to have a waker of that poll, on the thread that polls: whether there may be one
    /// more. The registration is free, or it has the place.
    pub(crate) fn take(&self, place: u32, poll: u32) -> bool {
        let kept = if self.poll() == poll { KEPT_IN_POLL } else { KEPT };
        if poll != PART && self.wakers_of(turn(poll)) >= kept {
            return false;
        }
        self.place.store(place, Ordering::Relaxed);
        self.poll.store(poll, Ordering::Relaxed);
        true
    }

    /// One waker more, after [`Registration::take`], or of one that counts.
    #[inline]
    pub(crate) fn add(&self, turn: usize) {
        let wakers = self.of(turn);
        if wakers.load(Ordering::Relaxed) == 0 {
            // By invariant 2 this is the thread that polls, and no other changes the word.
            wakers.store(1, Ordering::Relaxed);
        } else {
            wakers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A waker that counts is gone. `is_polling`: on the thread that polls the task, in the poll.
    #[inline]
    pub(crate) fn remove(&self, turn: usize, is_polling: bool) {
        let wakers = self.of(turn);
        // Release: pairs with `is_free`.
        if is_polling && wakers.load(Ordering::Relaxed) == 1 {
            // The caller's is the only waker, so by invariant 2 no other thread changes the word.
            wakers.store(0, Ordering::Release);
        } else {
            wakers.fetch_sub(1, Ordering::Release);
        }
    }

    /// Polls are numbered anew.
    pub(crate) fn restart(&self) {
        self.poll.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod interleavings;
