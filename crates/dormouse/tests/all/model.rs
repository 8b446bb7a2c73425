//! Random programs of tasks against an oracle: what is nested, moved, panics, is dropped or left
//! behind is counted once and charged once.
//!
//! A program runs one operation at a time, each on one of three threads, while another thread reads
//! the groups all the time. The oracle keeps its own account in plain numbers: it follows which
//! group ought to be current, and measures each piece of work by the kernel's clock of the thread,
//! from inside.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dormouse::{Group, inherit, inherit_fn};
use dormouse_testkit::{spin_for, thread_cpu};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const GROUPS: usize = 3;
const THREADS: usize = 3;

/// An act inside a task, or outside any.
#[derive(Debug, Clone)]
enum Act {
    /// Works for this many units.
    Work(u32),
    /// Does this in a scope of that group.
    Nest(usize, Vec<Act>),
    /// Enters a group with a guard that is never dropped.
    LeaveBehind(usize),
    /// Makes a task that inherits.
    Child,
    Panic,
}

/// One operation of a program. Tasks are chosen among those there are.
#[derive(Debug, Clone)]
enum Operation {
    Spawn(usize),
    Poll {
        task: prop::sample::Index,
        thread: usize,
        acts: Vec<Act>,
        end: bool,
    },
    Drop {
        task: prop::sample::Index,
        thread: usize,
    },
    /// Outside any task.
    Plain {
        thread: usize,
        acts: Vec<Act>,
    },
    /// A closure made in a group, and run on a thread or only dropped there.
    Closure {
        group: usize,
        thread: usize,
        acts: Option<Vec<Act>>,
    },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let leaf = prop_oneof![
        6 => (1..4_u32).prop_map(Act::Work),
        1 => (0..GROUPS).prop_map(Act::LeaveBehind),
        1 => Just(Act::Child),
        1 => Just(Act::Panic),
    ];
    let act = leaf.prop_recursive(3, 12, 4, |act| {
        (0..GROUPS, prop::collection::vec(act, 0..4)).prop_map(|(group, acts)| Act::Nest(group, acts))
    });
    prop::collection::vec(act, 0..4)
}

fn program(length: usize) -> impl Strategy<Value = Vec<Operation>> {
    let task = any::<prop::sample::Index>;
    let operation = prop_oneof![
        2 => (0..GROUPS).prop_map(Operation::Spawn),
        5 => (task(), 0..THREADS, acts(), prop::bool::weighted(0.2))
            .prop_map(|(task, thread, acts, end)| Operation::Poll { task, thread, acts, end }),
        1 => (task(), 0..THREADS).prop_map(|(task, thread)| Operation::Drop { task, thread }),
        2 => (0..THREADS, acts()).prop_map(|(thread, acts)| Operation::Plain { thread, acts }),
        2 => (0..GROUPS, 0..THREADS, prop::option::weighted(0.8, acts()))
            .prop_map(|(group, thread, acts)| Operation::Closure { group, thread, acts }),
    ];
    prop::collection::vec(operation, 1..length)
}

/// The expected figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Account {
    started: u64,
    finished: u64,
    entries: u64,
    cpu: Duration,
}

struct World {
    groups: [Group; GROUPS],
    /// How long a unit of work is.
    unit: Duration,
    accounts: Mutex<[Account; GROUPS]>,
    /// Work that was done outside any group.
    outside: Mutex<Duration>,
    /// Futures that tasks have made, with the group that they were made in.
    children: Mutex<Vec<Task>>,
}

/// A future that does as it is told when it is polled, and works when it is dropped.
struct Scripted {
    world: Arc<World>,
    group: Option<usize>,
    next: Arc<Mutex<(Vec<Act>, bool)>>,
}

#[derive(Clone)]
struct Orders(Arc<Mutex<(Vec<Act>, bool)>>);

struct Task {
    group: Option<usize>,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    orders: Orders,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn new(name: &str, unit: Duration) -> Arc<Self> {
        Arc::new(Self {
            groups: std::array::from_fn(|n| Group::new(&format!("{name} {n}"))),
            unit,
            accounts: Mutex::default(),
            outside: Mutex::default(),
            children: Mutex::default(),
        })
    }

    /// Each program's counts are judged by themselves, so that a bad one can be made smaller; its
    /// CPU time is added to what went before.
    fn begin(&self) {
        for (group, account) in self.groups.iter().zip(lock(&self.accounts).iter_mut()) {
            let stat = group.read();
            (account.started, account.finished) = (stat.started, stat.finished);
            account.entries = stat.entries;
        }
    }

    fn account(&self, group: Option<usize>, change: impl FnOnce(&mut Account)) {
        if let Some(group) = group {
            change(&mut lock(&self.accounts)[group]);
        }
    }

    fn work(&self, group: Option<usize>, units: u32) {
        if self.unit.is_zero() {
            return;
        }
        let begin = thread_cpu();
        spin_for(self.unit * units);
        let worked = thread_cpu().saturating_sub(begin);
        match group {
            Some(_) => self.account(group, |account| account.cpu += worked),
            None => *lock(&self.outside) += worked,
        }
    }

    fn act(self: &Arc<Self>, acts: Vec<Act>, mut current: Option<usize>) {
        for act in acts {
            assert_eq!(Group::current(), current.map(|group| self.groups[group]));
            match act {
                Act::Work(units) => self.work(current, units),
                Act::Nest(group, acts) => {
                    let _task = self.began(Some(group));
                    self.account(Some(group), |account| account.entries += 1);
                    self.groups[group].scope(|| self.act(acts, Some(group)));
                }
                // Outside a task it would never end.
                Act::LeaveBehind(_) if current.is_none() => {}
                Act::LeaveBehind(group) => {
                    std::mem::forget(self.groups[group].enter());
                    self.account(Some(group), |account| {
                        account.started += 1;
                        account.entries += 1;
                    });
                    current = Some(group);
                }
                Act::Child => {
                    let (told, orders) = self.told(current);
                    self.account(current, |account| account.started += 1);
                    let future = Box::pin(inherit(told));
                    lock(&self.children).push(Task { group: current, future, orders });
                }
                Act::Panic => resume_unwind(Box::new(Planned)),
            }
        }
    }

    /// Counts a task's beginning, and its end when the guard goes.
    fn began(self: &Arc<Self>, group: Option<usize>) -> impl Drop + use<> {
        struct End(Arc<World>, Option<usize>);
        impl Drop for End {
            fn drop(&mut self) {
                self.0.account(self.1, |account| account.finished += 1);
            }
        }
        self.account(group, |account| account.started += 1);
        End(Arc::clone(self), group)
    }

    fn told(self: &Arc<Self>, group: Option<usize>) -> (Scripted, Orders) {
        let next = Arc::default();
        (Scripted { world: Arc::clone(self), group, next: Arc::clone(&next) }, Orders(next))
    }
}

impl Future for Scripted {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let (acts, end) = std::mem::take(&mut *lock(&self.next));
        self.world.account(self.group, |account| account.entries += 1);
        self.world.act(acts, self.group);
        if end { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        // Its own group, but for a careless guard in its last poll, which ends with that.
        if Group::current() == self.group.map(|group| self.world.groups[group]) {
            self.world.work(self.group, 1);
        }
    }
}

/// The payload of [`Act::Panic`].
struct Planned;

/// `None` if it panicked as planned.
fn caught<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(panic) if panic.is::<Planned>() => None,
        Err(panic) => resume_unwind(panic),
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one thing at a time.
struct Lane(mpsc::SyncSender<(Job, mpsc::SyncSender<Duration>)>);

impl Lane {
    fn start() -> Self {
        let (send, jobs) = mpsc::sync_channel::<(Job, mpsc::SyncSender<Duration>)>(0);
        std::thread::spawn(move || {
            for (job, done) in jobs {
                let begin = thread_cpu();
                // As a runtime does.
                caught(job);
                done.send(thread_cpu().saturating_sub(begin)).unwrap();
            }
        });
        Self(send)
    }

    /// CPU time that the thread used for it.
    fn run(&self, job: impl FnOnce() + Send + 'static) -> Duration {
        let (send, done) = mpsc::sync_channel(1);
        self.0.send((Box::new(job), send)).unwrap();
        done.recv().unwrap()
    }
}

/// Runs a program; gives the CPU time of all its operations.
fn run(world: &Arc<World>, lanes: &[Lane], program: Vec<Operation>) -> Duration {
    let mut tasks: Vec<Task> = Vec::new();
    let mut used = Duration::ZERO;
    for operation in program {
        let finish = |task: &Task| world.account(task.group, |account| account.finished += 1);
        used += match operation {
            Operation::Spawn(group) => {
                let (told, orders) = world.told(Some(group));
                world.account(Some(group), |account| account.started += 1);
                let future = Box::pin(world.groups[group].instrument(told));
                tasks.push(Task { group: Some(group), future, orders });
                Duration::ZERO
            }
            Operation::Poll { .. } | Operation::Drop { .. } if tasks.is_empty() => Duration::ZERO,
            Operation::Poll { task, thread, acts, end } => {
                let mut task = tasks.swap_remove(task.index(tasks.len()));
                *lock(&task.orders.0) = (acts, end);
                let (send, back) = mpsc::channel();
                let used = lanes[thread].run(move || {
                    let mut context = Context::from_waker(Waker::noop());
                    let polled = caught(|| task.future.as_mut().poll(&mut context));
                    send.send((task, matches!(polled, Some(Poll::Pending)))).unwrap();
                });
                let (task, pending) = back.recv().unwrap();
                if pending {
                    tasks.push(task);
                    used
                } else {
                    finish(&task);
                    used + lanes[thread].run(move || drop(task))
                }
            }
            Operation::Drop { task, thread } => {
                let task = tasks.swap_remove(task.index(tasks.len()));
                finish(&task);
                lanes[thread].run(move || drop(task))
            }
            Operation::Plain { thread, acts } => {
                let world = Arc::clone(world);
                lanes[thread].run(move || world.act(acts, None))
            }
            Operation::Closure { group, thread, acts } => {
                let unrun = acts.is_none();
                let inner = Arc::clone(world);
                // The scope that it is made in is a task, too.
                let _scope = world.began(Some(group));
                let _closure = world.began(Some(group));
                world.account(Some(group), |account| account.entries += 1 + u64::from(!unrun));
                let closure = world.groups[group]
                    .scope(|| inherit_fn(move || inner.act(acts.unwrap_or_default(), Some(group))));
                lanes[thread].run(move || if unrun { drop(closure) } else { closure() })
            }
        };
        tasks.append(&mut lock(&world.children));
    }
    for task in tasks {
        world.account(task.group, |account| account.finished += 1);
        used += lanes[0].run(move || drop(task));
    }
    used
}

/// Reads all groups until told to stop: nothing ever goes back, and no task ends before it begins.
fn read(groups: [Group; GROUPS], stop: &AtomicBool) {
    let mut last = groups.map(Group::read);
    while !stop.load(Ordering::Relaxed) {
        let now = groups.map(Group::read);
        for (now, last) in now.iter().zip(&last) {
            assert!(now.cpu >= last.cpu && now.entries >= last.entries, "{now:?} after {last:?}");
            assert!(now.started >= last.started && now.finished >= last.finished, "{now:?} after {last:?}");
            assert!(now.alive <= now.started, "{now:?}");
        }
        last = now;
        std::thread::yield_now();
    }
}

/// Runs random programs of at most that length while somebody reads, and gives what `check` is to
/// look at after each.
fn programs(
    name: &str,
    (cases, length): (u32, usize),
    unit: Duration,
    mut check: impl FnMut(&World, Duration) -> Result<(), TestCaseError>,
) {
    let world = World::new(name, unit);
    let lanes: Vec<_> = (0..THREADS).map(|_| Lane::start()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(world.groups, &stop));
        let check = std::cell::RefCell::new(&mut check);
        let max_shrink_iters = if unit.is_zero() { 1000 } else { 0 };
        let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new(config);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            runner.run(&program(length), |program| {
                world.begin();
                let used = run(&world, &lanes, program);
                check.borrow_mut()(&world, used)
            })
        }));
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        outcome.unwrap().unwrap();
    });
}

#[test]
fn every_task_is_counted_once() {
    counting();
    programs("counted", (256, 40), Duration::ZERO, |world, _| {
        for (group, account) in world.groups.iter().zip(lock(&world.accounts).iter()) {
            let stat = group.read();
            let counted = (stat.started, stat.finished, stat.alive, stat.entries);
            let alive = account.started - account.finished;
            prop_assert_eq!(counted, (account.started, account.finished, alive, account.entries));
        }
        Ok(())
    });
}

#[test]
fn every_piece_of_work_is_charged_once() {
    counting();
    let mut used = Duration::ZERO;
    // Programs add up, and so do the groups: the longer this goes on, the less the slack counts.
    programs("charged", (48, 40), Duration::from_millis(1), |world, more| {
        used += more;
        let accounts = lock(&world.accounts);
        let outside = *lock(&world.outside);
        let worked = accounts.iter().map(|account| account.cpu).sum::<Duration>() + outside;
        // The groups' own code took the rest, which is much on an emulated processor.
        let beside = used.saturating_sub(worked);
        let near = |charged: Duration, worked: Duration| {
            // A hundredth; and what a noisy machine does inside an epoch of the clock.
            charged.abs_diff(charged.clamp(worked, worked + beside))
                <= worked / 100 + Duration::from_millis(8)
        };
        let mut groups = Duration::ZERO;
        for (group, account) in world.groups.iter().zip(accounts.iter()) {
            let charged = group.read().cpu;
            prop_assert!(near(charged, account.cpu), "{:?}: {:?}, not {:?}", group, charged, account.cpu);
            groups += charged;
        }
        prop_assert!(near(groups + outside, worked), "{groups:?} and {outside:?} outside, of {used:?}");
        Ok(())
    });
}

/// Has CPU time and entries counted for all groups from now on.
fn counting() {
    static COUNT: std::sync::Once = std::sync::Once::new();
    COUNT.call_once(|| dormouse::start_counting(&[dormouse::Event::TASK_CLOCK]).unwrap().keep());
}
