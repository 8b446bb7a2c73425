//! A lock that several copies of dormouse share, that knows its owner, and that forks respect.
//!
//! One word, so that copies which were built apart agree on it: 0 when free, else the owner's thread id, with
//! a bit for "somebody sleeps". Owner and lock change in one step, so a signal handler on a thread that holds
//! the lock, or is just taking it, is told so and not left waiting for itself. (Neither `std` nor `pthread`
//! has one of fixed layout that does.)
//!
//! # Fork
//!
//! A fork waits for the lock and holds it meanwhile (whoever has a lock installs the handlers; those of the patch lock are
//! in [`crate::rendezvous`]), so the child finds what the lock protects as it is between two owners, and the lock free. A
//! signal handler that forks over what its own thread does under the lock cannot wait; its child finds the lock held by
//! itself.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::thread::futex;

/// Somebody sleeps. Thread ids have at most 30 bits.
const WAITERS: u32 = 1 << 31;

/// The lock. Protects nothing by itself.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    word: AtomicU32,
    /// A fork has taken the lock; only changed by the owner.
    forking: AtomicBool,
    /// The owner forks, by a signal handler over what it does under the lock; only changed by the owner.
    split: AtomicBool,
}

/// The calling thread holds the lock already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held;

/// Frees the lock when dropped.
#[derive(Debug)]
#[must_use = "the lock is free again when the guard is dropped"]
pub struct Guard<'a> {
    lock: &'a Lock,
    /// A lock is its thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Lock {
    /// A free one.
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), forking: AtomicBool::new(false), split: AtomicBool::new(false) }
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> Result<Guard<'_>, Held> {
        self.acquire()?;
        Ok(Guard { lock: self, _not_send: std::marker::PhantomData })
    }

    fn acquire(&self) -> Result<(), Held> {
        let own = own();
        let mut wanted = own;
        loop {
            // Pairs with the swap in `release`.
            let Err(word) = self.word.compare_exchange(0, wanted, Ordering::Acquire, Ordering::Relaxed)
            else {
                return Ok(());
            };
            if word & !WAITERS == own {
                return Err(Held);
            }
            let slept = word | WAITERS;
            if word == slept
                || self.word.compare_exchange(word, slept, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                // Interrupted, woken, or the word has changed: look again.
                let _ = futex::wait(&self.word, futex::Flags::PRIVATE, slept, None);
                // Others may sleep still, and the bit is all that is known of them.
                wanted = own | WAITERS;
            }
        }
    }

    fn release(&self) {
        // Pairs with the exchange in `acquire`.
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
    }

    /// Called before a fork, on the thread that forks. True: the fork has the lock, by this call or by an earlier
    /// handler's. False: the thread had it already, and forks by a signal handler over what it does under it; then
    /// parent and child each go on with that, each under the lock.
    pub fn before_fork(&self) -> bool {
        let is_taken = self.acquire().is_ok() || self.forking.load(Ordering::Relaxed);
        self.forking.store(is_taken, Ordering::Relaxed);
        self.split.store(!is_taken, Ordering::Relaxed);
        is_taken
    }

    /// Called after a fork, in the parent, by every handler that called [`Lock::before_fork`].
    pub fn in_parent(&self) {
        // Another thread may hold it by now, for a fork of its own.
        if self.word.load(Ordering::Relaxed) & !WAITERS != own() {
            return;
        }
        self.split.store(false, Ordering::Relaxed);
        if self.forking.swap(false, Ordering::Relaxed) {
            self.release();
        }
    }

    /// Called after a fork, in the child, which has no other threads, by every such handler.
    pub fn in_child(&self) {
        if self.forking.swap(false, Ordering::Relaxed) {
            self.reset();
        } else if self.split.swap(false, Ordering::Relaxed) {
            // The same thread under its new name.
            self.word.store(own(), Ordering::Relaxed);
        }
    }

    /// In a forked child: frees a lock that the fork did not wait for.
    pub(crate) fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}

fn own() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_is_inside() {
        static LOCK: Lock = Lock::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let guard = LOCK.lock().unwrap();
                        let before = COUNT.load(Ordering::Relaxed);
                        COUNT.store(before + 1, Ordering::Relaxed);
                        drop(guard);
                    }
                });
            }
        });
        assert_eq!(COUNT.load(Ordering::Relaxed), 80_000);
        assert_eq!(LOCK.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_thread_that_holds_the_lock_is_told_so() {
        let lock = Lock::new();
        let guard = lock.lock().unwrap();
        assert_eq!(lock.lock().unwrap_err(), Held);
        drop(guard);
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn a_fork_that_is_over_does_not_free_the_lock_of_another_threads() {
        let lock = Lock::new();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(lock.before_fork()));
        });
        lock.in_parent();
        assert_ne!(lock.word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_fork_holds_the_lock_and_a_handler_that_forks_under_it_does_not() {
        let lock = Lock::new();
        assert!(lock.before_fork());
        assert_eq!(lock.lock().unwrap_err(), Held);
        // The handler of a second copy.
        assert!(lock.before_fork());
        lock.in_parent();
        lock.in_parent();
        let guard = lock.lock().unwrap();
        assert!(!lock.before_fork());
        lock.in_parent();
        assert_eq!(lock.lock().unwrap_err(), Held);
        drop(guard);
        assert!(lock.lock().is_ok());
    }
}
