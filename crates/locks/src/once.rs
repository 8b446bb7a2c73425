//! A `Once` with the face of `std::sync::Once`.

use std::panic::Location;
use std::ptr;
use std::sync::{self, OnceState};

use crate::kind::{LockKind, LockType};
use crate::leave::Held;
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
            self.call(Location::caller(), |once, hold| {
                once.call_once(|| {
                    let _held = hold();
                    work();
                });
            });
        }
    }

    /// [`Once::call_once`], also if the work panicked before; the state says whether it did.
    #[inline]
    #[track_caller]
    pub fn call_once_force(&self, work: impl FnOnce(&OnceState)) {
        if !self.0.is_completed() {
            self.call(Location::caller(), |once, hold| {
                once.call_once_force(|state| {
                    let _held = hold();
                    work(state);
                });
            });
        }
    }

    /// Waits until the work is done, whether or not a thread has begun it.
    ///
    /// # Panics
    ///
    /// If the work panicked before.
    #[inline]
    #[track_caller]
    pub fn wait(&self) {
        if !self.0.is_completed() {
            self.wait_by(Location::caller(), sync::Once::wait);
        }
    }

    /// [`Once::wait`], also if the work panicked before: then until another thread has done it.
    #[inline]
    #[track_caller]
    pub fn wait_force(&self) {
        if !self.0.is_completed() {
            self.wait_by(Location::caller(), sync::Once::wait_force);
        }
    }

    /// Whether the work is done.
    #[inline]
    pub fn is_completed(&self) -> bool {
        self.0.is_completed()
    }

    fn lock_of(&self) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(LockKind::Once) }
    }

    fn begin(&self, site: &'static Location<'static>) -> Option<Taker> {
        if are_noted() { Taker::begin(self.lock_of(), site) } else { None }
    }

    /// Does the work by a function of std's, or waits for a thread that does it. The work notes its
    /// thread as the holder.
    #[cold]
    fn call(&self, site: &'static Location<'static>, by: impl FnOnce(&sync::Once, &mut dyn FnMut() -> Held)) {
        let (lock, taker) = (self.lock_of(), self.begin(site));
        let mut waiting = taker.and_then(|taker| taker.wait_for_holder(lock));
        by(&self.0, &mut || {
            // The thread before it has panicked.
            drop(waiting.take());
            taker.map_or(Held::NONE, |taker| taker.taken(lock))
        });
        if let Some(waiting) = waiting {
            waiting.end();
        }
    }

    #[cold]
    fn wait_by(&self, site: &'static Location<'static>, wait: impl FnOnce(&sync::Once)) {
        let waiting = self.begin(site).map(|taker| taker.wait_in_queue(self.lock_of()));
        wait(&self.0);
        if let Some(waiting) = waiting {
            waiting.end();
        }
    }
}
