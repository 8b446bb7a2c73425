//! Runtimes that tell where each task was spawned: a task in no group is charged to its place.
#![cfg(all(feature = "tokio", tokio_unstable))]

use crate::happenings;

use dormouse::events::announced_polls;
use dormouse::tokio::group_spawns;
use dormouse::{Counting, Group};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, block_in_place, yield_now};

use happenings::{FOREIGN, PMU, alone, counted, happen, value};

const POLLS: u64 = 100;

async fn polls(each: u64) {
    for _ in 0..POLLS {
        happen(each);
        yield_now().await;
    }
}

fn runtime() -> Runtime {
    group_spawns(Builder::new_multi_thread().worker_threads(2)).build().unwrap()
}

fn name(line: u32) -> String {
    format!("spawn {}:{line}", file!())
}

/// The group of this file's line.
fn place(line: u32) -> (Group, Counting) {
    counted(&name(line))
}

#[test]
fn a_plain_spawn_is_charged_to_its_place() {
    let _alone = alone();
    let runtimes = [runtime(), group_spawns(&mut Builder::new_current_thread()).build().unwrap()];
    for (before, runtime) in (0..).step_by(2).zip(runtimes) {
        let (group, _counting) = place(line!() + 1);
        let spawn = || runtime.spawn(polls(1));
        let read = || (group.read().started, group.read().requests, value(group));
        let counts = read().2;
        let tasks: Vec<JoinHandle<()>> = (0..2).map(|_| spawn()).collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        assert_eq!(group.read().started, before + 2);
        // A task's end is announced after its join.
        dormouse_testkit::eventually(|| group.read().requests == before + 2);
        assert_eq!(read().2, counts + 2 * POLLS);
        assert!(group.read().polls >= 2 * POLLS);
        runtime.block_on(polls(FOREIGN));
        assert_eq!(read().2, counts + 2 * POLLS, "the root future is none of its tasks");
    }
}

#[test]
fn every_poll_is_in_a_group() {
    let _alone = alone();
    let (_group, _counting) = counted("beside all");
    for runtime in [runtime(), group_spawns(&mut Builder::new_current_thread()).build().unwrap()] {
        let before = announced_polls();
        let task = runtime.spawn(polls(1));
        runtime.block_on(task).unwrap();
        let announced = || (announced_polls().all - before.all, announced_polls().inside - before.inside);
        dormouse_testkit::eventually(|| announced() == (POLLS + 1, POLLS + 1));
    }
}

#[test]
fn a_task_with_a_group_keeps_it() {
    let _alone = alone();
    let runtime = runtime();
    let (own, _counting) = counted("own of a task");
    let (group, _counting_place) = place(line!() + 1);
    runtime.block_on(async { tokio::spawn(own.instrument(polls(1))).await.unwrap() });
    assert_eq!((value(own), value(group)), (POLLS, 0));
    let line = line!() + 1;
    let ours = runtime.block_on(async { own.scope(|| dormouse::tokio::spawn(polls(1))) });
    runtime.block_on(ours).unwrap();
    assert_eq!(value(own), 2 * POLLS);
    assert!(!Group::all().iter().any(|group| group.name() == name(line)));
    let (group, _counting_place) = place(line!() + 1);
    let stranger = runtime.block_on(async { dormouse::tokio::spawn(polls(1)) });
    runtime.block_on(stranger).unwrap();
    assert_eq!((value(own), value(group)), (2 * POLLS, POLLS), "in no group it is as tokio's");
}

#[test]
fn between_two_polls_of_ours_nothing_is_read() {
    let _alone = alone();
    let (own, _counting) = counted("lazy beside places");
    let runtime = group_spawns(Builder::new_multi_thread().worker_threads(1)).build().unwrap();
    let before = PMU.reads();
    let ours = runtime.block_on(async { own.scope(|| dormouse::tokio::spawn(polls(1))) });
    runtime.block_on(ours).unwrap();
    assert_eq!(value(own), POLLS);
    assert!(PMU.reads() - before < POLLS / 2, "{}", PMU.reads() - before);
}

#[test]
fn an_aborted_task_is_no_longer_alive() {
    let _alone = alone();
    let runtime = runtime();
    let group = Group::new(&name(line!() + 1));
    let spawn = || runtime.spawn(std::future::pending::<()>());
    let [one, other] = [spawn(), spawn()];
    assert_eq!(group.read().alive, 2);
    one.abort();
    assert!(runtime.block_on(one).is_err());
    dormouse_testkit::eventually(|| group.read().alive == 1);
    drop(runtime);
    assert_eq!((group.read().alive, group.read().requests), (0, 2));
    drop(other);
}

#[test]
fn a_nested_runtime_belongs_to_the_outer_poll() {
    let _alone = alone();
    let runtime = runtime();
    let (outer, _counting) = place(line!() + 1);
    let task = runtime.spawn(async {
        happen(1);
        block_in_place(|| {
            let inner = group_spawns(&mut Builder::new_current_thread()).build().unwrap();
            inner.block_on(async { tokio::spawn(polls(1)).await.unwrap() });
        });
        happen(1);
    });
    runtime.block_on(task).unwrap();
    let after = runtime.spawn_blocking(|| (happen(FOREIGN), Group::current()));
    assert_eq!(runtime.block_on(after).unwrap().1, None);
    assert_eq!(value(outer), POLLS + 2);
}
