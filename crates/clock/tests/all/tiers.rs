//! Which tier a thread gets, and that each is right: told by the environment or the program, denied
//! by the kernel or a filter, out of budget, taken over by another library.
#![allow(unsafe_code)]

use crate::each_tier;
use crate::kernel;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use dormouse_clock::{Error, Tier, capability, force, thread_cpu_ns, thread_cpu_time, tier};
use dormouse_sys::arch::{RSEQ_SIGNATURE, thread_pointer};
use dormouse_testkit::{Child, Filter, in_child, skip, stress_rounds};
use each_tier::{EACH_TIER, has_wanted_tier, is_below_page};
use kernel::kernel_ns;

const WITHOUT_RSEQ: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

/// Allows or forbids this thread to read the counter.
fn allow_counter(allow: bool) {
    const PR_SET_TSC: i32 = 26;
    const PR_TSC_ENABLE: i32 = 1;
    const PR_TSC_SIGSEGV: i32 = 2;
    // SAFETY: takes a number.
    let set = unsafe { libc::prctl(PR_SET_TSC, if allow { PR_TSC_ENABLE } else { PR_TSC_SIGSEGV }) };
    assert_eq!(set, 0);
}

/// Sleep is not counted, and the kernel's value is within the bound of every reading.
fn is_right() {
    let counted = (0..100)
        .filter(|_| {
            thread_cpu_ns();
            // Shorter than an epoch, so that nothing but the proof can tell.
            thread::sleep(Duration::from_micros(200));
            thread_cpu_ns() > kernel_ns() + 100_000
        })
        .count();
    // Not none: a hypervisor may take the processor away in the middle.
    assert!(counted < 20, "{counted} of 100 short sleeps were counted");
    for round in 0..300_u32 {
        if round.is_multiple_of(100) {
            let before = thread_cpu_ns();
            thread::sleep(Duration::from_millis(20));
            let (after, kernel) = (thread_cpu_time(), kernel_ns());
            assert!(after.ns <= kernel + after.error_bound_ns, "{after:?} after sleep, {kernel}");
            assert!(after.ns - before < 15_000_000, "{} of 20 ms of sleep", after.ns - before);
        }
        // Epochs of all lengths; short gaps on the way.
        for _ in 0..round * 20 {
            thread_cpu_ns();
        }
        let least = kernel_ns();
        let time = thread_cpu_time();
        let most = kernel_ns();
        assert!(time.ns + time.error_bound_ns >= least, "{time:?} behind {least}");
        assert!(time.ns <= most + time.error_bound_ns, "{time:?} ahead of {most}");
    }
}

#[test]
fn each_tier_of_the_environment_is_right() {
    Child::new().with_each(EACH_TIER).run(|| {
        if has_wanted_tier() {
            is_right();
            let other = thread::spawn(|| (tier(), is_right())).join().unwrap().0;
            assert_eq!(other, tier());
        }
    });
}

#[test]
fn each_tier_of_the_program_is_right() {
    in_child(|| {
        let first = tier();
        let mut last = thread_cpu_ns();
        for wanted in [Tier::Gap, Tier::Syscall, Tier::Page, Tier::Rseq, Tier::Page, Tier::Gap] {
            if let Err(refused) = force(Some(wanted)) {
                skip(refused);
                continue;
            }
            assert_eq!(tier(), wanted);
            assert!(thread_cpu_ns() >= last);
            is_right();
            last = thread_cpu_ns();
        }
        force(None).unwrap();
        assert_eq!(tier(), first);
        assert!(thread_cpu_ns() >= last);
    });
}

#[test]
fn other_threads_follow_at_their_next_resync() {
    in_child(|| {
        let (send, receive) = mpsc::channel();
        let (go, gone) = (&Barrier::new(2), &Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(move || {
                thread_cpu_ns();
                go.wait();
                gone.wait();
                // It was away at the barrier, or at the latest after a millisecond.
                let end = kernel_ns() + 2_000_000;
                while kernel_ns() < end {
                    thread_cpu_ns();
                }
                send.send(thread_cpu_time().tier).unwrap();
            });
            go.wait();
            force(Some(Tier::Syscall)).unwrap();
            gone.wait();
            assert_eq!(receive.recv().unwrap(), Tier::Syscall);
        });
    });
}

#[test]
fn a_wrong_setting_changes_nothing() {
    Child::new().with_each(&[&[("DORMOUSE_CLOCK", "sundial")]]).run(|| {
        assert_ne!(tier(), Tier::Syscall);
        assert!(capability().iter().any(|line| line.detail.contains("sundial")));
        is_right();
    });
}

#[test]
fn the_page_follows_rseq_and_the_gap_events() {
    Child::new().with_each(&[&[WITHOUT_RSEQ], &[WITHOUT_RSEQ, ("DENY", "1")]]).run(|| {
        let denied = std::env::var_os("DENY").is_some();
        if denied {
            Filter::refuse(&[libc::SYS_perf_event_open]).install();
        }
        let is_right_tier = if denied { is_below_page(tier()) } else { tier() == Tier::Page };
        assert!(is_right_tier, "{:?}", capability());
        is_right();
        let refused = force(Some(Tier::Rseq)).unwrap_err();
        assert!(
            matches!(refused, Error::Tier { tier: Tier::Rseq, .. }) && refused.to_string().contains("rseq")
        );
        if denied {
            let refused = force(Some(Tier::Page)).unwrap_err().to_string();
            assert!(refused.contains("seccomp"), "{refused}");
        }
        is_right();
    });
}

#[test]
fn a_killing_filter_is_not_met_unasked() {
    Child::new().with_each(&[&[], &[WITHOUT_RSEQ], &[WITHOUT_RSEQ, ("LATER", "1")]]).run(|| {
        let (has_rseq, later) =
            (std::env::var_os(WITHOUT_RSEQ.0).is_none(), std::env::var_os("LATER").is_some());
        if later {
            assert_eq!(tier(), Tier::Page, "{:?}", capability());
        }
        Filter::kill(&[libc::SYS_perf_event_open]).install();
        let is_right_tier = move || if has_rseq { tier() == Tier::Rseq } else { is_below_page(tier()) };
        assert!(thread::spawn(is_right_tier).join().unwrap(), "{:?}", capability());
        is_right();
        if !has_rseq && !later {
            assert!(capability()[0].detail.contains("a seccomp filter"), "{:?}", capability());
        }
    });
}

#[test]
fn without_the_counter_a_thread_asks_the_kernel() {
    Child::new().with_each(&[&[], &[("FIRST", "1")]]).run(|| {
        // Before the first read in the process, or after it and on another thread.
        let first = std::env::var_os("FIRST").is_some();
        let before = if first { Tier::Syscall } else { tier() };
        let seen = thread::spawn(|| {
            allow_counter(false);
            let seen = (tier(), thread_cpu_ns() > 0, thread_cpu_time());
            // The C library's own clocks read it too.
            allow_counter(true);
            seen
        });
        let (there, counts, time) = seen.join().unwrap();
        assert!(there == Tier::Syscall && counts && time.error_bound_ns == 0, "{time:?}");
        if !first {
            assert_eq!(tier(), before, "only that thread");
            is_right();
        }
    });
}

#[test]
fn pages_take_a_quarter_of_the_budget() {
    Child::new().with_each(&[&[("DORMOUSE_CLOCK", "page")]]).run(|| {
        if !has_wanted_tier() {
            return;
        }
        let round = || {
            let gate = Barrier::new(400);
            let tiers: Vec<Tier> = thread::scope(|scope| {
                let started: Vec<_> = (0..400)
                    .map(|_| {
                        scope.spawn(|| {
                            let own = tier();
                            assert!(own == Tier::Page || is_below_page(own), "{:?}", capability());
                            gate.wait();
                            // Any tier that it got works.
                            let before = kernel_ns();
                            assert!(thread_cpu_ns() + 20_000 >= before);
                            own
                        })
                    })
                    .collect();
                started.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let count = |tier| tiers.iter().filter(|&&own| own == tier).count();
            count(Tier::Page)
        };
        let pages = round();
        assert!((1..400).contains(&pages), "{pages}");
        // The ends of scoped threads are waited for before their locals are destroyed.
        let again = (0..100).map(|_| round()).find(|&again| again == pages);
        assert_eq!(again, Some(pages), "what the first had is not there any more");
    });
}

#[test]
fn without_a_descriptor_the_next_tier_is_taken() {
    Child::new().with_each(&[&[("DORMOUSE_CLOCK", "page")]]).run(|| {
        if !has_wanted_tier() {
            return;
        }
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 1024 };
        // SAFETY: `none` is a valid place.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        let there = thread::spawn(|| (is_right(), is_below_page(tier()), capability())).join().unwrap();
        assert!(there.1 && tier() == Tier::Page, "{:?}", there.2);
        assert!(capability()[0].detail.contains("took the next"), "{:?}", capability());
    });
}

/// A descriptor as other libraries have them, in memory that stays.
fn foreign_descriptor() -> u64 {
    #[repr(C, align(32))]
    struct Descriptor {
        version: u32,
        flags: u32,
        start: u64,
        length: u64,
        abort: u64,
        code: [u8; 4],
        signature: u32,
        abort_code: [u8; 4],
    }
    let descriptor = Box::leak(Box::new(Descriptor {
        version: 0,
        flags: 0,
        start: 0,
        length: 4,
        abort: 0,
        code: [0; 4],
        signature: RSEQ_SIGNATURE,
        abort_code: [0; 4],
    }));
    descriptor.start = descriptor.code.as_ptr() as u64;
    descriptor.abort = descriptor.abort_code.as_ptr() as u64;
    std::ptr::from_ref(descriptor) as u64
}

#[test]
fn a_foreign_rseq_field_costs_the_tier() {
    Child::new().with_each(&[&[("DORMOUSE_CLOCK", "rseq")]]).run(|| {
        if !has_wanted_tier() {
            return;
        }
        // SAFETY: the symbol is plain data of glibc, which has registered the area at this offset.
        let field = unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
            (thread_pointer() as usize).wrapping_add_signed(*offset + 8) as *mut u64
        };
        let foreign = foreign_descriptor();
        for _ in 0..100_000 {
            let before = kernel_ns();
            // SAFETY: this thread's own field, and a valid descriptor.
            unsafe { field.write_volatile(foreign) };
            let time = thread_cpu_time();
            assert!(time.ns + time.error_bound_ns >= before, "{time:?} behind {before}");
            if tier() != Tier::Rseq {
                break;
            }
        }
        // A thread that has the tier has no need to know.
        let is_slow = |why: Error| why.to_string().contains("asking the kernel takes");
        if tier() == Tier::Rseq && force(Some(Tier::Gap)).is_err_and(is_slow) {
            // Interrupted before a hundred reads in a row have found the descriptor.
            return skip("no hundred reads are asked for in a row here");
        }
        assert_eq!(tier(), Tier::Page, "{:?}", capability());
        is_right();
        // Others keep it.
        assert_eq!(thread::spawn(tier).join().unwrap(), Tier::Rseq);
    });
}

/// Reads in a stress test.
fn reads() -> u64 {
    stress_rounds(200_000, 5_000_000)
}

#[test]
fn it_stays_within_its_bound_beside_competitors() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            let cpus = thread::available_parallelism().map_or(2, usize::from);
            for _ in 0..2 * cpus {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let reader = || {
                let (mut last, mut kernel) = (0, 0);
                for n in 1..=reads() {
                    let time = thread_cpu_time();
                    assert!(time.ns >= last, "{} after {last}", time.ns);
                    assert!(time.ns + time.error_bound_ns >= kernel, "{time:?} behind {kernel}");
                    last = time.ns;
                    if n.is_multiple_of(1000) {
                        kernel = kernel_ns();
                        assert!(last <= kernel + time.error_bound_ns, "{time:?} ahead of {kernel}");
                    }
                }
            };
            let others = [scope.spawn(reader), scope.spawn(reader)];
            let ends = others.map(thread::ScopedJoinHandle::join);
            stop.store(true, Ordering::Relaxed);
            for end in ends {
                end.unwrap();
            }
        });
    });
}
