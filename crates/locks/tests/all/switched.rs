//! Locks are noted, and not any more, while threads take them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_locks::tokio::Semaphore;
use dormouse_locks::{Holds, LockHolder, LockTimes, Mutex, is_on, notes, parking_lot};
use dormouse_testkit::{eventually, in_child};

use crate::support::{be, holders, rows, tasks, waiters};

const LONGEST: Duration = Duration::from_secs(60);

/// A guard of either face takes the lock in one state of the key, and leaves in another.
#[test]
fn no_holder_is_wrong_while_the_key_changes() {
    in_child(|| {
        let (lock, other) = (Mutex::new(()), parking_lot::Mutex::new(()));
        let truth = [AtomicU64::new(0), AtomicU64::new(0)];
        let (is_over, number) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for task in 1..=3_u64 {
                let (lock, other, truth, is_over, number) = (&lock, &other, &truth, &is_over, &number);
                scope.spawn(move || {
                    be(task, task as u32);
                    let inside = |truth: &AtomicU64| {
                        let own = number.fetch_add(1, Ordering::Relaxed) << 8 | task;
                        truth.store(own, Ordering::SeqCst);
                        // Long enough that the key changes in between.
                        for _ in 0..2_000 {
                            std::hint::spin_loop();
                        }
                        truth.store(0, Ordering::SeqCst);
                    };
                    while !is_over.load(Ordering::Relaxed) {
                        let guard = lock.lock().unwrap();
                        inside(&truth[0]);
                        drop(guard);
                        let guard = other.lock();
                        inside(&truth[1]);
                        drop(guard);
                    }
                });
            }
            let (mut seen, mut rounds) = (0, 0);
            let begun = Instant::now();
            // Where an emulator's processors take turns, one round may take seconds.
            while (rounds < 200 || seen < 1_000) && (rounds < 3 || seen == 0 || begun.elapsed() < LONGEST) {
                rounds += 1;
                let times = LockTimes::start(Holds::Sampled).unwrap();
                for _ in 0..50 {
                    // Where processors take turns, the others would take no lock meanwhile.
                    thread::yield_now();
                    for (at, truth) in truth.iter().enumerate() {
                        let before = truth.load(Ordering::SeqCst);
                        let found = if at == 0 { tasks(&lock) } else { tasks(&other) };
                        if before != 0 && truth.load(Ordering::SeqCst) == before {
                            // One that was taken before has no holder.
                            assert!(found.is_empty() || found == [before & 0xff], "{found:?} for {before:x}");
                            seen += usize::from(!found.is_empty());
                        }
                    }
                }
                drop(times);
                assert!(!is_on() && tasks(&lock).is_empty() && tasks(&other).is_empty());
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_lock_taken_before_has_no_holder() {
    in_child(|| {
        let lock = Mutex::new(());
        thread::scope(|scope| {
            let guard = lock.lock().unwrap();
            let times = LockTimes::start(Holds::Sampled).unwrap();
            assert!(holders(&lock).is_empty());
            // A queue with more holders than there is room for takes nothing from a lock.
            let queue = Semaphore::new(100);
            let permits: Vec<_> = (0..100).map(|_| queue.try_acquire().unwrap()).collect();
            assert!(dormouse_locks::lost()[0] > 0, "there was room for all");
            let waiter = scope.spawn(|| {
                be(2, 2);
                drop(lock.lock().unwrap());
            });
            eventually(|| !waiters(&lock).is_empty());
            drop(guard);
            waiter.join().unwrap();
            assert_eq!(rows(2)[0].held_by[0].0, LockHolder::Before);
            drop(permits);
            drop(times);
        });
    });
}

#[test]
fn a_lock_left_asleep_is_free_later() {
    in_child(|| {
        let (lock, other) = (Mutex::new(()), parking_lot::Mutex::new(()));
        be(1, 1);
        let times = LockTimes::start(Holds::Sampled).unwrap();
        let guards = (lock.lock().unwrap(), other.lock());
        assert_eq!((tasks(&lock), tasks(&other)), (vec![1], vec![1]));
        drop(times);
        drop(guards);
        let _times = LockTimes::start(Holds::Sampled).unwrap();
        assert!(tasks(&lock).is_empty() && tasks(&other).is_empty());
        // Its place is taken again.
        be(2, 2);
        let guard = other.lock();
        assert_eq!(tasks(&other), [2]);
        drop(guard);
        assert!(tasks(&other).is_empty());
    });
}

#[test]
fn all_holds_are_timed_on_request() {
    in_child(|| {
        let lock = Mutex::new(());
        let take = |times: usize| (0..times).for_each(|_| drop(lock.lock().unwrap()));
        be(1, 1);
        let sampled = LockTimes::start(Holds::Sampled).unwrap();
        take(160);
        assert_eq!((rows(1)[0].acquisitions, rows(1)[0].holds.count()), (160, 10));
        let all = LockTimes::start(Holds::All).unwrap();
        take(160);
        assert_eq!((rows(1)[0].acquisitions, rows(1)[0].holds.count()), (320, 170));
        drop(all);
        take(160);
        assert_eq!(rows(1)[0].holds.count(), 180);
        drop(sampled);
        take(160);
        assert_eq!(rows(1)[0].acquisitions, 480, "nobody asks");
    });
}

#[test]
fn notes_are_counted() {
    in_child(|| {
        let (lock, other) = (Mutex::new(()), parking_lot::Mutex::new(()));
        let takes = || {
            for _ in 0..1_000 {
                drop(lock.lock());
                drop(other.lock());
            }
        };
        takes();
        assert_eq!(notes(), 0, "nobody asks");
        let _times = LockTimes::start(Holds::All).unwrap();
        takes();
        assert_eq!(notes(), 2_000);
    });
}
