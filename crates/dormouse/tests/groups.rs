//! Groups: what is charged to whom, whatever becomes of the tasks.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::{Event, Group, GroupStat};

/// Uses CPU time of this thread, by the kernel's clock.
fn spin(time: Duration) {
    let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
    let now = || dormouse::clock::thread_cpu_ns_of(tid).unwrap();
    let end = now() + time.as_nanos() as u64;
    while now() < end {}
}

/// A group whose CPU time is counted.
fn group(name: &str) -> Group {
    static COUNT: Once = Once::new();
    COUNT.call_once(|| dormouse::count(&[Event::TASK_CLOCK]).unwrap().keep());
    Group::new(name)
}

const WORK: Duration = Duration::from_millis(20);

/// `cpu` is `work`, give or take what a noisy machine does inside an epoch of the clock.
#[track_caller]
fn assert_about(cpu: Duration, work: Duration) {
    let slack = Duration::from_millis(8);
    assert!(cpu + slack >= work && cpu <= work + slack, "{cpu:?} for {work:?} of work");
}

fn counts(stat: &GroupStat) -> (u64, u64, u64, u64) {
    (stat.entries, stat.alive, stat.started, stat.finished)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn polls_are_counted_and_their_time_charged() {
    let group = group("charged");
    runtime().block_on(group.instrument(async {
        for _ in 0..4 {
            spin(WORK / 4);
            tokio::task::yield_now().await;
        }
    }));
    let stat = group.stat();
    assert_about(stat.cpu, WORK);
    assert_eq!(counts(&stat), (5, 0, 1, 1));
}

#[test]
fn what_others_do_between_polls_is_not_charged() {
    let group = group("beside a hog");
    runtime().block_on(async {
        let hog = async {
            for _ in 0..4 {
                spin(WORK);
                tokio::task::yield_now().await;
            }
        };
        let light = group.instrument(async {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        });
        tokio::join!(hog, light);
    });
    assert!(group.stat().cpu < WORK / 2, "{:?}", group.stat());
}

#[test]
fn nested_groups_each_get_their_own_time() {
    let (outer, inner) = (group("outer"), group("inner"));
    runtime().block_on(outer.instrument(async {
        spin(WORK);
        inner
            .instrument(async {
                spin(WORK * 2);
                tokio::task::yield_now().await;
            })
            .await;
        let _scope = inner.enter();
        spin(WORK);
    }));
    assert_about(outer.stat().cpu, WORK);
    assert_about(inner.stat().cpu, WORK * 3);
}

#[test]
fn a_future_that_is_dropped_unpolled_is_started_and_finished_and_its_destructor_charged() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            spin(WORK);
        }
    }
    let group = group("unpolled");
    let slow = Slow;
    let future = group.instrument(async move {
        let _slow = slow;
        pending::<()>().await;
    });
    assert_eq!(counts(&group.stat()), (0, 1, 1, 0));
    drop(future);
    let stat = group.stat();
    assert_eq!(counts(&stat), (0, 0, 1, 1), "a destructor is no poll");
    assert_about(stat.cpu, WORK);
}

#[test]
fn a_panic_in_a_poll_ends_the_task_and_restores_what_ran_before() {
    let (outer, inner) = (group("around a panic"), group("panics"));
    let around = outer.enter();
    let runtime = runtime();
    let task = runtime.spawn(inner.instrument(async {
        spin(WORK);
        // Not `panic!`, whose hook may print a backtrace, at a cost.
        std::panic::resume_unwind(Box::new("of the test"));
    }));
    assert!(runtime.block_on(task).unwrap_err().is_panic());
    assert_about(inner.stat().cpu, WORK);
    assert_eq!((inner.stat().alive, inner.stat().finished), (0, 1));
    spin(WORK);
    drop(around);
    // The runtime's own work is outer's too, so only a lower bound.
    assert!(outer.stat().cpu + Duration::from_millis(8) >= WORK);
}

#[test]
fn a_task_that_moves_between_workers_is_charged_once_for_each_poll() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let group = group("moves");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                tokio::spawn(group.instrument(async {
                    for _ in 0..10 {
                        spin(Duration::from_millis(1));
                        tokio::task::yield_now().await;
                    }
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let stat = group.stat();
    assert_about(stat.cpu, Duration::from_millis(80));
    assert_eq!(counts(&stat), (8 * 11, 0, 8, 8));
}

#[test]
fn a_future_polled_on_two_threads_is_charged_on_both() {
    let group = group("two threads");
    let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(group.instrument(poll_fn(|_| {
        spin(WORK);
        Poll::Pending
    })));
    let poll = |future: &mut Pin<Box<dyn Future<Output = ()> + Send>>| {
        assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    };
    poll(&mut future);
    let future = std::thread::spawn(move || {
        poll(&mut future);
        future
    })
    .join()
    .unwrap();
    assert_about(group.stat().cpu, WORK * 2);
    drop(future);
    assert_eq!(group.stat().alive, 0);
}

#[test]
fn a_block_on_inside_a_poll_nests() {
    let (outer, inner) = (group("blocks"), group("is blocked on"));
    let mut task = pin!(outer.instrument(async {
        spin(WORK);
        let mut nested = pin!(inner.instrument(async { spin(WORK * 2) }));
        assert!(nested.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        spin(WORK);
    }));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_about(outer.stat().cpu, WORK * 2);
    assert_about(inner.stat().cpu, WORK * 2);
}

#[test]
fn a_thread_of_a_group_is_charged_while_it_runs() {
    let group = group("a thread");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = group
        .spawn_thread(move || {
            while !stopped.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
    assert_eq!(thread.thread().name(), Some("a thread"));
    let mut last = Duration::ZERO;
    // Ends when the running thread's time is seen, which is the point.
    while last < WORK {
        let now = group.stat().cpu;
        assert!(now >= last);
        last = now;
    }
    assert_eq!((group.stat().alive, group.stat().finished), (1, 0));
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!((group.stat().alive, group.stat().finished), (0, 1));
}
