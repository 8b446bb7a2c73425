//! The locks behave as those underneath.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_locks::{Condvar, Holds, LockHolder, LockTimes, Mutex, Once, RwLock, TryLockError, parking_lot};
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
fn a_condition_is_read_by_the_holder() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let (ready, condition) = (Mutex::new(false), Condvar::new());
    let readings = AtomicU32::new(0);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            be(14, 14);
            let guard = ready.lock().unwrap();
            let waited = condition.wait_timeout_while(guard, Duration::MAX, |is_ready| {
                assert_eq!(tasks(&ready), [14]);
                readings.fetch_add(1, Ordering::Relaxed);
                !*is_ready
            });
            let (guard, over) = waited.unwrap();
            assert!(*guard && !over.timed_out());
            tasks(&ready)
        });
        // Under the mutex the waiter has not read yet, or waits.
        eventually(|| readings.load(Ordering::Relaxed) > 0 && ready.try_lock().is_ok());
        assert!(tasks(&ready).is_empty());
        *ready.lock().unwrap() = true;
        condition.notify_all();
        assert_eq!(waiter.join().unwrap(), [14]);
    });
    assert!(tasks(&ready).is_empty());
    be(15, 15);
    let guard = ready.lock().unwrap();
    let (guard, over) = condition.wait_timeout_while(guard, Duration::from_millis(1), |_| true).unwrap();
    assert_eq!((over.timed_out(), tasks(&ready)), (true, vec![15]));
    let panics = || drop(condition.wait_timeout_while(guard, Duration::MAX, |_| panic!("as it should")));
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(ready.is_poisoned() && tasks(&ready).is_empty());
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
fn a_wait_for_undone_work_blames_nobody() {
    static ONCE: Once = Once::new();
    let _times = LockTimes::start(Holds::All).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            be(26, 26);
            ONCE.wait();
        });
        eventually(|| !waiters(&ONCE).is_empty());
        ONCE.call_once(|| ());
    });
    assert_eq!(rows(26)[0].held_by[0].0, LockHolder::Unknown);
}

#[test]
fn forced_work_shows_its_thread() {
    static ONCE: Once = Once::new();
    let _times = LockTimes::start(Holds::All).unwrap();
    let panics = || ONCE.call_once(|| panic!("as it should"));
    assert!(catch_unwind(panics).is_err() && tasks(&ONCE).is_empty());
    assert!(catch_unwind(|| ONCE.wait()).is_err() && waiters(&ONCE).is_empty());
    be(23, 23);
    thread::scope(|scope| {
        // Before anybody does the work, and while it is done.
        let wait = |task, wait: fn(&Once)| {
            scope.spawn(move || {
                be(task, task as u32);
                wait(&ONCE);
                assert!(ONCE.is_completed());
            });
        };
        wait(24, Once::wait_force);
        eventually(|| waiters(&ONCE).len() == 1);
        ONCE.call_once_force(|state| {
            assert!(state.is_poisoned() && tasks(&ONCE) == [23]);
            wait(25, Once::wait);
            eventually(|| waiters(&ONCE).len() == 2);
        });
    });
    assert!(tasks(&ONCE).is_empty() && waiters(&ONCE).is_empty());
    for group in [24, 25] {
        assert_eq!((rows(group)[0].acquisitions, rows(group)[0].waits.count()), (0, 1));
    }
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
fn parking_lots_waits_end_by_time() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let (ready, condition) = (parking_lot::Mutex::new(false), parking_lot::Condvar::new());
    let readings = AtomicU32::new(0);
    thread::scope(|scope| {
        for (task, is_until) in [(34, false), (35, true)] {
            let (ready, condition, readings) = (&ready, &condition, &readings);
            let waiter = scope.spawn(move || {
                be(task, task as u32);
                let mut guard = ready.lock();
                let waits = |is_ready: &mut bool| {
                    assert_eq!(tasks(ready), [task]);
                    readings.fetch_add(1, Ordering::Relaxed);
                    !*is_ready
                };
                let over = if is_until {
                    let until = Instant::now() + Duration::from_secs(1_000);
                    condition.wait_while_until(&mut guard, waits, until)
                } else {
                    condition.wait_while_for(&mut guard, waits, Duration::MAX)
                };
                assert!(*guard && !over.timed_out());
                tasks(ready)
            });
            eventually(|| readings.load(Ordering::Relaxed) > 0 && ready.try_lock().is_some());
            assert!(tasks(ready).is_empty());
            *ready.lock() = true;
            condition.notify_all();
            assert_eq!(waiter.join().unwrap(), [task]);
            *ready.lock() = false;
            readings.store(0, Ordering::Relaxed);
        }
    });
    be(36, 36);
    let (mut guard, short) = (ready.lock(), Duration::from_millis(1));
    assert!(condition.wait_until(&mut guard, Instant::now() + short).timed_out());
    assert_eq!(tasks(&ready), [36]);
    assert!(condition.wait_while_for(&mut guard, |_| true, short).timed_out());
    assert!(!condition.wait_while_for(&mut guard, |_| false, short).timed_out());
    assert_eq!(tasks(&ready), [36]);
}

#[test]
fn a_reader_reads_again_past_a_writer() {
    let _times = LockTimes::start(Holds::All).unwrap();
    let lock = parking_lot::RwLock::new(1);
    be(37, 37);
    let reader = lock.read();
    thread::scope(|scope| {
        scope.spawn(|| {
            be(38, 38);
            *lock.write() += 1;
        });
        eventually(|| lock.try_read().is_none());
        let again = [lock.read_recursive(), lock.try_read_recursive().expect("it is read")];
        let timed = lock.try_read_recursive_for(Duration::from_secs(1)).expect("it is read");
        assert_eq!((tasks(&lock), waiters(&lock).len()), (vec![37; 4], 1));
        drop((reader, again, timed));
    });
    assert_eq!((tasks(&lock).len(), *lock.read()), (0, 2));
    let writer = lock.write();
    thread::scope(|scope| {
        scope.spawn(|| {
            be(39, 39);
            assert_eq!(*lock.read_recursive(), 2);
        });
        eventually(|| waiters(&lock).len() == 1);
        drop(writer);
    });
    assert_eq!(rows(39)[0].waits.count(), 1);
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
