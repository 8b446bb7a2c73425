//! The CPU time of single tasks: of those that spin, block, and poll others.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use dormouse_testkit::{assert_about, eventually, fork, in_child, spin_for, thread_cpu};
use dormouse_waits::{CpuTaking, TaskWaits, Waiting, Who};
use support::{living_task, number};

const PART: Duration = Duration::from_millis(30);

/// A task that is polled by hand.
struct Handled {
    who: Who,
    waits: TaskWaits,
}

impl Handled {
    fn new() -> Self {
        let who = Who { task: number(), group: 3 };
        Self { who, waits: TaskWaits::begun(who) }
    }

    fn poll(&mut self, f: impl FnOnce()) {
        self.waits.poll(self.who, &mut Context::from_waker(Waker::noop()), |_| f());
    }

    fn cpu(&self) -> Option<Duration> {
        living_task(self.who.task).cpu_ns.map(Duration::from_nanos)
    }
}

/// Uses at least that much CPU time, and returns how much: more, where a virtual processor stands
/// still.
fn work(least: Duration) -> Duration {
    let begin = thread_cpu();
    spin_for(least);
    thread_cpu().checked_sub(begin).unwrap()
}

#[test]
fn each_task_has_its_own() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let (mut outer, mut inner) = (Handled::new(), Handled::new());
        outer.poll(|| spin_for(PART));
        assert_eq!(outer.cpu(), None, "nobody asked");
        let cpu = CpuTaking::start();
        assert_eq!(outer.cpu(), Some(Duration::ZERO));
        let (mut outside, mut inside) = (Duration::ZERO, Duration::ZERO);
        outer.poll(|| {
            outside += work(PART);
            // In the poll, and not on a CPU.
            thread::sleep(PART);
            inner.poll(|| inside += work(2 * PART));
            outside += work(PART);
        });
        inner.poll(|| inside += work(PART));
        spin_for(PART);
        assert_about(outer.cpu().unwrap(), outside);
        assert_about(inner.cpu().unwrap(), inside);
        drop(cpu);
        assert_eq!(outer.cpu(), None);
        outer.poll(|| spin_for(PART));
        let _cpu = CpuTaking::start();
        assert_eq!(outer.cpu(), Some(Duration::ZERO), "it begins again");
    });
}

#[test]
fn a_poll_that_goes_on_counts() {
    in_child(|| {
        static ENDS: AtomicBool = AtomicBool::new(false);
        let _waiting = Waiting::start().unwrap();
        let spins = || {
            while !ENDS.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let (mut before, mut since) = (Handled::new(), Handled::new());
        let numbers = [before.who.task, since.who.task];
        let cpu = |at: usize| living_task(numbers[at]).cpu_ns;
        let is_polled = |at: usize| living_task(numbers[at]).state == dormouse_waits::TaskState::Polled;
        thread::scope(|scope| {
            scope.spawn(move || before.poll(spins));
            eventually(|| is_polled(0));
            let _cpu = CpuTaking::start();
            scope.spawn(move || since.poll(spins));
            eventually(|| is_polled(1) && cpu(1) > Some(PART.as_nanos() as u64));
            assert_eq!(cpu(0), None, "what it has used by then is not known");
            ENDS.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_child_takes_none() {
    in_child(|| {
        let _waiting = Waiting::start().unwrap();
        let cpu = CpuTaking::start();
        let mut task = Handled::new();
        task.poll(|| spin_for(PART));
        assert!(task.cpu().is_some());
        let ended = fork(|| {
            let _waiting = Waiting::start().unwrap();
            task.poll(|| ());
            assert_eq!(task.cpu(), None);
            drop(cpu);
            let _cpu = CpuTaking::start();
            let mut used = Duration::ZERO;
            task.poll(|| used = work(PART));
            assert_about(task.cpu().unwrap(), used);
        });
        assert!(ended.success());
    });
}

#[test]
fn a_leaf_is_polled_as_before() {
    let _waiting = Waiting::start().unwrap();
    let _cpu = CpuTaking::start();
    let mut task = Handled::new();
    let polled = task.waits.poll(task.who, &mut Context::from_waker(Waker::noop()), |_| Poll::Ready(7));
    assert_eq!(polled, Poll::Ready(7));
}
