//! Long polls are reported while they last, with the function that keeps the worker.

#![cfg(not(dormouse_fallback))]

use std::future::Future;
use std::hint::black_box;
use std::io::{Read, Write};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::profile::{Node, Profile};
use dormouse::waits::Waiting;
use dormouse::{Group, LongPoll, LongPolls, long_polls};
use dormouse_profile::NameFinder;
use dormouse_testkit::{Filter, eventually, fork, in_child, spin_for};

const THRESHOLD: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(100);

fn watch() -> LongPolls {
    let polls = long_polls(THRESHOLD).unwrap();
    // The first scan reads the tables of callers, which takes long in a build for tests.
    eventually(|| polls.between() > Duration::ZERO);
    polls
}

/// Polls a future of a group once.
fn poll_once<F: Future>(group: &str, future: F) -> Poll<F::Output> {
    let future = pin!(Group::new(group).instrument(future));
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Whether a function is on the stack of a report.
fn has(report: &LongPoll, function: &str) -> bool {
    let Some(stack) = &report.stack else { return false };
    let stacks = stack.frames.iter().map(|&address| Node { parent: 0, address }).collect();
    let profile = Profile { stacks, ..Profile::default() };
    let symbols = NameFinder::own().unwrap().symbols(&profile);
    stack.frames.iter().flat_map(|&at| symbols.get(at)).any(|frame| frame.function.contains(function))
}

/// The reports on a group's polls until one of them is over.
fn until_over(polls: &LongPolls, group: &str) -> Vec<LongPoll> {
    let mut all = Vec::new();
    eventually(|| {
        all.extend(polls.take().into_iter().filter(|poll| poll.group == Some(Group::new(group))));
        all.iter().any(|poll| poll.is_over)
    });
    all
}

/// Has a poll of the first of `groups` repeat something, which may enter the others, until the poll
/// is reported. Returns all reports until the one that it is over. However late the lookout comes,
/// the poll lasts until then.
fn reported(polls: &LongPolls, groups: &[&str], once: impl Fn()) -> Vec<LongPoll> {
    let mut all = Vec::new();
    let mut is_there = |is_it: fn(&LongPoll) -> bool| {
        all.extend(polls.take());
        let is_its = |poll: &LongPoll| poll.group.is_some_and(|group| groups.contains(&group.name()));
        all.iter().any(|poll| is_its(poll) && is_it(poll))
    };
    let repeat = async {
        eventually(|| {
            once();
            is_there(|_| true)
        });
    };
    let _ = poll_once(groups[0], repeat);
    eventually(|| is_there(|poll| poll.is_over));
    all
}

/// Has a poll of a group do something until `release` is called, and checks the reports on it.
fn is_reported(
    group: &str,
    function: &str,
    block: impl FnOnce() + Send + 'static,
    release: impl FnOnce(),
) -> Vec<LongPoll> {
    let polls = watch();
    let name = group.to_owned();
    let worker = thread::Builder::new().name("worker".into()).spawn(move || {
        let _ = poll_once(&name, async { block() });
    });
    let worker = worker.unwrap();
    let mut reports = Vec::new();
    // It doubles twice at least, and the function is seen meanwhile.
    eventually(|| {
        reports.extend(polls.take().into_iter().filter(|poll| poll.group == Some(Group::new(group))));
        reports.len() >= 3 && reports.iter().any(|report| has(report, function))
    });
    release();
    worker.join().unwrap();
    reports.extend(until_over(&polls, group));
    let (last, first) = (reports.last().unwrap(), &reports[0]);
    assert!(last.is_over && last.stack.is_none(), "{last:?}");
    assert!(reports.iter().all(|report| report.number == first.number && report.task == first.task));
    assert!(first.lasted >= THRESHOLD && last.lasted >= first.lasted, "{reports:?}");
    assert_eq!(first.thread, "worker");
    reports
}

/// Has a poll repeat something until its function is seen.
fn is_reported_again(group: &str, function: &str, once: impl Fn() + Send + 'static) -> Vec<LongPoll> {
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let repeat = move || {
        while !ends.load(Ordering::Relaxed) {
            once();
        }
    };
    is_reported(group, function, repeat, || over.store(true, Ordering::Relaxed))
}

#[inline(never)]
fn naps() {
    thread::sleep(LONG);
    black_box(());
}

#[inline(never)]
fn counts_sheep() {
    spin_for(LONG);
    black_box(());
}

#[inline(never)]
fn locks(lock: &Mutex<()>) {
    drop(lock.lock());
    black_box(());
}

#[inline(never)]
fn reads(mut from: impl Read) {
    let _ = from.read(&mut [0; 8]);
    black_box(());
}

#[test]
fn a_poll_that_sleeps_is_reported() {
    let reports = is_reported_again("sleeps", "naps", naps);
    assert!(reports.iter().all(|report| !report.is_exact), "nobody takes times");
}

#[test]
fn a_poll_that_computes_is_reported() {
    in_child(|| drop(is_reported_again("computes", "counts_sheep", counts_sheep)));
}

#[test]
fn polls_that_wait_for_others_are_reported() {
    let lock = Arc::new(Mutex::new(()));
    let (from, mut to) = std::os::unix::net::UnixStream::pair().unwrap();
    let held = lock.lock().unwrap();
    let theirs = Arc::clone(&lock);
    is_reported("locks", "locks", move || locks(&theirs), || drop(held));
    is_reported("reads", "reads", move || reads(from), || to.write_all(b"x").unwrap());
}

#[test]
fn reports_come_while_a_poll_lasts() {
    let polls = watch();
    let over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&over);
    let stuck = move || {
        while !ends.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let worker = thread::spawn(move || poll_once("stuck", async { stuck() }).is_ready());
    let mut reports = Vec::new();
    eventually(|| {
        reports.extend(polls.take().into_iter().filter(|poll| poll.group == Some(Group::new("stuck"))));
        reports.len() >= 4
    });
    assert!(reports.iter().all(|report| !report.is_over), "{reports:?}");
    let lengths = reports.windows(2).map(|two| (two[0].lasted, two[1].lasted));
    // Each when the threshold has doubled, until it is above what was reported.
    let due = |one| std::iter::successors(Some(THRESHOLD), |due| Some(*due * 2)).find(|due| *due > one);
    lengths.for_each(|(one, next)| assert!(next >= due(one).unwrap(), "{reports:?}"));
    over.store(true, Ordering::Relaxed);
    assert!(worker.join().unwrap());
    assert!(until_over(&polls, "stuck").last().unwrap().lasted >= reports[3].lasted);
}

#[test]
fn short_polls_in_a_row_are_none() {
    let polls = watch();
    let group = Group::new("short");
    let begun = Instant::now();
    let mut task = pin!(group.instrument(std::future::poll_fn(|_| {
        spin_for(Duration::from_micros(100));
        Poll::<()>::Pending
    })));
    let mut longest = Duration::ZERO;
    while begun.elapsed() < 10 * THRESHOLD {
        let before = Instant::now();
        assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        longest = longest.max(before.elapsed());
    }
    // One that is long is seen after them.
    let reports = reported(&polls, &["long"], naps);
    // A busy machine may stop one of the short ones for long, which is reported.
    let is_one = |poll: &LongPoll| poll.group != Some(group) || poll.lasted <= longest;
    assert!(reports.iter().all(is_one), "{longest:?}: {reports:?}");
}

#[test]
fn a_poll_of_many_short_scopes_is_one() {
    let polls = watch();
    let (outer, inner) = (Group::new("outer"), Group::new("inner"));
    let reports = reported(&polls, &["outer", "inner"], || {
        for _ in 0..100 {
            inner.scope(|| spin_for(Duration::from_micros(50)));
            let _ = poll_once("inner", async {});
        }
    });
    let ours = reports.iter().filter(|poll| [Some(outer), Some(inner)].contains(&poll.group));
    let numbers: std::collections::BTreeSet<u64> = ours.map(|poll| poll.number).collect();
    assert_eq!(numbers.len(), 1, "{reports:?}");
}

#[test]
fn work_by_hand_is_no_poll() {
    let polls = watch();
    let group = Group::new("by hand");
    group.scope(naps);
    group.task().run(naps);
    let entered = group.enter();
    naps();
    // A poll inside of it is one.
    let mut all = reported(&polls, &["in a scope"], naps);
    drop(entered);
    group.spawn_thread(naps).unwrap().join().unwrap();
    all.extend(reported(&polls, &["last"], naps));
    assert!(all.iter().all(|poll| poll.group != Some(group)), "{all:?}");
}

#[test]
fn lengths_are_exact_where_times_are_taken() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let polls = watch();
        let begun = Instant::now();
        let reports = reported(&polls, &["exact"], naps);
        let took = begun.elapsed();
        let exact: Vec<_> = reports.iter().filter(|report| report.is_exact).collect();
        assert!(!exact.is_empty(), "{reports:?}");
        assert!(
            exact.iter().all(|report| report.lasted >= THRESHOLD && report.lasted <= took),
            "{reports:?}"
        );
    });
}

#[test]
fn each_watch_has_its_threshold() {
    let (short, long) = (watch(), long_polls(Duration::from_secs(3600)).unwrap());
    reported(&short, &["two"], naps);
    assert!(long.take().is_empty());
    assert_eq!((short.lost(), long.lost()), (0, 0));
    for wrong in [Duration::ZERO, Duration::from_micros(999), Duration::from_secs(1 << 20)] {
        let error = long_polls(wrong).unwrap_err().to_string();
        assert!(error.contains("from 1 ms"), "{error}");
    }
}

#[test]
fn numbers_are_given_once() {
    in_child(|| {
        let polls = watch();
        assert!(!polls.is_over());
        let number = reported(&polls, &["before"], naps)[0].number;
        // The lookout ends, and begins again.
        drop(polls);
        let again = watch();
        assert!(reported(&again, &["again"], naps)[0].number > number);
        assert!(!again.is_over() && again.between() > Duration::ZERO);
    });
}

#[test]
fn threads_end_in_the_midst() {
    in_child(|| {
        let polls = watch();
        let ends = |n: u64| {
            // A thread that ends in a poll.
            let mut task = Box::pin(Group::new("ends").instrument(std::future::pending::<()>()));
            let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let _entered = Group::new("ends").enter();
            thread::sleep(Duration::from_millis(n % 13));
            std::mem::forget(task);
        };
        let end = Instant::now() + Duration::from_secs(1);
        thread::scope(|scope| {
            for n in 0..4 {
                scope.spawn(move || {
                    while Instant::now() < end {
                        let poll = move || _ = poll_once("ends", async move { ends(n * 5) });
                        thread::spawn(poll).join().unwrap();
                    }
                });
            }
        });
        reported(&polls, &["after"], naps);
    });
}

#[test]
fn a_child_has_no_reports_and_may_ask() {
    in_child(|| {
        let polls = watch();
        reported(&polls, &["parent"], || {
            // In the midst of a long poll.
            thread::sleep(2 * THRESHOLD);
            let status = fork(|| {
                assert!(polls.take().is_empty());
                let own = watch();
                thread::spawn(move || reported(&own, &["child"], naps)).join().unwrap();
            });
            assert!(status.success(), "{status:?}");
        });
    });
}

#[test]
fn a_filter_that_kills_spares_the_host() {
    in_child(|| {
        let (over, polls) = (Arc::new(AtomicBool::new(false)), watch());
        Filter::kill(&[libc::SYS_process_vm_readv, libc::SYS_tgkill, libc::SYS_ptrace])
            .install_on_all_threads();
        let reports = reported(&polls, &["filtered"], naps);
        assert!(reports.iter().any(|report| has(report, "naps")), "{reports:?}");
        let ends = Arc::clone(&over);
        let spins = thread::spawn(move || {
            let _ = poll_once("filtered and busy", async { while !ends.load(Ordering::Relaxed) {} });
        });
        eventually(|| polls.take().iter().any(|report| report.stack.is_some()));
        over.store(true, Ordering::Relaxed);
        spins.join().unwrap();
    });
}

#[test]
fn the_lookout_ends_with_the_last_watch() {
    in_child(|| {
        let threads = || {
            let names = std::fs::read_dir("/proc/self/task")
                .unwrap()
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("dormouse-look")).count()
        };
        assert_eq!(threads(), 0);
        let (one, other) = (watch(), watch());
        assert_eq!(threads(), 1);
        drop(one);
        reported(&other, &["still"], naps);
        drop(other);
        eventually(|| threads() == 0);
    });
}
