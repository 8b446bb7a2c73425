//! Group time from outside: what is in it, that it never steps back, and that it comes out even.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_clock::{thread_cpu_ns, thread_cpu_ns_of};
use dormouse_lab::{Error, Refresh, ThreadGroup};
use dormouse_sys::process::identity::tid;
use dormouse_testkit::{fork, spin_for, stress_rounds};

/// Never refreshes by itself.
const NEVER: Refresh = Refresh { tolerance: Duration::MAX, most: 64, prefetch: true };
/// Every read asks for every member.
const ALWAYS: Refresh = Refresh { tolerance: Duration::ZERO, most: usize::MAX, prefetch: true };
/// The kernel's clock of the calling thread.
fn kernel_ns() -> u64 {
    thread_cpu_ns_of(tid()).unwrap()
}

/// How far a member's own clock may be ahead of the kernel's: steal inside one epoch.
const AHEAD: u64 = 5_000_000;

#[test]
fn a_members_read_has_its_own_time() {
    let group = ThreadGroup::with_refresh(NEVER);
    spin_for(Duration::from_millis(2));
    let before = kernel_ns();
    let _member = group.join().unwrap();
    let joined = kernel_ns();
    spin_for(Duration::from_millis(3));
    let least = kernel_ns() - joined;
    let read = group.cpu_ns();
    let most = kernel_ns() - before;
    // The clock's own error is half the width of its bracket.
    assert!(read + 20_000 >= least, "{read} of at least {least}");
    assert!(read <= most + AHEAD, "{read} of at most {most}");
}

#[test]
fn a_running_member_is_brought_up_to_date() {
    let group = ThreadGroup::with_refresh(ALWAYS);
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let joining = group.clone();
        scope.spawn(move || {
            let before = kernel_ns();
            let _member = joining.join().unwrap();
            send.send((tid(), before, kernel_ns())).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (runner, before, joined) = receive.recv().unwrap();
        for _ in 0..5000 {
            let least = thread_cpu_ns_of(runner).unwrap() - joined;
            let read = group.cpu_ns();
            let most = thread_cpu_ns_of(runner).unwrap() - before;
            assert!((least..=most).contains(&read), "{read} not in {least}..={most}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_member_is_not_charged_for_waiting() {
    let group = ThreadGroup::new();
    let (wait, go) = (&Barrier::new(5), &Barrier::new(5));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _member = group.join().unwrap();
                group.cpu_ns();
                wait.wait();
                go.wait();
            });
        }
        wait.wait();
        let (began, before) = (Instant::now(), group.cpu_ns());
        while began.elapsed() < Duration::from_millis(30) {
            group.cpu_ns();
        }
        let charged = group.cpu_ns() - before;
        go.wait();
        // Four members for 30 ms would be 120.
        assert!(charged < 5_000_000, "{charged} ns");
    });
}

#[test]
fn a_later_read_is_never_smaller() {
    let group = ThreadGroup::new();
    let largest = &AtomicU64::new(0);
    thread::scope(|scope| {
        for member in [true, true, true, false] {
            let group = &group;
            scope.spawn(move || {
                let _member = member.then(|| group.join().unwrap());
                for _ in 0..200_000 {
                    // Pairs with the release half below: what was read before that store happened
                    // before ours.
                    let earlier = largest.load(Ordering::Acquire);
                    let read = group.cpu_ns();
                    assert!(read >= earlier, "{read} after {earlier}");
                    largest.fetch_max(read, Ordering::AcqRel);
                }
            });
        }
    });
}

#[test]
fn walks_ask_few_members_and_go_on() {
    for prefetch in [true, false] {
        let group = ThreadGroup::with_refresh(Refresh { most: 3, prefetch, ..NEVER });
        let (wait, go) = (&Barrier::new(11), &Barrier::new(11));
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    let _member = group.join().unwrap();
                    spin_for(Duration::from_millis(1));
                    wait.wait();
                    go.wait();
                });
            }
            wait.wait();
            assert_eq!((group.members(), group.cpu_ns()), (10, 0));
            let mut after = Vec::new();
            for _ in 0..4 {
                assert_eq!(group.refresh(), 3);
                after.push(group.cpu_ns() / 1_000_000);
            }
            go.wait();
            assert!((3..10).contains(&after[0]) && after[3] >= 10, "{after:?} ms");
        });
    }
}

#[test]
fn the_bound_covers_what_is_not_published() {
    let group = ThreadGroup::with_refresh(NEVER);
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let joining = group.clone();
        scope.spawn(move || {
            let _member = joining.join().unwrap();
            send.send((tid(), kernel_ns())).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (runner, joined) = receive.recv().unwrap();
        for _ in 0..2000 {
            let used = thread_cpu_ns_of(runner).unwrap() - joined;
            let time = group.read();
            assert_eq!(time.ns, 0, "nobody has published or refreshed");
            // The counter's rate is known to a hundredth at worst.
            assert!(time.behind_ns + time.behind_ns / 100 + 1000 >= used, "{time:?} for {used}");
        }
        group.refresh();
        let time = group.read();
        assert!(time.ns > 0 && time.behind_ns < 1_000_000_000, "{time:?}");
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_ended_threads_time_stays() {
    let group = ThreadGroup::with_refresh(NEVER);
    for forget in [false, true] {
        let before = group.cpu_ns();
        let joining = group.clone();
        let thread = thread::spawn(move || {
            let member = joining.join().unwrap();
            spin_for(Duration::from_millis(1));
            if forget {
                std::mem::forget(member);
            }
        });
        // Unlike the end of a scope, this waits for the destructors of thread-locals.
        thread.join().unwrap();
        assert_eq!(group.members(), 0);
        let used = group.cpu_ns() - before;
        assert!((1_000_000..100_000_000).contains(&used), "{used} ns");
    }
}

#[test]
fn membership_lasts_until_the_last_guard() {
    let group = ThreadGroup::new();
    let (first, second) = (group.join().unwrap(), group.join().unwrap());
    drop(first);
    assert_eq!(group.members(), 1);
    let others: Vec<_> = (0..3).map(|_| ThreadGroup::new().join().unwrap()).collect();
    let refused = ThreadGroup::new().join();
    assert!(matches!(refused, Err(Error::TooManyGroups { groups: 4 })), "{refused:?}");
    drop(second);
    assert_eq!(group.members(), 0);
    assert!(ThreadGroup::new().join().is_ok());
    drop(others);
}

/// Short members come and go in a few places while others read; `reads` says whether members do
/// too. Returns the total, and the least and the most that it may be by the kernel's clock.
fn come_and_go(rounds: u32, reads: bool) -> (u64, u64, u64) {
    let group = ThreadGroup::with_refresh(Refresh { tolerance: Duration::from_micros(50), ..ALWAYS });
    let (least, most) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let left = &AtomicU32::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            let group = &group;
            scope.spawn(move || {
                for _ in 0..rounds {
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            let outer = kernel_ns();
                            let member = group.join().unwrap();
                            let inner = kernel_ns();
                            for _ in 0..20 {
                                spin_for(Duration::from_micros(2));
                                if reads {
                                    group.cpu_ns();
                                }
                            }
                            least.fetch_add(kernel_ns() - inner, Ordering::Relaxed);
                            drop(member);
                            most.fetch_add(kernel_ns() - outer, Ordering::Relaxed);
                        });
                    });
                }
                left.fetch_sub(1, Ordering::Release);
            });
        }
        scope.spawn(|| {
            let mut last = 0;
            while left.load(Ordering::Acquire) > 0 {
                let read = group.cpu_ns();
                assert!(read >= last, "{read} after {last}");
                last = read;
            }
        });
    });
    assert_eq!(group.members(), 0);
    (group.cpu_ns(), least.load(Ordering::Relaxed), most.load(Ordering::Relaxed))
}

fn rounds() -> u32 {
    stress_rounds(100, 2500)
}

#[test]
fn a_quiet_total_is_the_kernels() {
    let (total, least, most) = come_and_go(rounds(), false);
    assert!((least..=most).contains(&total), "{total} not in {least}..={most}");
}

#[test]
fn reading_members_add_only_their_clocks_lead() {
    let (total, least, most) = come_and_go(rounds(), true);
    // Four places, each ahead by at most its last members' steal: it does not add up over the
    // members.
    assert!((least..=most + 4 * AHEAD).contains(&total), "{total} not in {least}..={most}");
}

#[test]
fn a_fork_child_continues_its_parents_total() {
    let group = ThreadGroup::new();
    let _member = group.join().unwrap();
    spin_for(Duration::from_millis(5));
    let before = group.cpu_ns();
    let status = fork(|| {
        let first = group.cpu_ns();
        spin_for(Duration::from_millis(3));
        let grown = group.cpu_ns() - first;
        assert!(first >= before, "the total stepped back");
        assert!((2_900_000..100_000_000).contains(&grown), "the child's own time is {grown} ns");
    });
    assert!(status.success(), "{status}");
    // The parent is as it was.
    assert!(group.cpu_ns() >= before && thread_cpu_ns() > 0);
}
