//! Watches from outside: a forked process, without any handler of SIGTRAP, is watched by the test.
//!
//! Each test runs in a child of its own, whose forks have one thread.
#![cfg(target_os = "linux")]

mod ends;
mod limits;
mod process;
mod programs;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use dormouse_breakpoints::{Access, Outside, OutsideBudget, OutsideReport, WatchSpec, WatchState};
use dormouse_sys::perf::{Attr, Breakpoint, OpenEvent, Subject};
use dormouse_testkit::{HANG, eventually, in_child, short_or_long, skip};
use process::{Process, Shared};
use rustix::process::Signal;

use crate::arch::{dormouse_test_outer, dormouse_test_returned, dormouse_test_stopped};

/// The forks have it at the same address, each its own.
static WATCHED: AtomicU64 = AtomicU64::new(1);

fn write_through_frames(value: u64) {
    // SAFETY: a store to an atomic, by the calling convention.
    unsafe { dormouse_test_outer(&raw const WATCHED, value) };
}

fn write(times: u64) {
    (0..times).for_each(|_| write_once());
}

#[inline(never)]
fn write_once() {
    WATCHED.store(2, SeqCst);
}

/// All writes, however many.
fn spec() -> WatchSpec {
    WatchSpec::new((&raw const WATCHED).addr(), 8, Access::Write).rate(u32::MAX)
}

fn open(process: &Process, specs: &[WatchSpec]) -> Outside {
    Outside::open(process.pid(), specs, OutsideBudget::default()).unwrap()
}

fn report(outside: &mut Outside) -> OutsideReport {
    outside.reports().remove(0)
}

/// Passes until `is_so`.
fn pass_until(outside: &mut Outside, mut is_so: impl FnMut(&Outside) -> bool) {
    let start = Instant::now();
    while !is_so(outside) {
        assert!(start.elapsed() < HANG);
        outside.pass();
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a test in its own child if debug registers are free, and the kernel watches threads.
#[track_caller]
fn with_registers(body: impl FnOnce()) {
    in_child(|| {
        let nowhere = Attr::breakpoint(Breakpoint::execute(0)).disabled().inherited_by_threads();
        match OpenEvent::open(&nowhere, Subject::ThisThread) {
            Ok(_) => body(),
            Err(error) => skip(format!("no breakpoints here: {error}")),
        }
    });
}

#[test]
fn each_write_of_each_thread_counts_once() {
    each_counts_once(&spec());
}

#[test]
fn each_call_of_each_thread_counts_once() {
    let called = write_once as *const () as usize;
    each_counts_once(&WatchSpec::new(called, 1, Access::Execute).rate(u32::MAX));
}

/// Threads from before the watch, threads that start while it is armed, from armed ones and from
/// others, and threads that start later.
#[track_caller]
fn each_counts_once(spec: &WatchSpec) {
    with_registers(|| {
        for _ in 0..short_or_long(2, 20) {
            let shared = Shared::new();
            let process = Process::start(|| churn(shared));
            shared.await_ready();
            let mut outside = open(&process, std::slice::from_ref(spec));
            shared.go.store(1, SeqCst);
            pass_until(&mut outside, |_| shared.done.load(SeqCst) > 0);
            let OutsideReport { watch, counts_only, .. } = report(&mut outside);
            assert_eq!(counts_only, None);
            assert_eq!(watch.hits, shared.writes.load(SeqCst));
            assert_eq!((watch.delivered, watch.lost), (watch.hits, 0));
            assert_eq!(watch.sites.iter().map(|site| site.hits).sum::<u64>(), watch.hits);
            shared.go.store(2, SeqCst);
            assert!(process.wait().success(), "it has no handler, and none was needed");
        }
    });
}

/// Writes by threads of all ages: 3 start others as fast as they can until told to go.
fn churn(shared: &Shared) {
    const MOST: u32 = 100;
    let write = |times| {
        write(times);
        shared.writes.fetch_add(times, SeqCst);
    };
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                for number in 0..MOST {
                    if shared.go.load(SeqCst) > 0 {
                        break;
                    }
                    scope.spawn(move || {
                        // Some end while the watch is armed.
                        if number % 4 > 0 {
                            shared.await_go();
                            write(20);
                        }
                    });
                    shared.ready.store(1, SeqCst);
                }
                shared.await_go();
                write(100);
                for _ in 0..10 {
                    scope.spawn(move || write(30));
                }
            });
        }
    });
    shared.done.store(1, SeqCst);
    eventually(|| shared.go.load(SeqCst) > 1);
}

#[test]
fn a_hit_has_instruction_callers_and_values() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.await_go();
            write_through_frames(77);
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        // The rings must not end with the thread that made them.
        let mut outside = thread::scope(|scope| scope.spawn(|| open(&process, &[spec()])).join().unwrap());
        assert!(outside.take_hits(0).is_empty());
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        let OutsideReport { watch, .. } = report(&mut outside);
        let site = &watch.sites[0];
        assert_eq!(site.ip, dormouse_test_stopped as *const () as usize);
        assert_eq!(site.stack[0], dormouse_test_returned as *const () as usize);
        assert_eq!((site.hits, site.old, site.new, site.tid), (1, Some(1), Some(77), process.pid()));
        assert_eq!((watch.state, watch.coverage.threads_armed), (WatchState::Armed, 1));
        let hits = outside.take_hits(0);
        assert_eq!((hits.len(), hits[0].ip, &hits[0].stack), (1, site.ip, &site.stack));
    });
}

#[test]
fn a_copied_stack_begins_at_the_hit() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.await_go();
            (0..3).for_each(write_through_frames);
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        let budget = OutsideBudget { stack_bytes: 8192, ..OutsideBudget::default() };
        let mut outside = Outside::open(process.pid(), &[spec()], budget).unwrap();
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        let site = report(&mut outside).watch.sites.remove(0);
        let stacks = outside.take_stacks(0);
        let [(ip, stack)] = stacks.as_slice() else { panic!("{} stacks of one place", stacks.len()) };
        assert_eq!((*ip, stack.registers[0], site.hits), (site.ip, site.ip as u64, 3));
        // The frame pointer of `outer`, then the return into it.
        let word = |n: usize| u64::from_ne_bytes(*stack.bytes[8 * n..].first_chunk().unwrap());
        assert_eq!(word(1), dormouse_test_returned as *const () as u64);
        assert_eq!(stack.registers[1], stack.registers[2], "frames have no locals");
        assert_eq!(word((word(0) - stack.registers[1]) as usize / 8 + 1), site.stack[1] as u64);
        assert!(outside.take_stacks(0).is_empty());
    });
}

#[test]
fn several_watches_are_told_apart() {
    static PAIR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.await_go();
            (0..5).for_each(|_| PAIR[1].store(1, SeqCst));
            write(3);
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        // 16 bytes are two lines.
        let pair = WatchSpec::new(PAIR.as_ptr().addr(), 16, Access::Write).named("pair");
        let mut outside = open(&process, &[pair, spec()]);
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        let counts: Vec<_> = outside
            .reports()
            .into_iter()
            .map(|report| (report.watch.name, report.watch.hits, report.watch.delivered))
            .collect();
        assert_eq!(
            counts,
            [("pair".to_owned(), 5, 5), (format!("{:#x}", (&raw const WATCHED).addr()), 3, 3)]
        );
    });
}

#[test]
fn a_stopped_process_can_be_watched() {
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            shared.ready.store(1, SeqCst);
            shared.await_go();
            write(9);
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        shared.await_ready();
        process.signal(Signal::STOP);
        let mut outside = open(&process, &[spec()]);
        shared.go.store(1, SeqCst);
        process.signal(Signal::CONT);
        eventually(|| shared.done.load(SeqCst) > 0);
        assert_eq!(report(&mut outside).watch.delivered, 9);
    });
}

#[test]
fn a_process_of_another_pid_namespace_is_watched() {
    with_registers(|| {
        // SAFETY: a flag; it is for processes that are forked from now on.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return skip("no namespaces here");
        }
        let shared = Shared::new();
        let process = Process::start(|| {
            assert_eq!(std::process::id(), 1);
            shared.await_go();
            thread::spawn(|| write(4)).join().unwrap();
            write(5);
            shared.done.store(1, SeqCst);
            eventually(|| shared.go.load(SeqCst) > 1);
        });
        let mut outside = open(&process, &[spec()]);
        outside.take_hits(0);
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        assert_eq!(report(&mut outside).watch.delivered, 9);
        let of_main = outside.take_hits(0).into_iter().filter(|hit| hit.tid == process.pid());
        assert_eq!(of_main.count(), 5, "by the numbers of the namespace of the test");
    });
}
