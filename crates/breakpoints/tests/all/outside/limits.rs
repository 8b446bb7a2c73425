//! Limits: descriptors, locked memory, rights, registers.

use std::sync::RwLock;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Instant;

use dormouse_breakpoints::{Error, Outside, OutsideBudget, OutsideReport, WatchState, free_registers};
use dormouse_sys::perf::{Access, Attr, Breakpoint, OpenEvent, Subject, WatchLen, online_cpus};
use dormouse_testkit::{eventually, skip};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use super::process::{Process, Shared};
use super::{open, pass_until, report, spec, with_registers, write};

/// A process with so many threads that each write ten times when told to.
fn many(shared: &'static Shared, threads: u32) -> Process {
    let process = Process::start(|| {
        let gate = RwLock::new(());
        let closed = gate.write().unwrap();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    shared.ready.fetch_add(1, SeqCst);
                    drop(gate.read());
                    write(10);
                });
            }
            shared.await_go();
            drop(closed);
        });
        thread::spawn(|| write(10)).join().unwrap();
        shared.done.store(1, SeqCst);
        eventually(|| shared.go.load(SeqCst) > 1);
    });
    eventually(|| shared.ready.load(SeqCst) == threads);
    process
}

#[test]
fn a_thousand_threads_are_recorded_or_counted() {
    with_registers(|| {
        let shared = Shared::new();
        let process = many(shared, 1000);
        let start = Instant::now();
        let mut outside = open(&process, &[spec()]);
        println!("1000 threads armed in {:?}", start.elapsed());
        assert_eq!(report(&mut outside).watch.coverage.threads_armed, 1001);
        shared.go.store(1, SeqCst);
        pass_until(&mut outside, |_| shared.done.load(SeqCst) > 0);
        let start = Instant::now();
        let OutsideReport { watch, counts_only, .. } = report(&mut outside);
        println!("read in {:?}, {counts_only:?}", start.elapsed());
        let recorded = if counts_only.is_none() { 10_010 } else { 0 };
        assert_eq!((watch.hits, watch.delivered), (10_010, recorded));
    });
}

fn counts_only(outside: &mut Outside, shared: &Shared, reason: &str) {
    shared.go.store(1, SeqCst);
    eventually(|| shared.done.load(SeqCst) > 0);
    let OutsideReport { watch, counts_only, .. } = report(outside);
    assert_eq!((watch.hits, watch.delivered, watch.lost, watch.sites.len()), (510, 0, 0, 0));
    let said = counts_only.unwrap();
    assert!(said.contains(reason), "{said}");
}

#[test]
fn few_descriptors_give_counts_and_the_reason() {
    with_registers(|| {
        let shared = Shared::new();
        let process = many(shared, 50);
        let few = Rlimit { current: Some(80), maximum: Some(80) };
        setrlimit(Resource::Nofile, few).unwrap();
        counts_only(&mut open(&process, &[spec()]), shared, "ulimit -n");
    });
}

#[test]
fn a_small_budget_gives_counts_or_nothing() {
    with_registers(|| {
        let shared = Shared::new();
        let process = many(shared, 50);
        let with = |descriptors| {
            let budget = OutsideBudget { descriptors, ..OutsideBudget::default() };
            Outside::open(process.pid(), &[spec()], budget)
        };
        let refused = with(50).unwrap_err().to_string();
        assert!(refused.contains("no descriptor is left"), "{refused}");
        let free = process.threads().into_iter().map(|tid| free_registers(tid).unwrap());
        let free: Vec<_> = free.collect();
        assert!(free.iter().all(|&of| of == free[0]), "no thread is left armed: {free:?}");
        counts_only(&mut with(51).unwrap(), shared, "ulimit -n");
    });
}

#[test]
fn hits_without_a_record_are_paid_for() {
    // The first are more than the ring has room for, and the second brings the record of the loss.
    // The third are fewer than were lost.
    const STORMS: [u64; 3] = [2_000, 1, 500];
    with_registers(|| {
        let shared = Shared::new();
        let process = Process::start(|| {
            // Into one ring, which has room for a thousand.
            let mut own = CpuSet::new();
            own.set(sched_getcpu());
            sched_setaffinity(None, &own).unwrap();
            for (nth, times) in (1..).zip(STORMS) {
                eventually(|| shared.go.load(SeqCst) == nth);
                write(times);
                shared.done.store(nth, SeqCst);
            }
            eventually(|| shared.go.load(SeqCst) > 3);
        });
        let budget = OutsideBudget { locked_bytes: online_cpus().len() << 16, ..OutsideBudget::default() };
        let mut outside = Outside::open(process.pid(), &[spec().rate(1_000)], budget).unwrap();
        for nth in 1..=3 {
            shared.go.store(nth, SeqCst);
            eventually(|| shared.done.load(SeqCst) == nth);
            let watch = report(&mut outside).watch;
            if nth > 1 {
                assert_eq!(watch.state, WatchState::Resting, "after storm {nth}: {watch:?}");
                assert_eq!((watch.coverage.threads_armed, watch.coverage.threads_alive), (0, 1));
            }
            eventually(|| report(&mut outside).watch.state == WatchState::Armed);
        }
        let last = report(&mut outside).watch;
        assert_eq!((last.hits, last.delivered + last.lost), (STORMS.iter().sum(), last.hits), "{last:?}");
        assert!(last.lost > STORMS[2], "{last:?}");
        shared.go.store(4, SeqCst);
    });
}

#[test]
fn a_taken_register_refuses_the_whole_process() {
    with_registers(|| {
        let shared = Shared::new();
        let process = many(shared, 5);
        let all = free_registers(process.pid()).unwrap();
        let last = process.threads().into_iter().max().unwrap();
        let take = || {
            // Of memory: some processors have others for code.
            let nowhere = Breakpoint::watch(0, WatchLen::One, Access::Write).unwrap();
            OpenEvent::open(&Attr::breakpoint(nowhere).disabled(), Subject::Thread(last)).unwrap()
        };
        let mut held: Vec<_> = (1..all).map(|_| take()).collect();
        let refused = Outside::open(process.pid(), &[spec()], OutsideBudget::default()).unwrap_err();
        match refused {
            Error::TooFewRegisters { tid, asked: 1, free: 1, leave_one: true, .. } => assert_eq!(tid, last),
            other => panic!("{other}"),
        }
        assert_eq!(free_registers(process.pid()).unwrap(), all);
        drop(open(&process, &[spec().all_slots()]));
        held.pop();
        drop(open(&process, &[spec()]));
    });
}

#[test]
fn a_request_that_needs_dormouse_inside_is_refused() {
    let own = std::process::id();
    for spec in [spec().changed(), spec().equals(1), spec().in_group(1), spec().flexible(), spec().event(1)] {
        let refused = Outside::open(own, &[spec], OutsideBudget::default()).unwrap_err();
        assert!(matches!(refused, Error::OnlyInside { .. }), "{refused}");
    }
    let twice = Outside::open(own, &[spec(), spec()], OutsideBudget::default()).unwrap_err();
    assert!(matches!(twice, Error::Unwatchable { .. }), "{twice}");
    let none = Outside::open(u32::MAX, &[spec()], OutsideBudget::default()).unwrap_err();
    assert!(matches!(none, Error::NoProcess { pid: u32::MAX }), "{none}");
}

/// A user without rights can watch one of their own processes, but not root's.
#[test]
fn nobody_watches_only_processes_of_its_own() {
    with_registers(|| {
        const NOBODY: libc::uid_t = 65534;
        let shared = Shared::new();
        let of_root = many(shared, 1);
        // SAFETY: numbers only.
        if unsafe { libc::setuid(NOBODY) } != 0 {
            return skip("not root");
        }
        let refused = Outside::open(of_root.pid(), &[spec()], OutsideBudget::default()).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("CAP_PERFMON"), "{message}");
        // The test may not end it any more.
        shared.go.store(2, SeqCst);
        std::mem::forget(of_root);

        // SAFETY: numbers only. A process that has changed its user hides its memory.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        let shared = Shared::new();
        let own = many(shared, 50);
        let opened = Outside::open(own.pid(), &[spec()], OutsideBudget::default());
        let mut outside = match opened {
            Err(error) => return skip(format!("nobody may watch here: {error}")),
            Ok(outside) => outside,
        };
        shared.go.store(1, SeqCst);
        eventually(|| shared.done.load(SeqCst) > 0);
        let watch = report(&mut outside).watch;
        assert_eq!((watch.hits, watch.delivered, watch.sites[0].new.is_some()), (510, 510, true));
    });
}
