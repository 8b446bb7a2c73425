//! However a task ends, it is counted as finished once, and its destructor is its group's.

use std::future::pending;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};

use dormouse::tokio::{JoinSet, spawn, spawn_blocking, spawn_local};
use dormouse::{Group, Instrumented};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::work::{
    Slow, WORK, assert_cpu, assert_tasks, counting, current, current_thread, entries, workers,
};
use dormouse_testkit::spin_for;

/// Not `panic!`, whose hook may print a backtrace, at a cost.
fn panic_quietly() -> ! {
    std::panic::resume_unwind(Box::new("of the test"))
}

/// Holds something slow to drop, and never ends.
async fn hold_on(begun: oneshot::Sender<()>) {
    let _slow = Slow(WORK);
    begun.send(()).unwrap();
    pending::<()>().await;
}

/// A task of `group` that has begun and will not end.
async fn begun(group: &str) -> tokio::task::JoinHandle<()> {
    let (send, begun) = oneshot::channel();
    let task = Group::new(group).scope(|| spawn(hold_on(send)));
    begun.await.unwrap();
    task
}

#[test]
fn a_panic_in_a_spawned_tasks_poll() {
    counting();
    let runtime = workers(2);
    let task = runtime.block_on(Group::new("panics on tokio").instrument(async {
        let task = spawn(async {
            let _slow = Slow(WORK);
            spin_for(WORK);
            panic_quietly();
        });
        task.await
    }));
    assert!(task.unwrap_err().is_panic());
    assert_tasks("panics on tokio", 2, 0, 2);
    assert_cpu("panics on tokio", WORK * 2);
}

#[test]
fn a_panic_that_unwinds_through_an_executor() {
    counting();
    let (outer, inner) = (Group::new("bare executor"), Group::new("panics bare"));
    let entered = outer.enter();
    let mut future = Box::pin(inner.instrument(async {
        // A guard that the unwinding drops, and one that nobody drops.
        let _guard = Group::new("panics deep").enter();
        std::mem::forget(Group::new("panics deep").enter());
        panic_quietly();
    }));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: std::task::Poll<()> = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }));
    assert!(caught.is_err());
    assert_eq!(current(), "bare executor");
    drop(future);
    drop(entered);
    assert_eq!(current(), "none");
    assert_tasks("panics bare", 1, 0, 1);
    assert_tasks("bare executor", 1, 0, 1);
    assert_tasks("panics deep", 2, 1, 1);
}

#[test]
fn a_panic_in_threads_and_blocking_work() {
    counting();
    let ended = Group::new("panics on threads").scope(|| {
        let thread = dormouse::thread::spawn(|| panic_quietly());
        (thread.join(), current_thread().block_on(async { spawn_blocking(|| panic_quietly()).await }))
    });
    let (thread, pool): (std::thread::Result<()>, Result<(), _>) = ended;
    assert!(thread.is_err() && pool.unwrap_err().is_panic());
    assert_tasks("panics on threads", 3, 0, 3);
}

#[test]
fn an_aborted_task_pays_for_its_destructor() {
    counting();
    workers(2).block_on(async {
        let task = begun("aborted").await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    });
    // The scope that it was spawned in is the other task.
    assert_tasks("aborted", 2, 0, 2);
    assert_cpu("aborted", WORK);
}

#[test]
fn a_future_dropped_on_another_thread() {
    counting();
    let group = Group::new("dropped elsewhere");
    let mut future: Pin<Box<Instrumented<_>>> = Box::pin(group.instrument(async {
        let _slow = Slow(WORK);
        pending::<()>().await;
    }));
    assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    std::thread::spawn(move || drop(future)).join().unwrap();
    assert_tasks("dropped elsewhere", 1, 0, 1);
    assert_eq!(entries("dropped elsewhere"), 1, "a destructor is no poll");
    assert_cpu("dropped elsewhere", WORK);
}

#[test]
fn a_runtimes_end_drops_tasks_in_their_group() {
    counting();
    for (runtime, group) in [(current_thread(), "shut down"), (workers(2), "shut down with workers")] {
        let _task = runtime.block_on(begun(group));
        assert_tasks(group, 2, 1, 1);
        drop(runtime);
        assert_tasks(group, 2, 0, 2);
        assert_cpu(group, WORK);
    }
}

#[test]
fn blocking_work_may_outlive_its_runtime() {
    counting();
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (end, ended) = mpsc::channel::<()>();
    let runtime = current_thread();
    // The handle is dropped at once: the work goes on without it.
    runtime.block_on(Group::new("outlives").instrument(async move {
        drop(spawn_blocking(move || {
            begin.send(()).unwrap();
            let _ = released.recv();
            spin_for(WORK);
            // Closes when the closure has been dropped, which is after this.
            let _ended = end;
        }));
    }));
    begun.recv().unwrap();
    runtime.shutdown_background();
    assert_tasks("outlives", 2, 1, 1);
    drop(release);
    assert!(ended.recv().is_err());
    // The task ends with the closure, an instant after what it held.
    while Group::new("outlives").read().alive > 0 {
        std::thread::yield_now();
    }
    assert_tasks("outlives", 2, 0, 2);
    assert_cpu("outlives", WORK);
}

#[test]
fn blocking_work_that_never_runs_is_finished() {
    counting();
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    runtime.block_on(async {
        // Occupies the only thread of the pool.
        let busy = tokio::task::spawn_blocking(move || {
            begin.send(()).unwrap();
            let _ = released.recv();
        });
        begun.recv().unwrap();
        let slow = Slow(WORK);
        let unrun = Group::new("never runs").scope(|| spawn_blocking(move || drop(slow)));
        assert_tasks("never runs", 2, 1, 1);
        unrun.abort();
        // The pool drops it when its turn comes.
        drop(release);
        busy.await.unwrap();
        assert!(unrun.await.unwrap_err().is_cancelled());
    });
    assert_tasks("never runs", 2, 0, 2);
    assert_eq!(entries("never runs"), 1, "that of the scope");
    assert_cpu("never runs", WORK);
}

#[test]
fn a_local_set_drops_tasks_in_their_group() {
    counting();
    let set = LocalSet::new();
    set.block_on(&current_thread(), async {
        let (send, begun) = oneshot::channel();
        Group::new("local, dropped").scope(|| spawn_local(hold_on(send)));
        begun.await.unwrap();
    });
    assert_tasks("local, dropped", 2, 1, 1);
    drop(set);
    assert_tasks("local, dropped", 2, 0, 2);
    assert_cpu("local, dropped", WORK);
}

#[test]
fn a_join_set_aborts_and_detaches() {
    counting();
    workers(2).block_on(async {
        let mut set = JoinSet::new();
        let group = Group::new("set aborted");
        let start = |set: &mut JoinSet<()>, n| {
            (0..n).for_each(|_| _ = group.scope(|| set.spawn(pending())));
        };
        start(&mut set, 3);
        set.abort_all();
        while let Some(ended) = set.join_next().await {
            assert!(ended.unwrap_err().is_cancelled());
        }
        assert_tasks("set aborted", 6, 0, 6);
        start(&mut set, 2);
        set.shutdown().await;
        assert!(set.is_empty() && set.try_join_next().is_none());
        assert_tasks("set aborted", 10, 0, 10);
        start(&mut set, 1);
        set.detach_all();
        drop(set);
        // Alive until its runtime ends.
        assert_tasks("set aborted", 12, 1, 11);
    });
    assert_tasks("set aborted", 12, 0, 12);
}

#[test]
fn a_group_needs_no_handle_for_its_tasks() {
    counting();
    let mut task = {
        let group = Group::new(&["held ", "by nobody"].concat());
        Box::pin(group.instrument(async { current() }))
    };
    let std::task::Poll::Ready(name) = task.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it awaits nothing")
    };
    assert_eq!(name, "held by nobody");
    drop(task);
    assert_tasks("held by nobody", 1, 0, 1);
}
