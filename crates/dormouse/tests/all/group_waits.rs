//! Groups are made, found and forked with while a unit that is read from outside does not answer. A
//! program of its own, because it forks.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use dormouse::events::{Mode, Pmu, Unit};
use dormouse::{Event, Group};
use dormouse_sys::thread::ThreadBlock;

/// Long enough for anything but a wait.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts nothing, and answers readers from outside only when it is released.
#[derive(Debug)]
struct Slow;

static SLOW: Slow = Slow;
static IS_HELD: Mutex<bool> = Mutex::new(false);
static CHANGED: Condvar = Condvar::new();
static ASKED: AtomicU32 = AtomicU32::new(0);
static READS: AtomicU64 = AtomicU64::new(0);

impl Pmu for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn read(&self, _: &[u32], values: &mut [u64]) {
        values.fill(0);
    }

    fn read_of(&self, _: &ThreadBlock, _: &[u32], values: &mut [u64]) -> bool {
        ASKED.fetch_add(1, Ordering::SeqCst);
        READS.fetch_add(1, Ordering::SeqCst);
        drop(CHANGED.wait_while(IS_HELD.lock().unwrap(), |held| *held).unwrap());
        values.fill(0);
        true
    }

    fn unit(&self, _: u32) -> Unit {
        Unit::Times
    }
}

const EVENTS: [Event; 3] =
    [Event::new("slow a", &SLOW, 0), Event::new("slow b", &SLOW, 1), Event::new("slow c", &SLOW, 2)];

/// The tests hold one unit.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `act` on a thread of its own, while `work` on another one waits for the unit.
fn while_held(work: impl FnOnce() + Send, act: impl FnOnce() + Send) {
    ASKED.store(0, Ordering::SeqCst);
    *IS_HELD.lock().unwrap() = true;
    std::thread::scope(|scope| {
        scope.spawn(work);
        while ASKED.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let (done, is_done) = channel();
        scope.spawn(move || {
            act();
            done.send(()).unwrap();
        });
        let waited = is_done.recv_timeout(PATIENCE);
        *IS_HELD.lock().unwrap() = false;
        CHANGED.notify_all();
        assert!(waited.is_ok(), "it waited for who reads a thread");
    });
}

/// Makes and finds groups, here and in a fork child.
fn use_groups(name: &str) {
    let known = Group::new("known");
    let new = Group::new(name);
    assert!(new != known && Group::all().contains(&new));
    new.scope(|| assert_eq!(Group::current(), Some(new)));
    assert_eq!((new.read().started, known.read().alive), (1, 1));
    let status = dormouse_testkit::fork(|| {
        let _counting = dormouse::start_counting(&[Event::PAGE_FAULTS]).unwrap();
        assert_eq!(Group::new("of the child").read().started, 0);
        assert_eq!(Group::new(name), new);
    });
    assert!(status.success(), "{status}");
}

/// A thread that runs one task of `known` until the end of `test`.
fn beside_a_task(test: impl FnOnce()) {
    let (entered, is_entered) = channel();
    let (stop, stopped) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _inside = Group::new("known").enter();
            entered.send(()).unwrap();
            let _ = stopped.recv();
        });
        is_entered.recv().unwrap();
        test();
        drop(stop);
    });
}

#[test]
fn groups_and_forks_wait_for_no_read() {
    let _alone = alone();
    beside_a_task(|| {
        let counting = Group::new("known").start_counting(&EVENTS[..1], Mode::GroupExact).unwrap();
        while_held(|| drop(Group::new("known").read_counts()), || use_groups("new beside a read"));
        drop(counting);
    });
}

#[test]
fn groups_and_forks_wait_for_no_change() {
    let _alone = alone();
    beside_a_task(|| {
        let _counting = Group::new("known").start_counting(&EVENTS[..1], Mode::GroupExact).unwrap();
        let change = || drop(Group::new("known").start_counting(&EVENTS[1..2], Mode::GroupExact).unwrap());
        while_held(change, || use_groups("new beside a change"));
    });
}

#[test]
fn reading_all_groups_reads_each_thread_once() {
    let _alone = alone();
    beside_a_task(|| {
        let _counting = dormouse::start_counting(&EVENTS).unwrap();
        let contexts: Vec<_> = (0..20).map(|_| dormouse::events::Context::new()).collect();
        let before = READS.load(Ordering::SeqCst);
        dormouse::events::Context::read_all(&contexts, true);
        assert_eq!(READS.load(Ordering::SeqCst) - before, 0, "none of them is of the thread's");
        let counts = Group::new("known").read_counts();
        assert_eq!((READS.load(Ordering::SeqCst) - before, counts.len()), (1, 3));
        Group::new("known").read();
        assert_eq!(READS.load(Ordering::SeqCst) - before, 1, "CPU time is all that it says");
    });
}
