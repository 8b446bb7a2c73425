//! A lock that knows how long it was waited for.
//!
//! The uncontended path is that of the mutex; the clock is read only by who has to wait anyway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often and how long locks were waited for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Times that a lock was not free.
    pub times: u64,
    /// Wall time until it was, summed over the threads that waited.
    pub total: Duration,
}

/// A mutex on cache lines of its own (two, as they are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lock<T> {
    value: Mutex<T>,
    times: AtomicU64,
    nanos: AtomicU64,
}

impl<T> Lock<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        match self.value.try_lock() {
            Ok(guard) => guard,
            // A panic cannot come from inside, and a task that dies must not take all others along.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> MutexGuard<'_, T> {
        // Statistics: nothing is ordered by them.
        self.times.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        self.nanos.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        guard
    }

    pub(crate) fn waits(&self) -> Waits {
        Waits {
            times: self.times.load(Ordering::Relaxed),
            total: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_finds_the_lock_taken_waits() {
        let lock = Lock::<u32>::default();
        *lock.lock() += 1;
        assert_eq!(lock.waits(), Waits::default());
        let taken = lock.lock();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| *lock.lock());
            while lock.waits().times == 0 {
                std::thread::yield_now();
            }
            drop(taken);
            assert_eq!(other.join().unwrap(), 1);
        });
        let waits = lock.waits();
        assert!(waits.times == 1 && waits.total > Duration::ZERO, "{waits:?}");
    }
}
