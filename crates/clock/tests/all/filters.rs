//! Threads under seccomp filters: what the clock asks the kernel there, and what it does when it is
//! refused.
#![allow(unsafe_code)]

use crate::meters;

use std::hint::black_box;
use std::thread;
use std::time::Duration;

use dormouse_clock::{
    Budget, capability, point, prepare, process_cpu_ns, stamp, start_timer, thread_cpu_ns, thread_cpu_ns_of,
    thread_cpu_time, tier,
};
use dormouse_testkit::{Child, Filter};
use meters::OfThread;

/// The calls of threads of any Rust program: memory, locks, their ends.
const EVERYBODYS: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_write,
];

/// The calls of the clock on a host's thread after `prepare`.
const OURS: &[libc::c_long] = &[libc::SYS_clock_gettime, libc::SYS_gettid];

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_pid().cast_unsigned()
}

fn read_for(time: Duration, mut read: impl FnMut()) {
    let end = std::time::Instant::now() + time;
    while std::time::Instant::now() < end {
        read();
    }
}

#[test]
fn threads_of_prepared_processes_ask_for_time_alone() {
    Child::new().with_each(&[&[], &[("DORMOUSE_CLOCK", "gap")]]).run(|| {
        prepare();
        start_timer().unwrap();
        let used = thread::spawn(|| {
            Filter::kill_all_but(&[EVERYBODYS, OURS].concat()).install();
            // Its first read, and past the first times at which the rate is measured again.
            let first = thread_cpu_ns();
            let own = Budget::new(OfThread::current(), Duration::from_micros(200)).unwrap();
            read_for(Duration::from_millis(40), || {
                black_box((thread_cpu_time(), process_cpu_ns(), stamp()));
            });
            black_box((own.wait(), point(), thread_cpu_ns_of(tid())));
            thread_cpu_ns() - first
        });
        assert!(used.join().unwrap() > 0);
    });
}

#[test]
fn filtered_threads_open_no_files() {
    let calls = [
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_read,
        libc::SYS_getdents64,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_perf_event_open,
    ];
    Child::new().with_each(&[&[], &[("EARLIER", "1")]]).run(|| {
        // Under a filter from the start, or with clocks that were read before.
        if std::env::var_os("EARLIER").is_some() {
            thread_cpu_ns();
        }
        let read = thread::spawn(move || {
            Filter::kill(&calls).install();
            read_for(Duration::from_millis(40), || _ = black_box(thread_cpu_ns()));
            let budget = Budget::new(OfThread::current(), Duration::ZERO);
            black_box(budget.map(|budget| budget.wait()).unwrap());
            assert!(!capability().is_empty());
            thread_cpu_ns()
        });
        assert!(read.join().unwrap() > 0);
    });
}

#[test]
fn a_clock_that_is_refused_stands_still() {
    let tiers: &[&[(&str, &str)]] = &[
        &[("DORMOUSE_CLOCK", "rseq")],
        &[("DORMOUSE_CLOCK", "page")],
        &[("DORMOUSE_CLOCK", "gap")],
        &[("DORMOUSE_CLOCK", "syscall")],
        &[("FIRST", "1")],
    ];
    Child::new().with_each(tiers).run(|| {
        let read = || (thread_cpu_time(), process_cpu_ns());
        let is_first = std::env::var_os("FIRST").is_some();
        let before = (!is_first).then(read);
        Filter::refuse(&[libc::SYS_clock_gettime]).install();
        let mut last = 0;
        read_for(Duration::from_millis(20), || {
            let (thread, _) = read();
            assert!(thread.ns >= last);
            last = thread.ns;
            black_box((tier(), thread_cpu_ns_of(tid())));
        });
        let (thread, process) = read();
        if let Some((earlier, process_before)) = before {
            assert!(thread.ns >= earlier.ns && process >= process_before);
            assert!(thread.ns < earlier.ns + 10_000_000, "it stood still, but for what was proved");
        }
        assert_eq!(thread.error_bound_ns, u64::MAX, "nobody knows how wrong it is");
    });
}
