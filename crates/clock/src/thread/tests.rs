//! Tests of the cells that others cannot see.

use std::time::Duration;

use dormouse_testkit::in_child;

use super::*;

fn spin(for_ns: u64) {
    let end = asked_ns() + for_ns;
    while asked_ns() < end {}
}

#[test]
#[cfg_attr(miri, ignore = "it has no clocks of threads")]
fn a_clock_that_was_ahead_stands_still() {
    CLOCK.with(|clock| {
        let now = thread_cpu_ns();
        // As after an epoch with steal.
        clock.last.set(now + 30_000_000);
        clock.armed.set(Tier::Syscall);
        let waiting = thread_cpu_time();
        assert_eq!(waiting.ns, now + 30_000_000, "never back");
        assert!(waiting.error_bound_ns > 25_000_000, "{waiting:?}");
        spin(60_000_000);
        let (ours, kernel) = (thread_cpu_time(), asked_ns());
        assert!(ours.ns <= kernel + ours.error_bound_ns, "{ours:?} stays ahead of {kernel}");
        assert!(ours.error_bound_ns < 25_000_000, "{ours:?}");
    });
}

#[test]
#[cfg_attr(miri, ignore = "it has no clocks of threads")]
fn a_clocks_lead_is_not_carried_on() {
    CLOCK.with(|clock| {
        let ahead = thread_cpu_ns() + 2_000_000;
        clock.last.set(ahead);
        for _ in 0..100 {
            clock.armed.set(Tier::Syscall);
            assert!(thread_cpu_ns() >= ahead);
        }
        spin(4_000_000);
        let (ours, kernel) = (thread_cpu_ns(), asked_ns());
        // Half of its lead: steal in one epoch of this test may be a part of it.
        assert!(ours <= kernel + 1_000_000, "{} ns ahead", ours - kernel);
    });
}

#[test]
fn a_lost_proof_means_a_resync() {
    CLOCK.with(|clock| {
        if clock.attach() == Tier::Syscall {
            return dormouse_testkit::skip(format!("{:?}", capability()));
        }
        thread_cpu_ns();
        let epoch = clock.epoch.get();
        std::thread::sleep(Duration::from_micros(50));
        thread_cpu_ns();
        assert_ne!(clock.epoch.get(), epoch);
    });
}

#[test]
#[cfg_attr(miri, ignore = "it has one tier")]
fn a_thread_between_two_tiers_asks_the_kernel() {
    CLOCK.with(|clock| {
        thread_cpu_ns();
        // As a signal handler finds it in the middle of a change.
        let changing = clock.changing.begin().unwrap();
        clock.armed.set(Tier::Syscall);
        clock.attached.set(0);
        let before = asked_ns();
        assert!(thread_cpu_ns() >= before);
        assert_eq!(clock.attached.get(), 0);
        clock.changing.end(changing);
        // While another thread tests the counter, it asks the kernel.
        dormouse_testkit::eventually(|| {
            assert!(thread_cpu_ns() >= before);
            clock.attached.get() != 0
        });
    });
}

#[test]
#[cfg_attr(miri, ignore = "it has no clocks of threads")]
fn without_the_counter_threads_ask_the_kernel() {
    in_child(|| {
        let best = tier();
        let mut last = thread_cpu_ns();
        tsc::give_up();
        // Until its epoch is over; no step back on the way.
        let end = asked_ns() + 3_000_000;
        while asked_ns() < end {
            let now = thread_cpu_ns();
            assert!(now >= last);
            last = now;
        }
        assert_eq!(thread_cpu_time().tier, Tier::Syscall);
        assert_eq!(std::thread::spawn(tier).join().unwrap(), Tier::Syscall);
        let refused = force(Some(best));
        assert!(best == Tier::Syscall || matches!(refused, Err(Error::Tier { .. })), "{refused:?}");
        assert!(capability().iter().any(|line| line.detail.contains("changed its rate")));
    });
}
