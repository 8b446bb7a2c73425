//! The clock at the ends of threads, in forks and execs, and under signals.
#![allow(unsafe_code)]

use crate::each_tier;
use crate::kernel;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::thread;

use dormouse_clock::{Tier, thread_cpu_ns, thread_cpu_time, tier};
use dormouse_testkit::{Child, stress_rounds};
use each_tier::{EACH_TIER, has_wanted_tier};
use kernel::{kernel_ns, tid};

fn burn(ns: u64) {
    let end = kernel_ns() + ns;
    while kernel_ns() < end {
        thread_cpu_ns();
    }
}

fn event_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("[perf_event]")).count()
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Memory of the process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Waits until no thread but ours, and the harness's that waits for us, is there.
fn wait_for_the_ends_of_threads(left: usize) {
    while std::fs::read_dir("/proc/self/task").unwrap().count() > left {
        thread::yield_now();
    }
}

#[test]
fn ten_thousand_short_threads_leave_nothing() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        let own = tier();
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        let some = |n| {
            for _ in 0..n {
                thread::spawn(move || assert!(thread_cpu_ns() > 0 && tier() == own)).join().unwrap();
            }
            wait_for_the_ends_of_threads(threads);
            (descriptors(), event_mappings())
        };
        let (first, memory) = (some(500), resident());
        assert_eq!(some(9_500), first);
        let grown = resident().saturating_sub(memory);
        // A kilobyte for each thread would be ten times that.
        assert!(grown < 1024, "{grown} KiB");
    });
}

/// Forks, with the handlers of `pthread_atfork` or without, and says how the child's `body` ended.
fn forked(handlers: bool, body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child runs clock reads and thread creation alone, and ends by `_exit`. (What a
    // child of a threaded process may call is less by the letter; glibc's malloc is usable after
    // its own fork.)
    let child = unsafe {
        if handlers {
            libc::fork()
        } else {
            libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t
        }
    };
    if child == 0 {
        let right = body();
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_threaded_processs_child_keeps_the_tier() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        thread_cpu_ns();
                    }
                });
            }
            burn(30_000_000);
            for _ in 0..20 {
                let (before, own) = (thread_cpu_ns(), tier());
                let status = forked(true, || {
                    let first = thread_cpu_ns();
                    burn(1_000_000);
                    let time = thread_cpu_time();
                    let kernel = kernel_ns();
                    let right = first < before && time.ns >= first && time.ns <= kernel + time.error_bound_ns;
                    right && time.tier == own && thread::spawn(tier).join().is_ok_and(|other| other == own)
                });
                assert_eq!(status, 0);
                assert!(thread_cpu_ns() >= before && tier() == own);
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_child_without_handlers_may_read() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        thread_cpu_ns();
        let status = forked(false, || {
            let first = thread_cpu_ns();
            burn(1_000_000);
            thread_cpu_ns() >= first
        });
        assert_eq!(status, 0);
        assert!(thread_cpu_ns() > 0);
    });
}

#[test]
fn after_exec_the_clock_begins_again() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        burn(10_000_000);
        if std::env::var_os("AGAIN").is_some() {
            let (time, kernel) = (thread_cpu_time(), kernel_ns());
            // The kernel counts on for the thread that called exec.
            assert!(time.ns <= kernel + time.error_bound_ns, "{time:?} {kernel}");
            return;
        }
        let error = Command::new(std::env::current_exe().unwrap())
            .args(std::env::args_os().skip(1))
            .env("AGAIN", "1")
            .exec();
        panic!("{error}");
    });
}

/// The largest value seen on the thread that is hit by signals.
static LARGEST: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static BACKWARDS: AtomicU64 = AtomicU64::new(0);
/// Handlers under way on the one thread that has any.
static DEPTH: AtomicU64 = AtomicU64::new(0);

extern "C" fn read_in_a_handler(_signal: i32) {
    // One inside another, but not more than the stack bears, also where it takes longer to deliver
    // a signal than the timer waits.
    if DEPTH.fetch_add(1, Ordering::Relaxed) < 4 {
        ask_for_a_signal();
        read_there();
    }
    if DEPTH.fetch_sub(1, Ordering::Relaxed) == 1 {
        ask_for_a_signal();
    }
}

fn read_there() {
    let largest = LARGEST.load(Ordering::Relaxed);
    let count = SIGNALS.fetch_add(1, Ordering::Relaxed);
    if count.is_multiple_of(16) {
        // Away, so that the read that was interrupted has lost its proof.
        let short = libc::timespec { tv_sec: 0, tv_nsec: 1000 };
        // SAFETY: `short` is a valid place; the call is async-signal-safe.
        unsafe { libc::nanosleep(&raw const short, std::ptr::null_mut()) };
    }
    for _ in 0..3 {
        let now = thread_cpu_ns();
        BACKWARDS.fetch_add(u64::from(now < largest), Ordering::Relaxed);
        LARGEST.fetch_max(now, Ordering::Relaxed);
    }
}

#[test]
fn a_signal_inside_a_read_does_no_harm() {
    Child::new().with_each(EACH_TIER).run(|| {
        if !has_wanted_tier() {
            return;
        }
        // SAFETY: an all-zero action is valid; the handler calls only what is async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = read_in_a_handler as *const () as usize;
            action.sa_flags = libc::SA_RESTART | libc::SA_NODEFER;
            assert_eq!(libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut()), 0);
        }
        let timer = storm();
        let signals: u64 = stress_rounds(5_000, 1_000_000);
        let mut reads = 0_u64;
        while SIGNALS.load(Ordering::Relaxed) < signals {
            let largest = LARGEST.load(Ordering::Relaxed);
            let time = thread_cpu_time();
            assert!(time.ns >= largest, "{} after {largest}", time.ns);
            LARGEST.fetch_max(time.ns, Ordering::Relaxed);
            reads += 1;
            if reads.is_multiple_of(64) {
                let kernel = kernel_ns();
                assert!(time.ns <= kernel + time.error_bound_ns, "{time:?} ahead of {kernel}");
            }
        }
        // SAFETY: made above, and deleted once.
        unsafe { libc::timer_delete(timer) };
        assert_eq!(BACKWARDS.load(Ordering::Relaxed), 0);
        assert_ne!(tier(), Tier::Syscall);
    });
}

/// The timer that interrupts the one thread; null before it is made.
static TIMER: AtomicPtr<libc::c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Has SIGPROF interrupt the thread in 23 us, wherever it is.
fn ask_for_a_signal() {
    let soon = libc::timespec { tv_sec: 0, tv_nsec: 23_000 };
    let once = libc::itimerspec { it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 }, it_value: soon };
    // SAFETY: a timer of ours; the call is async-signal-safe.
    unsafe { libc::timer_settime(TIMER.load(Ordering::Relaxed), 0, &raw const once, std::ptr::null_mut()) };
}

/// Interrupts this thread again and again: each handler asks for the next signal.
fn storm() -> libc::timer_t {
    // SAFETY: all-zero is a valid request and a valid place for what comes; the thread is our own.
    let timer = unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify_thread_id = tid().cast_signed();
        let mut timer: libc::timer_t = std::mem::zeroed();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        timer
    };
    TIMER.store(timer, Ordering::Relaxed);
    ask_for_a_signal();
    timer
}
