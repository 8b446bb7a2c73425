//! Tasks that are run by hand: a small switcher of fibers, which suspends them on one thread and
//! resumes them on another.

use std::sync::mpsc;

use dormouse::{Group, Task};

use super::work::{Slow, WORK, assert_cpu, assert_tasks, counting, current, entries};
use dormouse_testkit::spin_for;

/// Stands for what has a stack of its own: runs to its next suspension, and says whether it has
/// more to do.
type Stretch = Box<dyn FnMut() -> bool + Send>;

struct Fiber {
    task: Task,
    stretch: Stretch,
}

/// Runs a fiber's next stretch here.
fn resume(mut fiber: Fiber) -> Option<Fiber> {
    let more = fiber.task.run(&mut fiber.stretch);
    if !more {
        fiber.task.run(|| drop(fiber.stretch));
        return None;
    }
    Some(fiber)
}

/// Runs fibers in turn, on one thread and then on the other, until all have ended.
fn run(fibers: Vec<Fiber>) {
    let (to_other, of_one) = mpsc::channel::<Vec<Fiber>>();
    let (to_one, of_other) = mpsc::channel();
    let other = std::thread::spawn(move || {
        for fibers in of_one {
            let left: Vec<_> = fibers.into_iter().filter_map(resume).collect();
            to_one.send(left).unwrap();
        }
    });
    let mut fibers = fibers;
    while !fibers.is_empty() {
        fibers = fibers.into_iter().filter_map(resume).collect();
        to_other.send(fibers).unwrap();
        fibers = of_other.recv().unwrap();
    }
    drop(to_other);
    other.join().unwrap();
}

/// A fiber that works in `stretches`, and in a nested group in each.
fn fiber(group: &'static str, nested: &'static str, stretches: usize) -> Fiber {
    let slow = Slow(WORK);
    let mut left = stretches;
    let mut last = None;
    let stretch = Box::new(move || {
        let _dropped_with_the_fiber = &slow;
        assert_eq!(current(), group);
        let here = std::thread::current().id();
        assert_ne!(last.replace(here), Some(here), "each stretch is on the other thread");
        spin_for(WORK);
        Group::new(nested).scope(|| spin_for(WORK / 2));
        left -= 1;
        left > 0
    });
    Fiber { task: Group::new(group).task(), stretch }
}

#[test]
fn a_moved_fiber_pays_for_its_own_stretches() {
    counting();
    run(vec![fiber("fiber a", "in fiber a", 3), fiber("fiber b", "in fiber b", 2)]);
    assert_eq!(current(), "none");
    for (group, nested, stretches) in [("fiber a", "in fiber a", 3), ("fiber b", "in fiber b", 2)] {
        assert_tasks(group, 1, 0, 1);
        assert_eq!(entries(group), u64::from(stretches) + 1, "the stretches, and the destructor");
        assert_cpu(group, WORK * (stretches + 1));
        assert_cpu(nested, WORK / 2 * stretches);
    }
}

#[test]
fn a_guard_left_behind_ends_with_its_stretch() {
    counting();
    let mut task = Group::new("careless").task();
    task.run(|| std::mem::forget(Group::new("left behind").enter()));
    assert_eq!(current(), "none");
    spin_for(WORK);
    assert_tasks("left behind", 1, 1, 0);
    assert!(Group::new("left behind").read().cpu < WORK / 2);
    drop(task);
    assert_tasks("careless", 1, 0, 1);
}
