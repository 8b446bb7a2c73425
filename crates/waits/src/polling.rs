//! The times of one poll, from its begin to its end.
//!
//! # Safety
//!
//! The unsafe code reads and drops a poll that was written in place, as its flag says.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use dormouse_clock::overhead::TASKS;

use crate::stretch::Stretch;
use crate::waker::Lent;

/// A poll with times. In this order: the waker ends with the time.
pub(crate) struct Polling {
    pub(crate) lent: Lent,
    pub(crate) stretch: Stretch,
}

/// The place of a [`Polling`], which is written where it stays: a copy of words that were just
/// written would wait until they are in the cache.
pub(crate) struct Place {
    pub(crate) is_filled: bool,
    pub(crate) polling: MaybeUninit<Polling>,
}

impl Place {
    /// A constant in its place would have each poll copy all of its words.
    #[inline]
    pub(crate) fn empty() -> Self {
        Self { is_filled: false, polling: MaybeUninit::uninit() }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&Polling> {
        // SAFETY: `TaskWaits::poll_inside` sets the flag when it has written the poll.
        self.is_filled.then(|| unsafe { self.polling.assume_init_ref() })
    }

    /// Not inlined, so that asleep the end of a poll need not save the registers that this uses.
    #[inline(never)]
    fn end(&mut self) {
        let _timed = TASKS.begin();
        // SAFETY: only `drop` calls this, if the flag is set; it is not used any more.
        unsafe { self.polling.assume_init_drop() };
    }
}

impl Drop for Place {
    #[inline]
    fn drop(&mut self) {
        if self.is_filled {
            self.end();
        }
    }
}
