//! Groups of threads under seccomp filters: their system calls there, and their reads where the
//! kernel refuses the clock.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use dormouse_clock::{Budget, prepare, start_timer, thread_cpu_ns};
use dormouse_lab::{ProcessMeter, Refresh, ThreadGroup, ThreadMeter, process_estimate};
use dormouse_testkit::{Child, Filter};

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

fn read_for(time: Duration, mut read: impl FnMut()) {
    let end = std::time::Instant::now() + time;
    while std::time::Instant::now() < end {
        read();
    }
}

#[test]
fn members_in_prepared_processes_ask_for_time_alone() {
    Child::new().with_each(&[&[], &[("DORMOUSE_CLOCK", "gap")]]).run(|| {
        prepare();
        start_timer().unwrap();
        let every_time = Refresh { tolerance: Duration::ZERO, ..Refresh::default() };
        let (group, walked) = (ThreadGroup::new(), ThreadGroup::with_refresh(every_time));
        let _members = (group.join().unwrap(), walked.join().unwrap());
        let used = thread::spawn(move || {
            Filter::kill_all_but(&[EVERYBODYS, OURS].concat()).install();
            // Its first read, and past the first times at which the rate is measured again.
            let first = thread_cpu_ns();
            let _members = (group.join().unwrap(), walked.join().unwrap());
            let own = Budget::new(ThreadMeter::current(), Duration::from_micros(200)).unwrap();
            let groups = group.budget(Duration::from_millis(1)).unwrap();
            read_for(Duration::from_millis(40), || {
                black_box((group.cpu_ns(), walked.read()));
            });
            black_box((own.wait(), groups.wait(), ThreadGroup::new()));
            thread_cpu_ns() - first
        });
        assert!(used.join().unwrap() > 0);
    });
}

#[test]
fn filtered_members_open_no_files() {
    let calls = [
        libc::SYS_open,
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
            let group = ThreadGroup::new();
            let _member = group.join().unwrap();
            read_for(Duration::from_millis(40), || {
                black_box((group.read(), process_estimate()));
            });
            let budget = Budget::new(ProcessMeter, Duration::from_millis(1));
            black_box(budget.map(|budget| budget.wait()).unwrap());
            thread_cpu_ns()
        });
        assert!(read.join().unwrap() > 0);
    });
}

#[test]
fn a_group_whose_clock_is_refused_lives() {
    let tiers: &[&[(&str, &str)]] = &[
        &[("DORMOUSE_CLOCK", "rseq")],
        &[("DORMOUSE_CLOCK", "page")],
        &[("DORMOUSE_CLOCK", "gap")],
        &[("DORMOUSE_CLOCK", "syscall")],
        &[("FIRST", "1")],
    ];
    Child::new().with_each(tiers).run(|| {
        let is_first = std::env::var_os("FIRST").is_some();
        let group = ThreadGroup::new();
        let member = (!is_first).then(|| group.join().unwrap());
        Filter::refuse(&[libc::SYS_clock_gettime]).install();
        read_for(Duration::from_millis(20), || _ = black_box((group.read(), process_estimate())));
        let inside = catch_unwind(AssertUnwindSafe(|| {
            let _member = group.join().unwrap();
            let _guard = member;
            panic!("the members are dropped while this unwinds");
        }));
        assert!(inside.is_err());
        black_box(ThreadMeter::current());
        // The end of a thread settles, too.
        thread::spawn(move || group.join().map(std::mem::forget)).join().unwrap().unwrap();
    });
}
