//! Mutexes in processes that fork.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::super::stages::is_forking;
use super::*;

/// Runs `check` in a forked child.
fn in_fork(check: impl FnOnce() -> bool) {
    assert!(
        dormouse_testkit::fork(|| assert!(check())).success(),
        "the child hung, crashed, or found a fault"
    );
}

#[test]
fn a_child_finds_every_mutex_free_and_whole() {
    static PAIR: Mutex<(u64, u64)> = Mutex::new(Phase::Allocations, (0, 0));
    static END: AtomicBool = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !END.load(Ordering::Relaxed) {
                    let mut pair = PAIR.lock().unwrap();
                    pair.0 += 1;
                    std::hint::black_box(&mut pair);
                    pair.1 += 1;
                }
            });
        }
        for _ in 0..200 {
            in_fork(|| PAIR.lock().is_ok_and(|pair| pair.0 == pair.1));
        }
        END.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_lock_joining_during_a_fork_is_free() {
    static NEW: Mutex<u32> = Mutex::new(Phase::Text, 0);
    static WAS_REFUSED: AtomicBool = AtomicBool::new(false);
    static LATE: Mutex<u32> = Mutex::new(Phase::Countings, 0);
    static IN_BEFORE: AtomicBool = AtomicBool::new(false);
    // Its handler runs after the place of `LATE` in the table has been passed.
    static SLOW: Mutex<u32> = Mutex::with_hooks(
        Phase::Units,
        0,
        |_| {
            if !IN_BEFORE.swap(true, Ordering::Relaxed) {
                // As a host's handler would, which runs in the middle of the fork.
                WAS_REFUSED.store(NEW.lock().is_err() && NEW.try_lock().is_none(), Ordering::Relaxed);
                while LATE.lock.try_lock().is_some() {
                    std::thread::yield_now();
                }
            }
        },
        |_| {},
    );
    drop(SLOW.lock().unwrap());
    let holder = std::thread::spawn(|| {
        while !IN_BEFORE.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let held = LATE.lock().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
    });
    in_fork(|| LATE.lock().is_ok() && NEW.lock().is_ok());
    holder.join().unwrap();
    assert!(WAS_REFUSED.load(Ordering::Relaxed));
    assert!(NEW.lock().is_ok());
}

#[test]
fn a_childs_hook_has_the_value_first() {
    static ITEMS: Mutex<Vec<u32>> = Mutex::with_child(Phase::Descriptors, Vec::new(), Vec::clear);
    ITEMS.lock().unwrap().push(1);
    in_fork(|| ITEMS.lock().is_ok_and(|items| items.is_empty()));
    assert_eq!(*ITEMS.lock().unwrap(), [1]);
}

#[test]
fn forking_under_a_lock_keeps_it_held() {
    // The first of all: while it waits for the others, no other test's fork has them and waits for
    // this one.
    static OWN: Mutex<u32> = Mutex::new(Phase::Environment, 0);
    let guard = OWN.lock().unwrap();
    in_fork(|| OWN.lock().is_err());
    assert_eq!(OWN.lock().unwrap_err(), Reentrant);
    drop(guard);
    in_fork(|| OWN.lock().is_ok());
}

#[test]
fn a_fork_inside_a_fork_leaves_both_whole() {
    static OUTER: Mutex<u32> = Mutex::with_hooks(
        Phase::Changes,
        0,
        |value| {
            *value += 1;
            if *value == 1 {
                // As by a signal handler over the handlers of the outer fork.
                in_fork(|| OUTER.lock().is_err());
            }
        },
        |_| {},
    );
    drop(OUTER.lock().unwrap());
    in_fork(|| OUTER.lock().is_ok() && !is_forking());
    assert!(OUTER.lock().is_ok());
}

#[test]
#[cfg(debug_assertions)]
fn a_lock_out_of_order_is_refused() {
    static FIRST: Mutex<()> = Mutex::new(Phase::Hub, ());
    static SECOND: Mutex<()> = Mutex::new(Phase::Registry, ());
    let first = FIRST.lock().unwrap();
    drop(SECOND.lock().unwrap());
    drop(first);
    let _second = SECOND.lock().unwrap();
    assert_eq!(FIRST.lock().map(drop), Err(Reentrant));
}

#[test]
fn a_notification_and_a_timeout_end_a_wait() {
    static TURN: Mutex<bool> = Mutex::new(Phase::Holds, false);
    static CHANGED: Condvar = Condvar::new();
    static WAITS: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    CHANGED.wait(TURN.lock().unwrap(), Some(Duration::from_millis(5)));
    assert!(start.elapsed() >= Duration::from_millis(5));
    let waiter = std::thread::spawn(|| {
        loop {
            let turn = TURN.lock().unwrap();
            if *turn {
                return;
            }
            WAITS.fetch_add(1, Ordering::Relaxed);
            CHANGED.wait(turn, None);
        }
    });
    while WAITS.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    *TURN.lock().unwrap() = true;
    CHANGED.notify_one();
    waiter.join().unwrap();
}
