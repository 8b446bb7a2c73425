//! A lock that measures how long threads have waited for it.
//!
//! The uncontended path is that of the mutex; only a thread that has to wait anyway reads the
//! clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A mutex on cache lines of its own (two, as they are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Lock<T> {
    value: Mutex<T>,
    waited_ns: AtomicU64,
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
        let begin = Instant::now();
        let guard = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        // A statistic, which orders nothing.
        self.waited_ns.fetch_add(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        guard
    }

    /// Wall time that threads have waited, summed.
    pub(crate) fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_taken_lock_is_waited_for() {
        let lock = Lock::<u32>::default();
        *lock.lock() += 1;
        assert_eq!(lock.waited(), Duration::ZERO);
        // The other thread may come when the lock is free again.
        while lock.waited() == Duration::ZERO {
            let taken = lock.lock();
            std::thread::scope(|scope| {
                let other = scope.spawn(|| *lock.lock());
                std::thread::sleep(Duration::from_millis(1));
                drop(taken);
                assert_eq!(other.join().unwrap(), 1);
            });
        }
    }
}
