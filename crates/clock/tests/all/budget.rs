//! CPU budgets from outside: they end at the target and not before, for every kind of waiter, and
//! leave nothing behind.
#![allow(unsafe_code)]

use crate::meters;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use dormouse_clock::{
    Budget, BudgetEnd, CpuMeter, Error, process_cpu_ns, process_exact, sleep_until, thread_cpu_ns,
    thread_cpu_ns_of,
};
use dormouse_testkit::{HANG, eventually, fork, in_child};
use meters::{OfProcess, OfThread};

/// Far beyond what any of these tests may take.
const NEVER: Duration = Duration::from_secs(1_000_000);
const MS: Duration = Duration::from_millis(1);

fn exceeded(end: Option<BudgetEnd>) -> Duration {
    match end {
        Some(BudgetEnd::Exceeded { used }) => used,
        other => panic!("{other:?}"),
    }
}

/// Threads that do nothing but use CPU time while `body` runs; `of_each` is done on each first.
fn while_they_run<T: Send>(threads: usize, of_each: impl Fn() -> T + Sync, body: impl FnOnce(Vec<T>) + Send) {
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        for _ in 0..threads {
            let (send, of_each) = (send.clone(), &of_each);
            scope.spawn(move || {
                send.send(of_each()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    thread_cpu_ns();
                }
            });
        }
        let of_all = receive.iter().take(threads).collect();
        // Also when it panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(of_all)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn a_threads_budget_ends_by_its_clock() {
    while_they_run(1, OfThread::current, |runner| {
        for _ in 0..40 {
            let budget = Budget::new(runner[0], MS / 2).unwrap();
            let used = exceeded(budget.wait_timeout(HANG));
            let read = thread_cpu_ns_of(runner[0].0).unwrap();
            assert!(used >= MS / 2 && read >= budget.target_ns(), "{used:?} {read} {budget:?}");
        }
    });
}

#[test]
fn a_thread_reads_no_less_than_its_budget() {
    for _ in 0..40 {
        let over = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&over);
        let budget = Budget::new(OfThread::current(), MS / 2).unwrap();
        let target = budget.target_ns();
        // The release and the acquire make the timer's read happen before ours.
        let _budget = budget.on_exceeded(move |_| tell.store(true, Ordering::Release));
        while !over.load(Ordering::Acquire) {
            thread_cpu_ns();
        }
        assert!(thread_cpu_ns() >= target);
    }
}

#[test]
fn both_process_clocks_reach_its_budget() {
    while_they_run(
        1,
        || (),
        |_| {
            for _ in 0..20 {
                let budget = Budget::new(OfProcess, 2 * MS).unwrap();
                let used = exceeded(budget.wait_timeout(HANG));
                assert!(
                    process_cpu_ns() >= budget.target_ns() && process_exact().unwrap() >= budget.target_ns()
                );
                assert!(used >= 2 * MS);
            }
        },
    );
}

#[test]
fn sleeping_ends_when_a_read_is_enough() {
    while_they_run(1, OfThread::current, |runner| {
        for ms in [0, 1, 3] {
            let target = thread_cpu_ns_of(runner[0].0).unwrap() + ms * 1_000_000;
            let end = sleep_until(runner[0], target).unwrap();
            assert!(
                matches!(end, BudgetEnd::Exceeded { .. }) && thread_cpu_ns_of(runner[0].0).unwrap() >= target
            );
        }
    });
    assert!(matches!(sleep_until(OfProcess, 0), Ok(BudgetEnd::Exceeded { used }) if used < HANG));
}

/// A clock that a test sets, and that counts its readers.
#[derive(Default)]
struct Hand {
    ns: AtomicU64,
    reads: AtomicU32,
    ended: AtomicBool,
    panics: AtomicBool,
}

impl CpuMeter for &'static Hand {
    fn cpu_ns(&self) -> Option<u64> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "as the test wants it");
        let ns = self.ns.load(Ordering::Relaxed);
        (!self.ended.load(Ordering::Relaxed)).then_some(ns)
    }
}

impl Hand {
    fn new() -> &'static Self {
        Box::leak(Box::default())
    }

    fn advance(&self, by: Duration) {
        self.ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    fn wait_for_reads(&self, more: u32) {
        let until = self.reads.load(Ordering::Relaxed) + more;
        while self.reads.load(Ordering::Relaxed) < until {
            thread::yield_now();
        }
    }
}

#[test]
fn a_budget_ends_exactly_at_its_target() {
    let hand = Hand::new();
    let budget = Budget::new(hand, MS).unwrap();
    hand.advance(Duration::from_nanos(999_999));
    hand.wait_for_reads(3);
    assert_eq!((budget.end(), budget.wait_timeout(Duration::ZERO)), (None, None));
    hand.advance(Duration::from_nanos(1));
    assert_eq!(budget.wait(), BudgetEnd::Exceeded { used: MS });
    assert_eq!(budget.end(), Some(BudgetEnd::Exceeded { used: MS }));
}

#[test]
fn a_dropped_budget_is_looked_at_no_more() {
    let (hand, watched) = (Hand::new(), Hand::new());
    let called = Arc::new(AtomicBool::new(false));
    let call = Arc::clone(&called);
    let budget = Budget::new(hand, MS).unwrap().on_exceeded(move |_| call.store(true, Ordering::Relaxed));
    hand.wait_for_reads(2);
    drop(budget);
    // The function goes with it, unless the timer is just looking; it has looked at a later one
    // then.
    let _later = Budget::new(watched, MS).unwrap();
    watched.wait_for_reads(1);
    assert_eq!(Arc::strong_count(&called), 1);
    let reads = hand.reads.load(Ordering::Relaxed);
    hand.advance(2 * MS);
    watched.wait_for_reads(5);
    assert!(!called.load(Ordering::Relaxed));
    assert!(hand.reads.load(Ordering::Relaxed) <= reads + 1);
}

#[test]
fn a_function_is_called_once_even_if_late() {
    for late in [false, true] {
        let (send, receive) = mpsc::channel();
        let hand = Hand::new();
        let mut budget = Budget::new(hand, MS).unwrap();
        if late {
            hand.advance(3 * MS);
            budget.wait();
        }
        budget = budget.on_exceeded(move |used| send.send((used, thread::current().id())).unwrap());
        if !late {
            hand.advance(3 * MS);
        }
        let (used, on) = receive.recv().unwrap();
        assert_eq!(used, 3 * MS);
        assert_ne!(on, thread::current().id());
        // The sender is gone with the function.
        assert!(receive.recv().is_err());
        assert_eq!(budget.wait(), BudgetEnd::Exceeded { used: 3 * MS });
    }
}

#[test]
fn panics_harm_no_other_budget() {
    let (bad, broken, good) = (Hand::new(), Hand::new(), Hand::new());
    let panics = Budget::new(bad, MS).unwrap().on_exceeded(|_| panic!("as the test wants it"));
    let ends = Budget::new(broken, MS).unwrap();
    let holds = Budget::new(good, MS).unwrap();
    broken.panics.store(true, Ordering::Relaxed);
    bad.advance(MS);
    assert_eq!(ends.wait(), BudgetEnd::Ended { used: Duration::ZERO });
    panics.wait();
    good.advance(MS);
    assert_eq!(holds.wait(), BudgetEnd::Exceeded { used: MS });
}

#[test]
fn a_function_may_drop_and_make_budgets() {
    let hand = Hand::new();
    let (send, receive) = mpsc::channel();
    let place = Arc::new(Mutex::new(None));
    let mine = Arc::clone(&place);
    let first = Budget::new(hand, MS).unwrap();
    let mut place_now = place.lock().unwrap();
    *place_now = Some(first.on_exceeded(move |_| {
        let done = send.clone();
        let next = Budget::new(hand, MS).unwrap().on_exceeded(move |_| done.send(()).unwrap());
        // The first is dropped here.
        *mine.lock().unwrap() = Some(next);
        hand.advance(MS);
    }));
    drop(place_now);
    hand.advance(MS);
    receive.recv_timeout(HANG).unwrap();
}

#[test]
fn an_ended_meter_is_refused() {
    let hand = Hand::new();
    hand.ended.store(true, Ordering::Relaxed);
    assert!(matches!(Budget::new(hand, MS), Err(Error::MeterEnded)));
}

#[test]
fn a_thousand_budgets_end_at_their_targets() {
    let hand = Hand::new();
    let budgets: Vec<_> = (1..=1000).map(|n| Budget::new(hand, n * MS).unwrap()).collect();
    let ended = || budgets.iter().filter(|budget| budget.end().is_some()).count();
    for ms in [0, 1, 500, 999, 1000] {
        hand.ns.store(ms * 1_000_000, Ordering::Relaxed);
        for (n, budget) in (1..).zip(&budgets).take(ms as usize) {
            assert!(exceeded(budget.wait_timeout(HANG)) >= n * MS);
        }
        // One beyond the others that has been looked at twice since: they could have ended
        // meanwhile.
        hand.wait_for_reads(if ms < 1000 { 2 } else { 0 });
        assert_eq!(ended(), ms as usize);
    }
}

#[test]
fn an_idle_meter_costs_few_looks() {
    let (idle, pulse) = (Hand::new(), Hand::new());
    let _idle = Budget::new(idle, Duration::from_micros(100)).unwrap();
    idle.wait_for_reads(14);
    // By now it is looked at every 32 ms. The first reading may have come late, the next ones are
    // when they would be.
    let _pulse = Budget::new(pulse, Duration::from_secs(3600)).unwrap();
    let before = idle.reads.load(Ordering::Relaxed);
    let began = std::time::Instant::now();
    idle.wait_for_reads(6);
    let looks = idle.reads.load(Ordering::Relaxed) - before;
    assert!(began.elapsed() >= Duration::from_millis(16 * (u64::from(looks) - 2)));
    assert!(
        pulse.reads.load(Ordering::Relaxed) < looks,
        "one far from its target is looked at once a second"
    );
}

/// Drives one future, as an executor would.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread, AtomicU32);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(thread::current(), AtomicU32::new(0)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        while unpark.1.swap(0, Ordering::Relaxed) == 0 {
            thread::park();
        }
    }
}

#[test]
fn an_awaited_budget_wakes_its_task() {
    while_they_run(1, OfThread::current, |meter| {
        let budget = Budget::new(meter[0], MS).unwrap();
        let target = budget.target_ns();
        assert!(exceeded(Some(block_on(budget))) >= MS);
        assert!(meter[0].cpu_ns().unwrap() >= target);
        // One that is moved to another task wakes that one.
        let mut budget = Budget::new(meter[0], MS).unwrap();
        let mut first = Context::from_waker(Waker::noop());
        let _pending = pin!(&mut budget).poll(&mut first);
        exceeded(Some(block_on(budget)));

        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> =
                (1..=20).map(|n| tokio::spawn(Budget::new(meter[0], MS * n / 4).unwrap())).collect();
            for task in tasks {
                exceeded(Some(task.await.unwrap()));
            }
            let cancelled = tokio::spawn(Budget::new(Hand::new(), NEVER).unwrap());
            cancelled.abort();
            assert!(cancelled.await.unwrap_err().is_cancelled());
        });
    });
}

#[test]
fn a_fork_child_has_budgets_of_its_own() {
    in_child(|| {
        let called = Arc::new(AtomicU32::new(0));
        let call = Arc::clone(&called);
        let hand = Hand::new();
        let inherited = Budget::new(hand, MS).unwrap().on_exceeded(move |_| {
            call.fetch_add(1, Ordering::Relaxed);
        });
        let mut inherited = Some(inherited);
        let stop = Arc::new(AtomicBool::new(false));
        // Locks are taken and freed all the time while the forks happen.
        let others: Vec<_> = (0..2)
            .map(|_| {
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let _dropped = Budget::new(OfThread::current(), MS / 100);
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            let status = fork(|| {
                hand.advance(2 * MS);
                let inherited = inherited.take().unwrap();
                assert_eq!(inherited.wait(), BudgetEnd::Forked);
                assert_eq!(inherited.end(), Some(BudgetEnd::Forked));
                drop(inherited);
                let own = Hand::new();
                let budget = Budget::new(own, MS).unwrap();
                own.advance(MS);
                assert_eq!(budget.wait_timeout(HANG), Some(BudgetEnd::Exceeded { used: MS }));
                let burnt = Budget::new(OfThread::current(), MS).unwrap();
                while burnt.end().is_none() {}
                assert_eq!(called.load(Ordering::Relaxed), 0);
            });
            assert!(status.success(), "{status}");
        }
        stop.store(true, Ordering::Relaxed);
        for other in others {
            other.join().unwrap();
        }
        // The parent's is as it was.
        let inherited = inherited.unwrap();
        assert_eq!(inherited.end(), None);
        hand.advance(2 * MS);
        exceeded(inherited.wait_timeout(HANG));
    });
}

#[test]
fn the_timer_takes_no_signals() {
    in_child(|| {
        let barrier = &Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    Budget::until(Hand::new(), 0).unwrap().wait()
                });
            }
        });
        // Those that have just waited may be gone.
        let timers = || -> Vec<String> {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
            let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
            statuses.filter(|status| status.starts_with("Name:\tdormouse-budget\n")).collect()
        };
        // Of two that begin at once one leaves.
        eventually(|| timers().len() == 1);
        for status in timers() {
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
            let blocked = u64::from_str_radix(blocked, 16).unwrap();
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGPROF, libc::SIGALRM] {
                assert_ne!(blocked & 1 << (signal - 1), 0, "signal {signal}");
            }
        }
    });
}

#[test]
fn without_threads_a_budget_is_refused() {
    in_child(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place; the process is this test's own.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NPROC, &raw mut limit);
            let none = libc::rlimit { rlim_cur: 0, ..limit };
            assert_eq!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none), 0);
            // Root is held by no limit.
            if libc::geteuid() == 0 {
                assert_eq!(libc::setuid(65_534), 0);
            }
        }
        let refused = Budget::new(Hand::new(), MS).unwrap_err();
        assert!(matches!(refused, Error::Timer { .. }), "{refused:?}");
        assert!(refused.to_string().contains("ulimit -u"), "{refused}");
        // SAFETY: as above.
        unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) };
        let hand = Hand::new();
        let budget = Budget::new(hand, MS).unwrap();
        hand.advance(MS);
        assert_eq!(budget.wait(), BudgetEnd::Exceeded { used: MS });
    });
}
