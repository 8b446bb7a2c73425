//! A condition variable with the face of `std::sync::Condvar`.
//!
//! A wait frees the mutex, so its thread is no holder meanwhile. Afterwards it holds the mutex
//! again, by the line that waits. For how long it waited for the mutex, and not for the condition,
//! is not known, so it counts as no wait.

use std::panic::Location;
use std::sync::{self, LockResult, WaitTimeoutResult};
use std::time::Duration;

use crate::face::{LockGuard, map};
use crate::mutex::MutexGuard;

/// `std::sync::Condvar` for a [`Mutex`](crate::Mutex) of this crate.
#[derive(Debug, Default)]
pub struct Condvar(sync::Condvar);

const _: () = assert!(size_of::<Condvar>() == size_of::<sync::Condvar>());

impl Condvar {
    /// A condition variable for which nobody waits.
    pub const fn new() -> Self {
        Self(sync::Condvar::new())
    }

    /// Frees the mutex, waits for a notification, and takes the mutex again. It may return without
    /// one.
    ///
    /// # Errors
    ///
    /// If a thread panicked with the lock. The guard is in the error.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        let (inner, mutex) = guard.leave();
        let site = Location::caller();
        map(self.0.wait(inner), |inner| mutex.again(inner, site))
    }

    /// Waits as long as the condition is true.
    ///
    /// # Errors
    ///
    /// See [`Condvar::wait`].
    #[track_caller]
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<MutexGuard<'a, T>> {
        while condition(&mut guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Waits for at most that time.
    ///
    /// # Errors
    ///
    /// See [`Condvar::wait`].
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (inner, mutex) = guard.leave();
        let site = Location::caller();
        map(self.0.wait_timeout(inner, at_most), |(inner, over)| (mutex.again(inner, site), over))
    }

    /// Waits as long as the condition is true, and for at most that time.
    ///
    /// # Errors
    ///
    /// See [`Condvar::wait`].
    #[track_caller]
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        at_most: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        let (inner, held, mutex) = guard.into_parts();
        let (site, mut held) = (Location::caller(), Some(held));
        // The thread is the holder while the condition reads the value, and not while it waits.
        let waited = self.0.wait_timeout_while(inner, at_most, |value| {
            let own = held.take().unwrap_or_else(|| mutex.hold(site));
            let waits = condition(value);
            if !waits {
                held = Some(own);
            }
            waits
        });
        let held = held.unwrap_or_else(|| mutex.hold(site));
        map(waited, |(inner, over)| (LockGuard::new(inner, held, mutex), over))
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
