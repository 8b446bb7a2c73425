//! Counts of groups and of their tasks: exact, by a PMU that counts what it is told to.

use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use dormouse::events::pmu::CountingPmu;
use dormouse::events::{Mode, Switched};
use dormouse::{Event, Group, Task, idle};
use futures_util::FutureExt;

static PMU: CountingPmu = CountingPmu::new();
const HAPPENINGS: Event = PMU.event("happenings", 0);

/// A change of what is counted ends every thread's stay, so tests that change it take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn happen(times: u64) {
    CountingPmu::happen(0, times);
}

/// Exclusive, and of groups entered inside.
fn counts(group: Group) -> (u64, u64) {
    let counts = group.read_counts();
    let count = counts.iter().find(|count| count.event == HAPPENINGS);
    count.map_or((0, 0), |count| (count.value, count.nested))
}

/// A future that is pending once in between.
async fn twice(first: u64, second: u64) {
    happen(first);
    let mut polled = false;
    std::future::poll_fn(|_| {
        if std::mem::replace(&mut polled, true) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    happen(second);
}

#[test]
fn groups_count_exclusively_and_know_nested_counts() {
    let _alone = alone();
    let [route, database, cache] = ["route", "database", "cache"].map(Group::new);
    let _counting =
        [route, database, cache].map(|g| g.start_counting(&[HAPPENINGS], Mode::GroupExact).unwrap());
    route.scope(|| {
        happen(1);
        database.scope(|| {
            happen(10);
            cache.scope(|| happen(100));
            // Once for each group around it, however often that is there.
            route.scope(|| happen(1000));
        });
        cache.scope(|| happen(10_000));
    });
    assert_eq!(counts(route), (1001, 10_110));
    assert_eq!(counts(database), (10, 1100));
    assert_eq!(counts(cache), (10_100, 0));
}

#[test]
fn each_task_knows_its_share_of_the_sum() {
    let _alone = alone();
    let group = Group::new("task-exact");
    let _counting = group.start_counting(&[HAPPENINGS], Mode::TaskExact).unwrap();
    let mut one = Box::pin(group.instrument(twice(1, 10)));
    let mut task = group.task();
    let others = task.shared_counts();
    let mut other = Box::pin(task.instrument(async {
        twice(100, 1000).await;
        // Its own, as of the beginning of this poll.
        others.read()
    }));
    assert!(one.as_mut().now_or_never().is_none());
    assert!(other.as_mut().now_or_never().is_none());
    assert_eq!(one.read_counts(), [(HAPPENINGS, 1)]);
    assert_eq!(other.read_counts(), [(HAPPENINGS, 100)]);
    let one = std::thread::spawn(move || {
        assert!(one.as_mut().now_or_never().is_some());
        one
    })
    .join()
    .unwrap();
    assert_eq!(one.read_counts(), [(HAPPENINGS, 11)], "on whichever thread");
    assert_eq!(other.as_mut().now_or_never().unwrap(), [(HAPPENINGS, 100)]);
    assert_eq!(other.read_counts(), [(HAPPENINGS, 1100)]);
    assert_eq!(counts(group).0, 1111);
}

#[test]
fn counts_of_a_task_outlive_it() {
    let _alone = alone();
    let group = Group::new("gone");
    let _counting = group.start_counting(&[HAPPENINGS], Mode::TaskExact).unwrap();
    let mut task = group.task();
    let counts = task.shared_counts();
    std::thread::spawn(move || task.run(|| happen(3))).join().unwrap();
    assert_eq!(counts.read(), [(HAPPENINGS, 3)]);
    assert_eq!(group.read().alive, 0);
}

#[test]
fn tasks_counted_as_a_group_know_no_share() {
    let _alone = alone();
    let group = Group::new("group-exact");
    let _counting = group.start_counting(&[HAPPENINGS], Mode::GroupExact).unwrap();
    let mut task = group.task();
    task.run(|| happen(3));
    assert_eq!(task.read_counts(), []);
    assert_eq!(counts(group).0, 3);
}

/// A fiber that works in stretches, which its scheduler sees and the fiber does not.
struct Fiber {
    task: Task,
    stretches: Vec<u64>,
}

/// Runs fibers in turn: each for one stretch, as long as they have any and `stretches` are not used
/// up. Others stay.
fn round_robin(fibers: &mut Vec<Fiber>, stretches: usize) -> Vec<Switched> {
    let mut switches = Vec::new();
    for _ in 0..stretches {
        if fibers.is_empty() {
            break;
        }
        let mut fiber = fibers.remove(0);
        switches.push(fiber.task.switch_to());
        assert_eq!(Group::current(), Some(fiber.task.group()));
        happen(fiber.stretches.remove(0));
        if !fiber.stretches.is_empty() {
            fibers.push(fiber);
        }
    }
    idle();
    assert_eq!(Group::current(), None);
    switches
}

#[test]
fn fibers_of_one_group_switch_without_a_read() {
    let _alone = alone();
    let (group, stranger) = (Group::new("fibers in turn"), Group::new("another fiber"));
    let _counting = [group, stranger].map(|g| g.start_counting(&[HAPPENINGS], Mode::GroupExact).unwrap());
    let fiber = |group: Group, stretches: &[u64]| Fiber { task: group.task(), stretches: stretches.to_vec() };
    let mut fibers = vec![fiber(group, &[1, 2]), fiber(group, &[10, 20, 30]), fiber(group, &[100, 200, 300])];
    let here = round_robin(&mut fibers, 4);
    assert_eq!(here, [Switched::Read, Switched::Kept, Switched::Kept, Switched::Kept]);
    happen(1_000_000);
    assert_eq!((counts(group).0, fibers.len()), (113, 2));
    let (send, receive) = mpsc::channel();
    let other = std::thread::spawn(move || {
        let mut fibers: Vec<Fiber> = receive.recv().unwrap();
        let switches = round_robin(&mut fibers, 2);
        happen(1_000_000);
        (fibers, switches)
    });
    fibers.insert(0, fiber(stranger, &[5]));
    assert_eq!(round_robin(&mut fibers, 1), [Switched::Read]);
    send.send(fibers).unwrap();
    let (mut fibers, there) = other.join().unwrap();
    assert_eq!(there, [Switched::Read, Switched::Kept]);
    assert_eq!(counts(group).0, 113 + 220);
    assert_eq!(round_robin(&mut fibers, 9), [Switched::Read, Switched::Kept]);
    assert_eq!((counts(group).0, counts(stranger).0), (663, 5));
    assert_eq!((group.read().alive, group.read().started, group.read().entries), (0, 3, 8));
}
