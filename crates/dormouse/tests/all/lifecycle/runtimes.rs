//! Every kind of tokio runtime: the child's polls are charged to the group that was current at its
//! spawn.

use std::sync::mpsc;

use dormouse::tokio::{JoinSet, spawn, spawn_blocking, spawn_local, spawn_local_on, spawn_on};
use dormouse::{Group, inherit};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Runtime;
use tokio::task::{LocalSet, yield_now};

use super::work::{WORK, assert_cpu, assert_tasks, counting, current, current_thread, entries, workers};
use dormouse_testkit::spin_for;

/// Works in pieces, with an await after each; says in which group the last one was.
async fn work(pieces: u32) -> &'static str {
    for _ in 0..pieces {
        spin_for(WORK / 2);
        yield_now().await;
    }
    current()
}

/// A root future that works, a child and a grandchild that work, and a task that is in no group.
fn a_family(runtime: &Runtime, group: &str) {
    runtime.block_on(Group::new(group).instrument(async {
        let child = spawn(async {
            let grandchild = spawn(work(2));
            (work(2).await, grandchild.await.unwrap())
        });
        let stranger = tokio::spawn(work(2));
        assert_eq!(work(2).await, current());
        let (child, grandchild) = child.await.unwrap();
        assert_eq!((child, grandchild, stranger.await.unwrap()), (current(), current(), "none"));
    }));
    assert_tasks(group, 3, 0, 3);
    assert_cpu(group, WORK * 3);
}

#[test]
fn children_inherit_on_a_current_thread_runtime() {
    counting();
    a_family(&current_thread(), "family of one thread");
}

#[test]
fn children_inherit_on_a_multi_thread_runtime() {
    counting();
    a_family(&workers(3), "family of workers");
}

#[test]
fn local_tasks_inherit() {
    counting();
    let (group, set) = (Group::new("local"), LocalSet::new());
    let before = group.scope(|| spawn_local_on(work(1), &set));
    set.block_on(&current_thread(), async {
        assert_eq!(before.await.unwrap(), "local");
        // `run_until`'s own future is in no group; what it instruments is.
        assert_eq!(current(), "none");
        let inner = group.instrument(async { spawn_local(work(1)).await.unwrap() });
        assert_eq!(inner.await, "local");
        let of_runtime = group.scope(|| spawn_on(work(1), &tokio::runtime::Handle::current()));
        assert_eq!(of_runtime.await.unwrap(), "local");
    });
    // The scopes are tasks, too.
    assert_tasks("local", 6, 0, 6);
    assert_cpu("local", WORK * 3 / 2);
}

#[test]
fn a_join_sets_tasks_keep_their_spawners_group() {
    counting();
    let runtime = workers(2);
    let handle = runtime.handle().clone();
    runtime.block_on(async {
        let mut set = JoinSet::new();
        Group::new("set a").scope(|| {
            set.spawn(work(1));
            set.spawn_on(work(1), &handle);
        });
        Group::new("set b").scope(|| set.spawn_blocking(current));
        set.spawn(work(1));
        assert_eq!((set.len(), set.is_empty()), (4, false));
        let mut all = Vec::new();
        // Joined in a group that has nothing to do with it.
        let joined = Group::new("set joiner").instrument(async {
            all.push(set.join_next().await.unwrap().unwrap());
            all.extend(set.join_all().await);
            all
        });
        let mut all = joined.await;
        all.sort_unstable();
        assert_eq!(all, ["none", "set a", "set a", "set b"]);
    });
    assert_tasks("set a", 3, 0, 3);
    assert_tasks("set b", 2, 0, 2);
    assert_tasks("set joiner", 1, 0, 1);
    assert_cpu("set a", WORK);
}

#[test]
fn blocking_work_inherits() {
    counting();
    current_thread().block_on(async {
        assert_eq!(spawn_blocking(current).await.unwrap(), "none");
        assert_eq!(spawn(async { current() }).await.unwrap(), "none");
        let order = Group::new("blocking").instrument(async {
            spawn_blocking(|| {
                spin_for(WORK);
                // And on from there.
                dormouse::thread::spawn(current).join().unwrap()
            })
            .await
            .unwrap()
        });
        assert_eq!(order.await, "blocking");
    });
    assert_tasks("blocking", 3, 0, 3);
    assert_cpu("blocking", WORK);
}

#[test]
fn nested_futures_get_their_own_time() {
    counting();
    let (outer, inner) = (Group::new("selects"), Group::new("is selected"));
    current_thread().block_on(outer.instrument(async {
        // Inside the task, a future that has no group of its own is the task's.
        let mut unordered: FuturesUnordered<_> = (0..2).map(|_| inner.instrument(work(2))).collect();
        while unordered.next().await.is_some() {}
        tokio::join!(work(2), inner.instrument(work(2)));
        tokio::select! {
            biased;
            () = std::future::pending() => unreachable!(),
            group = inner.instrument(work(2)) => assert_eq!(group, "is selected"),
        }
        assert_eq!(current(), "selects");
    }));
    assert_cpu("selects", WORK);
    assert_cpu("is selected", WORK * 4);
    assert_tasks("selects", 1, 0, 1);
    assert_tasks("is selected", 4, 0, 4);
    assert_eq!(entries("is selected"), 4 * 3);
}

#[test]
fn an_inherited_future_pays_where_it_was_made() {
    counting();
    let (maker, waiter) = (Group::new("maker"), Group::new("waiter"));
    let future = maker.scope(|| inherit(work(2)));
    assert_eq!(future.group(), Some(maker));
    assert_eq!(current_thread().block_on(waiter.instrument(future)), "maker");
    assert_cpu("maker", WORK);
    assert_eq!((entries("waiter"), entries("maker")), (3, 4));
}

#[test]
fn block_in_place_stays_with_its_task() {
    counting();
    let (stays, moves) = (Group::new("blocks in place"), Group::new("moves away"));
    let runtime = workers(1);
    runtime.block_on(async {
        let task = spawn_on(
            stays.instrument(async move {
                spin_for(WORK);
                let (ran, moved) = mpsc::channel();
                // Queued on this worker, whose thread is busy here until another one has run it.
                tokio::spawn(moves.instrument(async move {
                    spin_for(WORK * 2);
                    ran.send(std::thread::current().id()).unwrap();
                }));
                let elsewhere = tokio::task::block_in_place(|| {
                    let elsewhere = moved.recv().unwrap();
                    spin_for(WORK);
                    elsewhere
                });
                assert_ne!(elsewhere, std::thread::current().id());
                assert_eq!(current(), "blocks in place");
                spin_for(WORK);
                yield_now().await;
                current()
            }),
            &tokio::runtime::Handle::current(),
        );
        assert_eq!(task.await.unwrap(), "blocks in place");
    });
    drop(runtime);
    assert_cpu("blocks in place", WORK * 3);
    assert_cpu("moves away", WORK * 2);
    assert_tasks("blocks in place", 1, 0, 1);
    assert_tasks("moves away", 1, 0, 1);
}

#[test]
fn an_inherited_future_adds_at_most_seven_words() {
    use std::mem::size_of_val;
    let (bare, inherited) = (work(1), inherit(work(1)));
    assert!(size_of_val(&inherited) <= size_of_val(&bare) + 56, "{}", size_of_val(&inherited));
}
