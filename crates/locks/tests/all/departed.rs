//! Guards that are dropped after the end of the thread that took the lock.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use dormouse_locks::{Holds, LockHolder, LockTimes, Mutex, RwLock, lock_holders, parking_lot};
use dormouse_testkit::in_child;

use crate::support::{be, rows, tasks};

/// A value that goes to another thread, whatever it is.
struct Sent<T>(T);

// SAFETY: locks of std's and of parking_lot's may be freed on any thread on Linux.
unsafe impl<T> Send for Sent<T> {}

extern "C" fn call(of: *mut c_void) {
    // SAFETY: the key's value is such a box.
    let last = unsafe { Box::from_raw(of.cast::<Box<dyn FnOnce()>>()) };
    last();
}

/// Has a pthread key's destructor call `last` when this thread ends: after ours, whose key is
/// older.
fn at_the_very_end(last: Box<dyn FnOnce()>) {
    let mut key: libc::pthread_key_t = 0;
    // SAFETY: a valid place, and a plain function.
    unsafe {
        assert_eq!(libc::pthread_key_create(&raw mut key, Some(call)), 0);
        assert_eq!(libc::pthread_setspecific(key, Box::into_raw(Box::new(last)).cast()), 0);
    }
}

#[test]
fn destructors_after_ours_leave_no_holder() {
    in_child(|| {
        static MUTEX: Mutex<u8> = Mutex::new(0);
        static SHARED: RwLock<u8> = RwLock::new(0);
        static RAW: parking_lot::Mutex<u8> = parking_lot::Mutex::new(0);
        static RAW_SHARED: parking_lot::RwLock<u8> = parking_lot::RwLock::new(0);
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let _times = LockTimes::start(Holds::All).unwrap();
        be(1, 1);
        // The main thread's block makes our key.
        let own = (SHARED.read().unwrap(), RAW_SHARED.read());
        let take_all = || {
            be(2, 2);
            let guards = (MUTEX.lock().unwrap(), SHARED.read().unwrap(), RAW.lock(), RAW_SHARED.read());
            // Beyond the room of a hand.
            let more: Vec<&parking_lot::Mutex<u8>> =
                (0..20).map(|_| &*Box::leak(Box::new(parking_lot::Mutex::new(0)))).collect();
            let more: Vec<_> = more.into_iter().map(|lock| lock.lock()).collect();
            at_the_very_end(Box::new(move || {
                assert!(dormouse_sys::thread::current().is_none(), "our own destructor has run");
                assert_eq!(
                    (tasks(&MUTEX), tasks(&SHARED)),
                    (vec![2], vec![1, 2]),
                    "as long as they are held"
                );
                assert_eq!((tasks(&RAW), tasks(&RAW_SHARED)), (vec![2], vec![1, 2]));
                drop((guards, more));
                IS_OVER.store(true, Ordering::Relaxed);
            }));
        };
        thread::spawn(take_all).join().unwrap();
        assert!(IS_OVER.load(Ordering::Relaxed), "the destructor was called, and has not panicked");
        assert_eq!((tasks(&SHARED), tasks(&RAW_SHARED)), (vec![1], vec![1]));
        assert_eq!(lock_holders().len(), 2, "{:?}", lock_holders());
        drop(own);
        assert!(lock_holders().is_empty());
    });
}

fn thread_index() -> usize {
    dormouse_sys::thread::current().expect("it has a block").index()
}

#[test]
fn a_guard_may_outlive_its_thread_elsewhere() {
    in_child(|| {
        static FIRST: AtomicUsize = AtomicUsize::new(0);
        // It has another block.
        be(12, 12);
        let _times = LockTimes::start(Holds::All).unwrap();
        let (lock, raw) = (Mutex::new(0), parking_lot::Mutex::new(0));
        let guard = thread::scope(|scope| {
            let take_both = || {
                be(11, 11);
                FIRST.store(thread_index(), Ordering::Relaxed);
                forget(raw.lock());
                Sent(lock.lock().unwrap())
            };
            scope.spawn(take_both).join().unwrap()
        });
        let take_another = || {
            be(13, 13);
            assert_eq!(thread_index(), FIRST.load(Ordering::Relaxed), "the block of the thread before");
            let (first, second) = (Mutex::new(0), Mutex::new(0));
            let held = (first.lock().unwrap(), second.lock().unwrap());
            assert!(raw.try_lock_for(Duration::from_millis(1)).is_none());
            assert_eq!((tasks(&first), tasks(&second)), (vec![13], vec![13]));
            drop(held);
        };
        thread::scope(|scope| scope.spawn(take_another).join().unwrap());
        let waits = &rows(13).into_iter().find(|row| row.waits.count() > 0).expect("it waited");
        assert_eq!(waits.held_by[0].0, LockHolder::Group(11), "{waits:?}");
        assert_eq!((tasks(&lock), tasks(&raw)), (vec![11], vec![11]));
        drop(guard.0);
        // SAFETY: the guard was forgotten.
        unsafe { raw.force_unlock() };
        assert!(lock_holders().is_empty(), "{:?}", lock_holders());
        let holds: u64 = rows(11).iter().map(|row| row.holds.count()).sum();
        assert_eq!(holds, 2, "each hold is counted once");
        let present = lock.lock().unwrap();
        assert_eq!(tasks(&lock), [12]);
        drop(present);
    });
}

#[test]
fn a_left_hold_blames_no_later_lock() {
    in_child(|| {
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        let mut place = Mutex::new(0);
        let forget_it = |lock: &Mutex<u8>| {
            be(21, 21);
            // In the second cell of its hand, and the next holder is in the first.
            let other = Mutex::new(0);
            let _other = other.lock().unwrap();
            forget(lock.lock().unwrap());
        };
        thread::scope(|scope| scope.spawn(|| forget_it(&place)).join().unwrap());
        // Another lock at the same address.
        place = Mutex::new(1);
        let hold = |task: u64| {
            be(task, task as u32);
            let held = place.lock().unwrap();
            assert_eq!(tasks(&place), [task]);
            let wait = || {
                be(task + 1, task as u32 + 1);
                drop(place.lock().unwrap());
            };
            thread::scope(|scope| {
                let waiter = scope.spawn(wait);
                dormouse_testkit::eventually(|| !crate::support::waiters(&place).is_empty());
                drop(held);
                waiter.join().unwrap();
            });
            assert_eq!(rows(task as u32 + 1)[0].held_by[0].0, LockHolder::Group(task as u32));
        };
        hold(22);
        thread::scope(|scope| scope.spawn(|| hold(24)).join().unwrap());
    });
}
