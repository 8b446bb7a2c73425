//! The process's CPU time as an estimate: what is in it, that its bound holds, that it never steps
//! back.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_clock::process_exact;
use dormouse_lab::{ThreadGroup, process_estimate};
use dormouse_testkit::{StopOnDrop, fork, in_child, spin_for};

/// How far a member's clock may be ahead.
const AHEAD: u64 = 1_100_000;

/// The time that the kernel may hold back of a switch which is under way: several times the longest
/// seen. An estimate that loses time for good loses more within a few of its rounds.
const SWITCH: u64 = 500_000;

/// The estimate lies between what the process had used before and after, as far as it says.
fn is_within_its_bound(members: u64) {
    let least = process_exact().unwrap();
    let time = process_estimate();
    let most = process_exact().unwrap();
    assert!(time.ns + time.behind_ns + SWITCH >= least, "{time:?} of at least {least}");
    assert!(time.ns <= most + members * AHEAD, "{time:?} of at most {most}");
}

#[test]
fn it_holds_members_and_all_others() {
    in_child(|| {
        let stop = &AtomicBool::new(false);
        spin_for(Duration::from_millis(5));
        is_within_its_bound(1);
        thread::scope(|scope| {
            for asks in [true, true, false, false] {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        spin_for(Duration::from_micros(100));
                        if asks {
                            process_estimate();
                        }
                    }
                });
            }
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let short = thread::spawn(|| {
                        spin_for(Duration::from_micros(200));
                        process_estimate();
                        spin_for(Duration::from_micros(200));
                    });
                    short.join().unwrap();
                }
            });
            let _stop = StopOnDrop(stop);
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(500) {
                is_within_its_bound(4);
            }
        });
        // All is quiet: a little later nothing is missing but what this thread and the harness's
        // use.
        let mut missing = u64::MAX;
        for _ in 0..1000 {
            thread::sleep(Duration::from_millis(2));
            let exact = process_exact().unwrap();
            missing = missing.min(exact.saturating_sub(process_estimate().ns));
        }
        assert!(missing < 200_000, "{missing} ns are never found");
        is_within_its_bound(4);
    });
}

#[test]
fn the_next_read_has_the_own_time() {
    in_child(|| {
        let mut last = process_estimate().ns;
        for _ in 0..50 {
            spin_for(Duration::from_millis(1));
            let now = process_estimate().ns;
            // The clock's own error, and what was ahead before.
            assert!(now + 100_000 >= last + 1_000_000, "{} of 1000000 ns", now - last);
            last = now;
        }
    });
}

#[test]
fn a_later_read_is_never_smaller() {
    in_child(|| {
        let largest = &AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for n in 0..100_000 {
                        // Pairs with the release half below: what was read before that store
                        // happened before ours.
                        let earlier = largest.load(Ordering::Acquire);
                        let read = process_estimate().ns;
                        assert!(read >= earlier, "{read} after {earlier}");
                        largest.fetch_max(read, Ordering::AcqRel);
                        if n % 10_000 == 0 {
                            thread::spawn(process_estimate).join().unwrap();
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn a_thread_in_four_groups_is_outside() {
    in_child(|| {
        let groups: Vec<_> = (0..4).map(|_| ThreadGroup::new().join().unwrap()).collect();
        for _ in 0..20 {
            spin_for(Duration::from_millis(2));
            is_within_its_bound(0);
        }
        drop(groups);
        for _ in 0..20 {
            spin_for(Duration::from_millis(2));
            is_within_its_bound(1);
        }
    });
}

#[test]
fn a_fork_child_begins_again() {
    in_child(|| {
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    process_estimate();
                }
            });
            let _stop = StopOnDrop(stop);
            spin_for(Duration::from_millis(50));
            for _ in 0..10 {
                let before = process_estimate().ns;
                let status = fork(|| {
                    let first = process_estimate();
                    spin_for(Duration::from_millis(3));
                    is_within_its_bound(1);
                    assert!(first.ns < before && process_estimate().ns < 40_000_000);
                });
                assert!(status.success(), "{status}");
                assert!(process_estimate().ns >= before);
            }
        });
    });
}
