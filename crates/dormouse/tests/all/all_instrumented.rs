//! Runtimes that are declared all-instrumented: lazy threads, and charges as exact as everywhere.
#![cfg(feature = "tokio")]

use crate::happenings;

use std::sync::mpsc;
use std::thread::ThreadId;

use dormouse::tokio::{
    all_instrumented, block_on, in_place, spawn, spawn_blocking, thread_parks, thread_unparks,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use happenings::{FOREIGN, PMU, alone, counted, happen, value};

async fn polls(polls: u64, each: u64) {
    for _ in 0..polls {
        happen(each);
        yield_now().await;
    }
}

/// Workers that have parked once; around their sleep something happens that belongs to no task.
fn workers(builder: &mut Builder, n: usize) -> Runtime {
    let (parks, parked) = mpsc::channel();
    let runtime = builder
        .worker_threads(n)
        .on_thread_park(move || {
            thread_parks();
            happen(FOREIGN);
            let _ = parks.send(());
        })
        .on_thread_unpark(|| {
            happen(FOREIGN);
            thread_unparks();
        })
        .build()
        .unwrap();
    for _ in 0..n {
        parked.recv().unwrap();
    }
    runtime
}

fn one_thread() -> Runtime {
    all_instrumented(&mut Builder::new_current_thread()).build().unwrap()
}

#[test]
fn lazy_workers_charge_each_group_its_own() {
    let _alone = alone();
    let ((a, _a), (b, _b)) = (counted("workers a"), counted("workers b"));
    let runtime = workers(&mut Builder::new_multi_thread(), 3);
    runtime.block_on(async {
        let task = |n: u64| if n < 4 { a.instrument(polls(50, 1)) } else { b.instrument(polls(50, 100)) };
        let tasks: Vec<_> = (0..8).map(|n| tokio::spawn(task(n))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!((value(a), value(b)), (4 * 50, 4 * 5000));
    drop(runtime);
    assert_eq!((value(a), value(b)), (4 * 50, 4 * 5000), "nor is the end of the workers");
}

#[test]
fn a_worker_within_one_group_reads_nothing() {
    let _alone = alone();
    let (group, _counting) = counted("one worker");
    let runtime = workers(&mut Builder::new_multi_thread(), 1);
    let before = PMU.reads();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(group.instrument(polls(1000, 1)))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    // It may have parked between the first few tasks. Eager, it would have read at both ends of
    // 4000 polls.
    let reads = PMU.reads() - before;
    assert!(reads < 400, "{reads}");
    assert_eq!(value(group), 4000);
}

#[test]
fn a_current_thread_is_lazy_within_block_on() {
    let _alone = alone();
    let (group, _counting) = counted("current thread");
    let runtime = one_thread();
    let before = PMU.reads();
    block_on(&runtime, async {
        happen(FOREIGN);
        let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(group.instrument(polls(1000, 1)))).collect();
        for task in tasks {
            task.await.unwrap();
            happen(FOREIGN);
        }
    });
    let reads = PMU.reads() - before;
    assert!(reads < 100, "{reads}");
    happen(FOREIGN);
    group.scope(|| happen(1));
    happen(FOREIGN);
    assert_eq!(value(group), 4001);
    // tokio's own, whose end nobody sees: not lazy.
    runtime.block_on(async { tokio::spawn(group.instrument(polls(10, 1))).await.unwrap() });
    happen(FOREIGN);
    assert_eq!(value(group), 4011);
}

#[test]
fn threads_for_blocking_work_are_not_lazy() {
    let _alone = alone();
    let (group, _counting) = counted("blocking pool");
    let runtime = workers(Builder::new_multi_thread().max_blocking_threads(1), 1);
    runtime.block_on(async {
        for _ in 0..10 {
            group.scope(|| spawn_blocking(|| happen(1))).await.unwrap();
            // A library's, on the same thread.
            tokio::task::spawn_blocking(|| happen(FOREIGN)).await.unwrap();
        }
    });
    assert_eq!(value(group), 10);
}

#[test]
fn tasks_spawned_outside_any_group_are_nobodys() {
    struct Foreign;
    impl Drop for Foreign {
        fn drop(&mut self) {
            happen(FOREIGN);
        }
    }
    let _alone = alone();
    let (group, _counting) = counted("beside strangers");
    block_on(&one_thread(), async {
        let ours = tokio::spawn(group.instrument(polls(20, 1)));
        let stranger = spawn(polls(20, FOREIGN));
        let aborted = spawn(async {
            let _dropped = Foreign;
            std::future::pending::<()>().await;
        });
        yield_now().await;
        aborted.abort();
        ours.await.unwrap();
        stranger.await.unwrap();
        assert!(aborted.await.unwrap_err().is_cancelled());
    });
    assert_eq!(value(group), 20);
}

#[test]
fn an_undeclared_hog_is_charged_to_the_predecessor() {
    let _alone = alone();
    let (group, _counting) = counted("beside a hog");
    let beside_a_hog = async {
        let ours = tokio::spawn(group.instrument(polls(10, 1)));
        // Plain tokio, which the declaration has excluded.
        let hog = tokio::spawn(polls(10, FOREIGN));
        ours.await.unwrap();
        hog.await.unwrap();
    };
    block_on(&one_thread(), beside_a_hog);
    assert!(value(group) >= FOREIGN, "{}", value(group));
}

#[test]
fn a_thread_without_its_worker_is_not_lazy() {
    let _alone = alone();
    let (group, _counting) = counted("in place");
    let runtime = workers(Builder::new_multi_thread().max_blocking_threads(1), 1);
    runtime.block_on(async {
        let warm = tokio::spawn(group.instrument(polls(10, 1)));
        warm.await.unwrap();
        let task = tokio::spawn(group.instrument(async {
            let (ran, elsewhere) = mpsc::channel::<ThreadId>();
            // Queued on this worker: another thread runs it, and so has taken the worker over.
            spawn(async move { ran.send(std::thread::current().id()).unwrap() });
            let here = std::thread::current().id();
            tokio::task::block_in_place(in_place(|| {
                happen(100);
                assert_ne!(elsewhere.recv().unwrap(), here);
            }));
            happen(1000);
            here
        }));
        let left = task.await.unwrap();
        // There is one thread beside the worker now.
        let there = tokio::task::spawn_blocking(|| {
            happen(FOREIGN);
            std::thread::current().id()
        });
        assert_eq!(there.await.unwrap(), left);
    });
    assert_eq!(value(group), 1110);
}
