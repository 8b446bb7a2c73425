//! A `Once` with the face of `std::sync::Once`.

use std::panic::Location;
use std::ptr;
use std::sync;

use crate::kind::{LockKind, LockType};
use crate::note::{Lock, Taker};
use crate::run::are_noted;

/// `std::sync::Once` that shows which thread does the work, and which threads wait for it.
#[derive(Debug)]
#[repr(transparent)]
pub struct Once(sync::Once);

const _: () = assert!(size_of::<Once>() == size_of::<sync::Once>());

impl Once {
    /// Work that nobody has done.
    #[allow(clippy::new_without_default, reason = "as std's")]
    pub const fn new() -> Self {
        Self(sync::Once::new())
    }

    /// Does the work unless it is done, and waits for a thread that does it.
    ///
    /// # Panics
    ///
    /// If the work panicked before.
    #[inline]
    #[track_caller]
    pub fn call_once(&self, work: impl FnOnce()) {
        if !self.0.is_completed() {
            self.call(Location::caller(), work);
        }
    }

    #[cold]
    fn call(&self, site: &'static Location<'static>, work: impl FnOnce()) {
        let lock = Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(LockKind::Once) };
        let taker = if are_noted() { Taker::begin(lock, site) } else { None };
        let mut waiting = taker.and_then(|taker| taker.wait_for_holder(lock));
        self.0.call_once(|| {
            // The thread before it has panicked.
            drop(waiting.take());
            let _held = taker.map(|taker| taker.taken(lock));
            work();
        });
        if let Some(waiting) = waiting {
            waiting.end();
        }
    }

    /// Whether the work is done.
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.0.is_completed()
    }
}
