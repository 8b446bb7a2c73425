//! Runtimes that tell before each poll which task it is: lazy for ours, and nobody pays for the
//! others.
#![cfg(all(feature = "tokio", tokio_unstable))]

use crate::happenings;

use dormouse::Group;
use dormouse::events::announced_polls;
use dormouse::tokio::{JoinSet, in_place, poll_hooks, spawn};
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use happenings::{FOREIGN, PMU, alone, counted, happen, value};

const POLLS: u64 = 1000;

async fn polls(each: u64) {
    for _ in 0..POLLS {
        happen(each);
        yield_now().await;
    }
}

fn runtime(workers: usize) -> Runtime {
    poll_hooks(Builder::new_multi_thread().worker_threads(workers)).build().unwrap()
}

/// Runs `tasks` tasks of the group, and says how often counters were read meanwhile.
fn run(runtime: &Runtime, group: Group, tasks: usize) -> u64 {
    let before = PMU.reads();
    runtime.block_on(async {
        let mut all = JoinSet::new();
        group.scope(|| (0..tasks).for_each(|_| _ = all.spawn(polls(1))));
        while let Some(result) = all.join_next().await {
            result.unwrap();
        }
    });
    PMU.reads() - before
}

#[test]
fn between_two_polls_of_ours_nothing_is_read() {
    let _alone = alone();
    let (group, _counting) = counted("ours alone");
    let reads = run(&runtime(1), group, 2);
    assert_eq!(value(group), 2 * POLLS);
    // The first poll of each task is as on any runtime, and so is what comes after a sleep.
    assert!(reads < POLLS / 10, "{reads}");
}

#[test]
fn what_others_do_between_ours_is_nobodys() {
    let _alone = alone();
    let (group, _counting) = counted("ours among others");
    let runtime = runtime(2);
    let others: Vec<_> = (0..3).map(|_| runtime.spawn(polls(FOREIGN))).collect();
    run(&runtime, group, 3);
    others.into_iter().for_each(|other| runtime.block_on(other).unwrap());
    assert_eq!(value(group), 3 * POLLS);
}

/// The same holds if we spawn that task, in no group: what it does beside the group is charged to
/// no group.
#[test]
fn a_group_inside_anothers_task_pays_alone() {
    let _alone = alone();
    let (group, _counting) = counted("ours in others");
    let (inside, runtime) = (group, runtime(1));
    let other = move || async move {
        for _ in 0..POLLS {
            happen(FOREIGN);
            inside.instrument(async { happen(1) }).await;
            happen(FOREIGN);
            yield_now().await;
        }
    };
    let others = runtime.block_on(async move { [tokio::spawn(other()), spawn(other())] });
    run(&runtime, group, 1);
    others.into_iter().for_each(|other| runtime.block_on(other).unwrap());
    assert_eq!(value(group), 3 * POLLS);
}

/// It happens when it is dropped.
struct Happens(u64);

impl Drop for Happens {
    fn drop(&mut self) {
        happen(self.0);
    }
}

#[test]
fn tasks_dropped_with_the_runtime_pay_themselves() {
    let _alone = alone();
    let (group, _counting) = counted("dropped at the end");
    let runtime = runtime(1);
    let waits = |happens: Happens| async move {
        let _happens = happens;
        std::future::pending::<()>().await;
    };
    runtime.block_on(async {
        for _ in 0..100 {
            group.scope(|| spawn(waits(Happens(1))));
            tokio::spawn(waits(Happens(FOREIGN)));
        }
    });
    run(&runtime, group, 1);
    drop(runtime);
    assert_eq!(value(group), POLLS + 100);
}

#[test]
fn a_current_threads_root_future_pays_for_itself() {
    let _alone = alone();
    let (group, _counting) = counted("beside a root");
    let runtime = poll_hooks(&mut Builder::new_current_thread()).build().unwrap();
    runtime.block_on(async {
        let ours = group.scope(|| spawn(polls(1)));
        polls(FOREIGN).await;
        ours.await.unwrap();
    });
    assert_eq!(value(group), POLLS);
}

#[test]
fn polls_in_groups_are_told_beside_all() {
    let _alone = alone();
    let (group, _counting) = counted("a part of all");
    let current = || poll_hooks(&mut Builder::new_current_thread()).build().unwrap();
    for runtime in [runtime(2), current()] {
        let before = announced_polls();
        let others: Vec<_> = (0..2).map(|_| runtime.spawn(polls(FOREIGN))).collect();
        run(&runtime, group, 3);
        others.into_iter().for_each(|other| runtime.block_on(other).unwrap());
        // The root future is no task, in a group or not.
        runtime.block_on(group.instrument(polls(1)));
        // A poll is announced when it is over, which is after its task's join.
        let announced = || (announced_polls().all - before.all, announced_polls().inside - before.inside);
        dormouse_testkit::eventually(|| announced() == (5 * (POLLS + 1), 3 * (POLLS + 1)));
    }
}

#[test]
fn a_worker_that_blocks_charges_nothing() {
    let _alone = alone();
    let (group, _counting) = counted("blocks in place");
    let runtime = runtime(1);
    let ours = runtime.block_on(async {
        group.scope(|| {
            spawn(async {
                polls(1).await;
                tokio::task::block_in_place(in_place(|| happen(1)));
                polls(1).await;
            })
        })
    });
    runtime.block_on(ours).unwrap();
    let blocking = runtime.spawn_blocking(|| happen(FOREIGN));
    runtime.block_on(blocking).unwrap();
    assert_eq!(value(group), 2 * POLLS + 1);
}

/// More tasks than there are places to remember them.
#[test]
fn tasks_that_lose_their_places_still_count() {
    let _alone = alone();
    let (group, _counting) = counted("many");
    let runtime = runtime(2);
    runtime.block_on(async {
        let mut all = JoinSet::new();
        for _ in 0..10_000 {
            group.scope(|| {
                all.spawn(async {
                    happen(1);
                    yield_now().await;
                    happen(1);
                })
            });
        }
        while let Some(result) = all.join_next().await {
            result.unwrap();
        }
    });
    assert_eq!(value(group), 20_000);
}
