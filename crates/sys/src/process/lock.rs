//! A lock that several copies of dormouse share, that records its owner, and that forks wait for.
//!
//! It is one word, so that copies which were built separately agree on it: 0 when free, else the
//! owner's thread id, with a bit for "a thread sleeps". Owner and lock change in one step, so a
//! signal handler on a thread that holds the lock, or is just taking it, gets an error
//! ([`Reentrant`]) and does not wait for its own thread. (Neither `std` nor `pthread` has a lock of
//! fixed layout that does this.)
//!
//! # Fork
//!
//! A fork waits for the lock and holds it meanwhile ([`super::fork`] calls [`Lock::before_fork`]).
//! So the child finds the protected value as it is between two owners, and the lock free. Where
//! several copies share the lock, each copy's handler takes part in the fork, and the last one that
//! leaves it frees the lock. A signal handler that forks while its thread holds the lock cannot
//! wait; its child finds the lock held by its own thread.
//!
//! While a fork waits, a thread that is about to take a lock lets it go first, for a moment. A
//! thread that holds a lock does not: the fork may want that one, now or next.
//!
//! # Cost
//!
//! To take a free lock and to free it are some 60 instructions, and the system call for the
//! thread's id. 16 of them keep the count of a thread's locks.
//!
//! # Async-signal-safety
//!
//! The count of a thread's locks is in thread-local storage, which is allocated at the first use of
//! this object by a thread if the object was loaded late.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::Timespec;

use crate::futex;

use super::identity::{forker, tid};

/// A thread sleeps. Thread ids have at most 30 bits.
const WAITERS: u32 = 1 << 31;

/// How many forks of this copy's wait for a lock now.
static FORKS_WAIT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many locks the thread holds, or is about to take, by this copy.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// Longer than a thread takes to wake up.
const COURTESY: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// The lock. It contains no value.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lock {
    word: AtomicU32,
    /// How many copies' handlers hold the lock for a fork of the owner; only changed by the owner.
    forks: AtomicU32,
}

const _: () = assert!(size_of::<Lock>() == 8);

/// The calling thread holds the lock already, or is in the middle of a fork that does, so waiting
/// would never end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reentrant;

/// Frees the lock when dropped.
#[derive(Debug)]
#[must_use = "the lock is free again when the guard is dropped"]
pub struct Guard<'a> {
    lock: &'a Lock,
    _counted: Counted,
}

/// One of the locks in [`HELD`]. From before the lock is taken until after it is free: a signal
/// handler in between must not let a fork wait for its thread's lock.
#[derive(Debug)]
struct Counted {
    /// A lock is its thread's.
    _not_send: PhantomData<*const ()>,
}

impl Counted {
    fn begin() -> Self {
        HELD.set(HELD.get() + 1);
        Self { _not_send: PhantomData }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
    }
}

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), forks: AtomicU32::new(0) }
    }

    /// Waits until the lock is free and takes it. While a fork waits for a lock, it lets that go
    /// first, unless the thread holds one: a thread that takes a lock again and again would keep it
    /// for ever from one that has to wake up each time.
    pub fn lock(&self) -> Result<Guard<'_>, Reentrant> {
        let waiting = FORKS_WAIT.load(Ordering::Relaxed);
        // In the middle of a fork a thread holds the locks that the fork has.
        if waiting != 0 && HELD.get() == 0 && forker() == 0 {
            #[cfg(test)]
            tests::COURTESIES.set(tests::COURTESIES.get() + 1);
            // Not until they are through: this thread may have a lock by another copy.
            let _ = futex::wait(&FORKS_WAIT, waiting, Some(&COURTESY));
        }
        let counted = Counted::begin();
        self.acquire()?;
        Ok(Guard { lock: self, _counted: counted })
    }

    fn acquire(&self) -> Result<(), Reentrant> {
        let own = tid();
        let mut wanted = own;
        loop {
            // Pairs with the swap in `release`.
            let Err(word) = self.word.compare_exchange(0, wanted, Ordering::Acquire, Ordering::Relaxed)
            else {
                return Ok(());
            };
            // In a child whose handlers have not come to this lock, its thread still has the name
            // of its parent's.
            if [own, forker()].contains(&(word & !WAITERS)) {
                return Err(Reentrant);
            }
            let slept = word | WAITERS;
            if word == slept
                || self.word.compare_exchange(word, slept, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                // Interrupted, woken, or the word has changed: look again.
                let _ = futex::wait(&self.word, slept, None);
                // Other threads may sleep still, and the bit is the only trace of them.
                wanted = own | WAITERS;
            }
        }
    }

    fn release(&self) {
        // Pairs with the exchange in `acquire`.
        if self.word.swap(0, Ordering::Release) & WAITERS != 0 {
            futex::wake(&self.word, 1);
        }
    }

    /// Takes the lock if it is free at this moment.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        let counted = Counted::begin();
        // Pairs with the swap in `release`.
        self.word.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: self, _counted: counted })
    }

    /// Called before a fork, on the thread that forks. Returns true if the fork has the lock, by
    /// this call or by the handler of another copy before it. Returns false if the thread had it
    /// already, because a signal handler that interrupted the locked section forks; then parent and
    /// child each go on with the section, each holding the lock.
    pub fn before_fork(&self) -> bool {
        FORKS_WAIT.fetch_add(1, Ordering::Relaxed);
        let taken = self.acquire();
        // A child that was forked in the middle of this has begun at none.
        let one_less = |waiting: u32| waiting.checked_sub(1);
        if FORKS_WAIT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1) {
            // Those that let it go first.
            futex::wake(&FORKS_WAIT, i32::MAX as u32);
        }
        if taken.is_err() && self.forks.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.forks.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Whether a fork of the calling thread has the lock.
    pub fn is_forking(&self) -> bool {
        self.forks.load(Ordering::Relaxed) > 0
    }

    /// Called after a fork, in the parent, by every handler whose [`Lock::before_fork`] returned
    /// true.
    pub fn in_parent(&self) {
        if self.forks.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.release();
        }
    }

    /// Called after a fork, in the child, which has no other threads, by every handler; `taken` is
    /// the result of [`Lock::before_fork`].
    pub fn in_child(&self, taken: bool) {
        // Those that waited are not here.
        FORKS_WAIT.store(0, Ordering::Relaxed);
        let is_last = taken && self.forks.fetch_sub(1, Ordering::Relaxed) == 1;
        // Else the same thread holds it still, under a new id. No other thread is here to sleep.
        self.word.store(if is_last { 0 } else { tid() }, Ordering::Relaxed);
    }

    /// In the child of a fork by a signal handler in the middle of another fork's handlers, which
    /// go on there: the locks of thread `before` of the parent are the child's thread's.
    pub(crate) fn rename_owner(&self, before: u32) {
        // Those that waited are not here.
        FORKS_WAIT.store(0, Ordering::Relaxed);
        // 0: the handler came before the other fork had anything, and a free lock stays free.
        if before != 0 && self.word.load(Ordering::Relaxed) & !WAITERS == before {
            self.word.store(tid(), Ordering::Relaxed);
        }
    }

    /// In a forked child: frees a lock that the fork did not wait for.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use dormouse_testkit::eventually;

    use super::*;

    /// Tests that count the forks that wait, or are as in a child, run one by one.
    static WAITS: std::sync::Mutex<()> = std::sync::Mutex::new(());

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

    thread_local! {
        /// How often the thread has let a fork go first.
        pub(super) static COURTESIES: Cell<u32> = const { Cell::new(0) };
    }

    /// Calls `check` while a fork waits for a lock that the calling thread holds.
    fn while_a_fork_waits(check: impl FnOnce()) {
        let _alone = WAITS.lock();
        let lock = Lock::new();
        let guard = lock.lock().unwrap();
        std::thread::scope(|scope| {
            let fork = scope.spawn(|| {
                assert!(lock.before_fork());
                lock.in_parent();
            });
            eventually(|| FORKS_WAIT.load(Ordering::Relaxed) != 0);
            check();
            drop(guard);
            fork.join().unwrap();
        });
    }

    #[test]
    fn others_let_a_waiting_fork_go_first() {
        let takes = || {
            let begun = Instant::now();
            drop(Lock::new().lock().unwrap());
            (COURTESIES.replace(0), begun.elapsed() >= Duration::from_nanos(COURTESY.tv_nsec as u64))
        };
        while_a_fork_waits(|| {
            let other = std::thread::spawn(move || {
                // Another test's fork may end the wait at once.
                eventually(|| takes() == (1, true));
                let held = Lock::new();
                let guard = held.lock().unwrap();
                COURTESIES.set(0);
                assert_eq!(takes().0, 0, "it holds a lock");
                drop(guard);
                drop(held.try_lock());
                assert_eq!(takes().0, 1, "it holds none any more");
            });
            other.join().unwrap();
        });
        eventually(|| takes() == (0, false));
    }

    #[test]
    fn a_holder_does_not_let_forks_wait_longer() {
        while_a_fork_waits(|| {
            COURTESIES.set(0);
            let (second, third) = (Lock::new(), Lock::new());
            let guards = (second.lock().unwrap(), third.try_lock().unwrap());
            assert!(third.try_lock().is_none() && second.lock().is_err());
            drop(guards);
            drop(second.lock().unwrap());
            assert_eq!((COURTESIES.get(), HELD.get()), (0, 1));
            // The fork waits still.
            assert_ne!(FORKS_WAIT.load(Ordering::Relaxed), 0);
        });
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    fn a_child_inside_of_a_wait_counts_none() {
        // As in a child of a signal handler that has interrupted the wait.
        while_a_fork_waits(|| Lock::new().rename_owner(1));
        eventually(|| FORKS_WAIT.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn a_thread_that_holds_the_lock_is_refused() {
        let lock = Lock::new();
        let guard = lock.lock().unwrap();
        assert_eq!(lock.lock().unwrap_err(), Reentrant);
        drop(guard);
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn the_last_copys_handler_frees_the_lock() {
        let lock = Lock::new();
        assert!(lock.before_fork());
        // The handler of a second copy.
        assert!(lock.before_fork());
        assert_eq!(lock.lock().unwrap_err(), Reentrant);
        lock.in_parent();
        assert_eq!(lock.lock().unwrap_err(), Reentrant);
        lock.in_parent();
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn a_handlers_fork_leaves_the_lock_held() {
        let _alone = WAITS.lock();
        let lock = Lock::new();
        let guard = lock.lock().unwrap();
        assert!(!lock.before_fork());
        lock.in_child(false);
        assert_eq!(lock.lock().unwrap_err(), Reentrant);
        drop(guard);
        assert!(lock.lock().is_ok());
    }

    #[test]
    fn a_free_lock_is_nobodys_to_rename() {
        let _alone = WAITS.lock();
        let lock = Lock::new();
        lock.rename_owner(0);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn trying_a_taken_lock_does_not_wait() {
        let lock = Lock::new();
        let guard = lock.try_lock().unwrap();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
