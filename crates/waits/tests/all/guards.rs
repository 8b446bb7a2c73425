//! Guards that are forgotten, or dropped when their task is another's already, charge nobody for
//! ever.

use crate::support;

use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use dormouse_testkit::in_child;
use dormouse_waits::{TaskEnd, TaskWaits, Waiting, Who, living, polled, read_group};
use support::number;

const PART: Duration = Duration::from_millis(20);

fn poll_ns(group: u32) -> u64 {
    read_group(group).unwrap_or_default().poll_ns
}

/// Nobody is in a poll of the group, though time goes on.
#[track_caller]
fn assert_nobody_is_charged(group: u32) {
    let before = poll_ns(group);
    thread::sleep(PART);
    assert_eq!(poll_ns(group), before);
}

#[test]
fn a_forgotten_guard_ends_with_its_thread() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let who = Who { task: number(), group: 50 };
        let forget = move || {
            let mut waits = TaskWaits::begun(who);
            std::mem::forget(waits.run(who));
            waits
        };
        let waits = thread::spawn(forget).join().unwrap();
        assert_eq!(polled().count(), 0);
        assert_nobody_is_charged(50);
        // Nor by the next thread that has the block.
        thread::spawn(|| drop(TaskWaits::begun(Who { task: number(), group: 51 }))).join().unwrap();
        assert_nobody_is_charged(50);
        drop(waits);
        assert_eq!(living().count(), 0);
    });
}

#[test]
fn a_forgotten_guard_ends_with_the_next_poll() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let who = Who { task: number(), group: 52 };
        let mut waits = TaskWaits::begun(who);
        std::mem::forget(waits.run(who));
        let mut cx = Context::from_waker(Waker::noop());
        waits.poll(who, &mut cx, |_| assert_eq!(polled().count(), 1));
        assert_eq!(polled().count(), 0);
        assert_nobody_is_charged(52);
        let first = waits.run(who);
        let second = waits.run(who);
        drop((first, second));
        assert_eq!(polled().count(), 0);
        assert_nobody_is_charged(52);
        waits.end(TaskEnd::NoRequest);
        let of = read_group(52).unwrap();
        assert_eq!(of, read_group(52).unwrap(), "no wait goes on");
    });
}

#[test]
fn another_task_in_the_slot_is_not_outside() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let [one, inner, other] = [53, 54, 55].map(|group| Who { task: number(), group });
        let mut outer = TaskWaits::begun(one);
        let around = outer.run(one);
        let mut inside = TaskWaits::begun(inner);
        let stretch = inside.run(inner);
        outer.end(TaskEnd::NoRequest);
        // The slot is free, and the next task has it.
        let mut waits = TaskWaits::begun(other);
        let (polls, is_polled) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let poll = thread::spawn(move || {
            waits.poll(other, &mut Context::from_waker(Waker::noop()), |_| {
                polls.send(()).unwrap();
                let _ended = ends.recv();
            });
        });
        is_polled.recv().unwrap();
        drop(stretch);
        let seen: Vec<_> = polled().map(|of| of.task).collect();
        assert_eq!(seen, [other.task], "by the thread that polls it alone");
        drop((end, around));
        poll.join().unwrap();
        assert_nobody_is_charged(55);
        drop(inside);
    });
}
