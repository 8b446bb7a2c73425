//! Budgets by the meters of threads and of groups.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dormouse_clock::{Budget, BudgetEnd, thread_cpu_ns, thread_cpu_ns_of};
use dormouse_lab::{ThreadGroup, ThreadMeter};
use dormouse_sys::process::identity::tid;
use dormouse_testkit::HANG;

/// Far beyond what any of these tests may take.
const NEVER: Duration = Duration::from_secs(1_000_000);
const MS: Duration = Duration::from_millis(1);

/// The kernel's clock of the calling thread.
fn own_ns() -> u64 {
    thread_cpu_ns_of(tid()).unwrap()
}

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
fn two_threads_use_one_budget_together() {
    let group = ThreadGroup::new();
    let joined = || group.join().map(std::mem::forget).unwrap();
    while_they_run(2, joined, |_| {
        for _ in 0..40 {
            let budget = group.budget(MS).unwrap();
            let target = budget.target_ns();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        let used = exceeded(budget.wait_timeout(HANG));
                        let read = group.cpu_ns();
                        assert!(used >= MS && read >= target, "{used:?} {read} of {target}");
                    });
                }
            });
        }
    });
    // Nobody is in it any more.
    assert_eq!(group.budget(MS).unwrap().wait_timeout(20 * MS), None);
}

#[test]
fn budgets_end_while_others_come_and_go() {
    let group = ThreadGroup::new();
    while_they_run(
        1,
        || group.join().map(std::mem::forget).unwrap(),
        |_| {
            let budgets: Vec<_> = (0..1000).map(|n| group.budget(MS * (n % 7 + 1)).unwrap()).collect();
            for round in 0..1000_u32 {
                let dropped = group.budget(if round % 2 == 0 { NEVER } else { MS / 10 }).unwrap();
                drop(dropped);
            }
            for budget in &budgets {
                exceeded(budget.wait_timeout(HANG));
                assert!(group.cpu_ns() >= budget.target_ns());
            }
        },
    );
}

#[test]
fn an_early_end_tells_the_time_used() {
    let (send, receive) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let runner = thread::spawn(move || {
        send.send((ThreadMeter::current(), tid())).unwrap();
        let _told = wait.recv();
        let end = own_ns() + 2_000_000;
        while own_ns() < end {}
    });
    let (own, tid) = receive.recv().unwrap();
    let by_number = Budget::new(ThreadMeter::of(tid).unwrap(), NEVER).unwrap();
    let own = Budget::new(own, NEVER).unwrap().on_exceeded(|_| panic!("it was not"));
    go.send(()).unwrap();
    let ended = own.wait_timeout(HANG);
    assert!(matches!(ended, Some(BudgetEnd::Ended { used }) if used >= 2 * MS), "{ended:?}");
    assert!(matches!(by_number.wait_timeout(HANG), Some(BudgetEnd::Ended { .. })));
    runner.join().unwrap();
}
