//! A semaphore for threads, which std does not have.

use std::panic::Location;
use std::ptr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::kind::{LockKind, LockType};
use crate::leave::Held;
use crate::note::{Lock, take, take_free};
use crate::run::are_noted;

/// A number of permits that threads take and give back. It shows who has them, by the line that
/// took each.
///
/// ```
/// use dormouse_locks::Semaphore;
///
/// static POTS: Semaphore = Semaphore::new(1);
/// let pot = POTS.acquire();
/// assert!(POTS.try_acquire().is_none());
/// drop(pot);
/// assert_eq!(POTS.available_permits(), 1);
/// ```
#[derive(Debug)]
pub struct Semaphore {
    permits: Mutex<usize>,
    freed: Condvar,
}

const _: () = assert!(size_of::<Semaphore>() <= 24, "a mutex with a number, and a condition variable");

/// A permit; it is given back when it is dropped.
#[derive(Debug)]
#[must_use = "the permit is given back when it is dropped"]
pub struct SemaphorePermit<'a> {
    // In this order: the holder is removed before the permit is free. It is here for its drop.
    _held: Held,
    _permit: Permit<'a>,
}

#[derive(Debug)]
struct Permit<'a>(&'a Semaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Semaphore {
    /// A semaphore with this number of permits.
    pub const fn new(permits: usize) -> Self {
        Self { permits: Mutex::new(permits), freed: Condvar::new() }
    }

    fn lock_of(&self) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(LockKind::Permit) }
    }

    fn permits(&self) -> MutexGuard<'_, usize> {
        self.permits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempt(&self) -> Option<Permit<'_>> {
        let mut permits = self.permits();
        *permits = permits.checked_sub(1)?;
        Some(Permit(self))
    }

    fn wait(&self, until: Option<Instant>) -> Option<Permit<'_>> {
        let mut permits = self.permits();
        loop {
            if let Some(left) = permits.checked_sub(1) {
                *permits = left;
                return Some(Permit(self));
            }
            permits = match until {
                None => self.freed.wait(permits).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.checked_duration_since(Instant::now())?;
                    let waited = self.freed.wait_timeout(permits, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn take(&self, site: &'static Location<'static>, until: Option<Instant>) -> Option<SemaphorePermit<'_>> {
        let wait = || self.wait(until);
        let (permit, held) = if are_noted() {
            take(self.lock_of(), site, || self.attempt(), wait, until.is_some())?
        } else {
            (wait()?, Held::NONE)
        };
        Some(SemaphorePermit { _held: held, _permit: permit })
    }

    /// Takes a permit, and waits until there is one.
    #[track_caller]
    pub fn acquire(&self) -> SemaphorePermit<'_> {
        match self.take(Location::caller(), None) {
            Some(permit) => permit,
            None => unreachable!("a wait without an end by time was given up"),
        }
    }

    /// Takes a permit, and waits for at most that time.
    #[track_caller]
    pub fn acquire_timeout(&self, at_most: Duration) -> Option<SemaphorePermit<'_>> {
        // A time that no clock has is never over.
        self.take(Location::caller(), Instant::now().checked_add(at_most))
    }

    /// Takes a permit if there is one.
    #[track_caller]
    pub fn try_acquire(&self) -> Option<SemaphorePermit<'_>> {
        let attempt = || self.attempt().ok_or(());
        let (permit, held) = take_free(self.lock_of(), Location::caller(), attempt).ok()?;
        Some(SemaphorePermit { _held: held, _permit: permit })
    }

    /// The permits that nobody has.
    pub fn available_permits(&self) -> usize {
        *self.permits()
    }

    /// Adds permits.
    pub fn add_permits(&self, more: usize) {
        let mut permits = self.permits();
        *permits = permits.saturating_add(more);
        drop(permits);
        if more == 1 { self.freed.notify_one() } else { self.freed.notify_all() }
    }
}
