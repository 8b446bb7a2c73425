//! The locks behave as those underneath.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use dormouse_locks::{Condvar, Holds, LockTimes, Mutex, Once, RwLock, TryLockError, parking_lot};
use dormouse_testkit::eventually;

use crate::support::{be, holders, rows, tasks, waiters};

/// Runs a check while nobody asks, and while locks are noted.
fn both(check: impl Fn()) {
    check();
    let _times = LockTimes::start(Holds::All).unwrap();
    check();
}

#[test]
fn a_panic_poisons_and_leaves() {
    both(|| {
        let (lock, shared) = (Mutex::new(1), RwLock::new(1));
        let panics = || {
            let _guards = (lock.lock().unwrap(), shared.write().unwrap());
            panic!("as it should");
        };
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert!(lock.is_poisoned() && shared.is_poisoned());
        assert!(tasks(&lock).is_empty() && tasks(&shared).is_empty());
        assert_eq!(lock.lock().map(|guard| *guard).map_err(|poisoned| *poisoned.into_inner()), Err(1));
        assert!(matches!(lock.try_lock(), Err(TryLockError::Poisoned(_))));
        assert!(matches!(shared.try_read(), Err(TryLockError::Poisoned(_))));
        lock.clear_poison();
        *lock.lock().unwrap() = 2;
        assert_eq!(lock.into_inner().unwrap(), 2);
    });
}

#[test]
fn an_attempt_fails_while_the_lock_is_held() {
    both(|| {
        let (lock, shared) = (Mutex::new(1), RwLock::new(1));
        let guard = lock.lock().unwrap();
        assert!(matches!(lock.try_lock(), Err(TryLockError::WouldBlock)));
        drop(guard);
        assert!(lock.try_lock().is_ok());
        let reader = shared.read().unwrap();
        assert!(shared.try_read().is_ok());
        assert!(matches!(shared.try_write(), Err(TryLockError::WouldBlock)));
        drop(reader);
        assert!(shared.try_write().is_ok());
    });
}

#[test]
fn a_wait_for_a_condition_is_no_hold() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let (ready, condition) = (Mutex::new(false), Condvar::new());
    let is_waiting = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            be(11, 11);
            let mut guard = ready.lock().unwrap();
            is_waiting.store(true, Ordering::Relaxed);
            guard = condition.wait_while(guard, |ready| !*ready).unwrap();
            let found = tasks(&ready);
            drop(guard);
            found
        });
        // Under the mutex the waiter is either not there yet, or waits.
        eventually(|| is_waiting.load(Ordering::Relaxed) && ready.try_lock().is_ok());
        assert!(tasks(&ready).is_empty());
        *ready.lock().unwrap() = true;
        condition.notify_all();
        assert_eq!(waiter.join().unwrap(), [11], "afterwards it holds the mutex again");
    });
    let guard = ready.lock().unwrap();
    let (guard, over) = condition.wait_timeout(guard, Duration::from_millis(1)).unwrap();
    assert!(over.timed_out() && *guard);
    assert_eq!(holders(&ready).len(), 1);
}

#[test]
fn work_is_done_once_and_awaited() {
    static ONCE: Once = Once::new();
    static DONE: AtomicU32 = AtomicU32::new(0);
    let _times = LockTimes::start(Holds::All).unwrap();
    thread::scope(|scope| {
        be(21, 21);
        ONCE.call_once(|| {
            scope.spawn(|| {
                be(22, 22);
                ONCE.call_once(|| _ = DONE.fetch_add(100, Ordering::Relaxed));
                assert_eq!(DONE.load(Ordering::Relaxed), 1);
            });
            eventually(|| !waiters(&ONCE).is_empty());
            assert_eq!(tasks(&ONCE), [21]);
            DONE.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert!(ONCE.is_completed() && tasks(&ONCE).is_empty() && waiters(&ONCE).is_empty());
    assert_eq!((rows(22)[0].acquisitions, rows(22)[0].waits.count()), (0, 1));
}

#[test]
fn parking_lots_forms_are_there() {
    both(|| {
        let (lock, shared) = (parking_lot::Mutex::new(1), parking_lot::RwLock::new(1));
        let mut guard = lock.lock();
        *guard += 1;
        assert!(lock.try_lock().is_none());
        assert!(lock.try_lock_for(Duration::from_millis(1)).is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(2));
        let writer = shared.write();
        assert!(shared.try_read_for(Duration::from_millis(1)).is_none());
        let reader = parking_lot::RwLockWriteGuard::downgrade(writer);
        assert_eq!(shared.try_read().map(|value| *value), Some(1));
        drop(reader);
        assert!(tasks(&lock).is_empty() && tasks(&shared).is_empty());
        let mapped = parking_lot::MutexGuard::map(lock.lock(), |value| value);
        assert_eq!(*mapped, 2);
    });
}

#[test]
fn parking_lots_condition_frees_its_mutex() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let (ready, condition) = (parking_lot::Mutex::new(false), parking_lot::Condvar::new());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            be(31, 31);
            let mut guard = ready.lock();
            condition.wait_while(&mut guard, |ready| !*ready);
            tasks(&ready)
        });
        *ready.lock() = true;
        eventually(|| {
            condition.notify_all();
            waiter.is_finished()
        });
        assert_eq!(waiter.join().unwrap(), [31]);
    });
    assert!(tasks(&ready).is_empty());
    let mut guard = ready.lock();
    assert!(condition.wait_for(&mut guard, Duration::from_millis(1)).timed_out());
}

#[test]
fn a_downgraded_writer_is_a_reader() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = parking_lot::RwLock::new(0);
    let guard = parking_lot::RwLockWriteGuard::downgrade(lock.write());
    let kinds: Vec<_> = holders(&lock).iter().map(|user| user.place.kind.name()).collect();
    assert_eq!(kinds, ["read"]);
    drop(guard);
    assert!(holders(&lock).is_empty());
}
