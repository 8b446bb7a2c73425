//! Groups: what is charged to whom, whatever becomes of the tasks.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::{Event, Group, GroupStat};
use dormouse_testkit::{assert_about, spin_for};

/// A group whose CPU time is counted.
fn group(name: &str) -> Group {
    static COUNT: Once = Once::new();
    COUNT.call_once(|| dormouse::start_counting(&[Event::TASK_CLOCK]).unwrap().keep());
    Group::new(name)
}

const WORK: Duration = Duration::from_millis(20);

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
            spin_for(WORK / 4);
            tokio::task::yield_now().await;
        }
    }));
    let stat = group.read();
    assert_about(stat.cpu, WORK);
    assert_eq!(counts(&stat), (5, 0, 1, 1));
}

#[test]
fn polls_are_told_from_entries_of_scopes() {
    let group = group("polled and entered");
    let mut task = group.task();
    runtime().block_on(group.instrument(async {
        for _ in 0..3 {
            group.scope(|| ());
            task.run(|| ());
            tokio::task::yield_now().await;
            let _inside = group.enter();
        }
    }));
    std::thread::spawn(move || {
        let _inside = group.enter();
        group.scope(|| ());
    })
    .join()
    .unwrap();
    task.switch_to();
    dormouse::idle();
    let stat = group.read();
    assert_eq!((stat.polls, stat.entries), (4 + 1, 4 + 3 * 3 + 2 + 1));
}

#[test]
fn what_others_do_between_polls_is_not_charged() {
    let group = group("beside a hog");
    runtime().block_on(async {
        let hog = async {
            for _ in 0..4 {
                spin_for(WORK);
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
    assert!(group.read().cpu < WORK / 2, "{:?}", group.read());
}

#[test]
fn nested_groups_each_get_their_own_time() {
    let (outer, inner) = (group("outer"), group("inner"));
    runtime().block_on(outer.instrument(async {
        spin_for(WORK);
        inner
            .instrument(async {
                spin_for(WORK * 2);
                tokio::task::yield_now().await;
            })
            .await;
        let _scope = inner.enter();
        spin_for(WORK);
    }));
    assert_about(outer.read().cpu, WORK);
    assert_about(inner.read().cpu, WORK * 3);
}

#[test]
fn an_unpolled_future_starts_and_finishes() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            spin_for(WORK);
        }
    }
    let group = group("unpolled");
    let slow = Slow;
    let future = group.instrument(async move {
        let _slow = slow;
        pending::<()>().await;
    });
    assert_eq!(counts(&group.read()), (0, 1, 1, 0));
    drop(future);
    let stat = group.read();
    assert_eq!(counts(&stat), (0, 0, 1, 1), "a destructor is no poll");
    assert_about(stat.cpu, WORK);
}

#[test]
fn a_panic_in_a_poll_ends_the_task() {
    let (outer, inner) = (group("around a panic"), group("panics"));
    let around = outer.enter();
    let runtime = runtime();
    let task = runtime.spawn(inner.instrument(async {
        spin_for(WORK);
        // Not `panic!`, whose hook may print a backtrace, at a cost.
        std::panic::resume_unwind(Box::new("of the test"));
    }));
    assert!(runtime.block_on(task).unwrap_err().is_panic());
    assert_about(inner.read().cpu, WORK);
    assert_eq!((inner.read().alive, inner.read().finished), (0, 1));
    spin_for(WORK);
    drop(around);
    // The runtime's own work is outer's too, so only a lower bound.
    assert!(outer.read().cpu + Duration::from_millis(8) >= WORK);
}

#[test]
fn a_moving_task_is_charged_once_a_poll() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let group = group("moves");
    runtime.block_on(async {
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                tokio::spawn(group.instrument(async {
                    for _ in 0..10 {
                        spin_for(Duration::from_millis(1));
                        tokio::task::yield_now().await;
                    }
                }))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let stat = group.read();
    assert_about(stat.cpu, Duration::from_millis(80));
    assert_eq!(counts(&stat), (8 * 11, 0, 8, 8));
}

#[test]
fn a_future_is_charged_on_both_its_threads() {
    let group = group("two threads");
    let mut future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(group.instrument(poll_fn(|_| {
        spin_for(WORK);
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
    assert_about(group.read().cpu, WORK * 2);
    drop(future);
    assert_eq!(group.read().alive, 0);
}

#[test]
fn a_block_on_inside_a_poll_nests() {
    let (outer, inner) = (group("blocks"), group("is blocked on"));
    let mut task = pin!(outer.instrument(async {
        spin_for(WORK);
        let mut nested = pin!(inner.instrument(async { spin_for(WORK * 2) }));
        assert!(nested.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        spin_for(WORK);
    }));
    assert!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_about(outer.read().cpu, WORK * 2);
    assert_about(inner.read().cpu, WORK * 2);
}

#[test]
fn a_groups_thread_is_charged_while_it_runs() {
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
        let now = group.read().cpu;
        assert!(now >= last);
        last = now;
    }
    assert_eq!((group.read().alive, group.read().finished), (1, 0));
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert_eq!((group.read().alive, group.read().finished), (0, 1));
}

#[test]
fn a_future_polled_after_its_end_is_pending() {
    let (group, cx) = (Group::new("polled after its end"), &mut Context::from_waker(Waker::noop()));
    let mut future = Box::pin(group.instrument(async {}));
    assert!(future.as_mut().poll(cx).is_ready());
    assert!(future.as_mut().poll(cx).is_pending());
    drop(future);
    assert_eq!((group.read().requests, group.read().alive), (1, 0));
}

#[test]
fn a_task_is_over_at_its_end() {
    let group = Group::new("pinned");
    let mut context = Context::from_waker(Waker::noop());
    let mut work = pin!(group.instrument(async { 7 }));
    assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(7));
    // Its owner keeps it, as `select!` on a reference does.
    assert_eq!((group.read().alive, group.read().finished), (0, 1));
    assert!(work.as_mut().poll(&mut context).is_pending());
    let mut failed = pin!(group.instrument_result(async { Err::<(), _>("broken") }));
    assert!(failed.as_mut().poll(&mut context).is_ready());
    assert_eq!((group.read().alive, group.read().finished), (0, 2));
}
