//! The process's CPU time as an estimate: what is in it, that its bound holds, that it never steps back.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

mod child;
mod kernel;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use child::in_child;
use dormouse_clock::{ThreadGroup, process_estimate, process_exact};
use kernel::kernel_ns;

/// How far a member's clock may be ahead.
const AHEAD: u64 = 1_100_000;

fn burn(ns: u64) {
    let end = kernel_ns() + ns;
    while kernel_ns() < end {}
}

/// The estimate lies between what the process had used before and after, as far as it says.
fn is_within_its_bound(members: u64) {
    let least = process_exact().unwrap();
    let time = process_estimate();
    let most = process_exact().unwrap();
    assert!(time.ns + time.behind_ns >= least, "{time:?} of at least {least}");
    assert!(time.ns <= most + members * AHEAD, "{time:?} of at most {most}");
}

#[test]
fn it_holds_those_who_ask_and_those_who_do_not_and_those_who_have_ended() {
    let name = "it_holds_those_who_ask_and_those_who_do_not_and_those_who_have_ended";
    in_child(name, &[&[]], || {
        let stop = &AtomicBool::new(false);
        burn(5_000_000);
        is_within_its_bound(1);
        thread::scope(|scope| {
            for asks in [true, true, false, false] {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        burn(100_000);
                        if asks {
                            process_estimate();
                        }
                    }
                });
            }
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let short = thread::spawn(|| {
                        burn(200_000);
                        process_estimate();
                        burn(200_000);
                    });
                    short.join().unwrap();
                }
            });
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_millis(500) {
                is_within_its_bound(4);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // All is quiet: a little later nothing is missing but what this thread and the harness's use.
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
fn a_threads_own_time_is_in_its_next_read() {
    in_child("a_threads_own_time_is_in_its_next_read", &[&[]], || {
        let mut last = process_estimate().ns;
        for _ in 0..50 {
            burn(1_000_000);
            let now = process_estimate().ns;
            // The clock's own error, and what was ahead before.
            assert!(now + 100_000 >= last + 1_000_000, "{} of 1000000 ns", now - last);
            last = now;
        }
    });
}

#[test]
fn a_read_that_comes_after_another_is_never_smaller_whichever_threads_they_are_on() {
    let name = "a_read_that_comes_after_another_is_never_smaller_whichever_threads_they_are_on";
    in_child(name, &[&[]], || {
        let largest = &AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for n in 0..100_000 {
                        // Pairs with the release half below: what was read before that store happened
                        // before ours.
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
fn a_thread_that_is_in_four_groups_is_counted_with_those_who_do_not_ask() {
    let name = "a_thread_that_is_in_four_groups_is_counted_with_those_who_do_not_ask";
    in_child(name, &[&[]], || {
        let groups: Vec<_> = (0..4).map(|_| ThreadGroup::new().join().unwrap()).collect();
        for _ in 0..20 {
            burn(2_000_000);
            is_within_its_bound(0);
        }
        drop(groups);
        for _ in 0..20 {
            burn(2_000_000);
            is_within_its_bound(1);
        }
    });
}

#[test]
fn a_fork_child_begins_again() {
    in_child("a_fork_child_begins_again", &[&[]], || {
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    process_estimate();
                }
            });
            burn(50_000_000);
            for _ in 0..10 {
                let before = process_estimate().ns;
                // SAFETY: the child reads clocks and lists a directory until it ends by `_exit`; glibc's
                // malloc is usable after its own fork.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let first = process_estimate();
                    burn(3_000_000);
                    is_within_its_bound(1);
                    let right = first.ns < before && process_estimate().ns < 40_000_000;
                    // SAFETY: ends the child without running the parent's exit handlers.
                    unsafe { libc::_exit(i32::from(!right)) };
                }
                let mut status = 0;
                // SAFETY: `status` is a valid place.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
                assert!(process_estimate().ns >= before);
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}
