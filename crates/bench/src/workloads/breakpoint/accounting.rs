//! The accountings that are compared, behind one trait, and what a reservation costs in them by itself.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_breakpoints::{Kind, Registers, Request, Reservation, Slots, Target, Task};

use super::BreakpointArgs;
use super::list::List;
use super::threads::joined;
use crate::clocks::wall;
use crate::runner::{Case, Failure, Spec};
use crate::workloads::Settings;

pub(super) const NOTES: &[&str] = &[
    "accounting rows: wall time of reserving and releasing one breakpoint of a task on all processors, \
     by one thread, while N tasks hold theirs; a new task reserves all its breakpoints, then releases \
     them, as a thread that comes and goes. Tasks are numbered by a counter, as threads are; \
     accounting/hash-scattered draws numbers at random, so that each task meets cold memory and none \
     has near neighbours",
    "accounting/list walks the list once a processor, three times a breakpoint, as the kernel did; its \
     population is put in place without that",
    "waiting rows: share of their wall time that threads, one a processor, wait for locks when they do \
     nothing but reserve and release, of the tasks of the thread rows; a thread that loses its \
     processor while it holds a lock is in it. The origin's profile had 72 % of all cycles in waiting \
     for the mutex",
];

/// Sizes of the population.
pub(super) const SIZES: [u32; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];

/// Something that accounts breakpoints of tasks.
pub(super) trait Accounting: Sync {
    /// A breakpoint's slots, until dropped.
    type Held: Send;

    /// The slots of one breakpoint of a task, on all processors.
    fn reserve(&self, task: u64) -> Result<Self::Held, Failure>;

    /// How long threads have waited for locks, summed.
    fn waited(&self) -> Duration;

    /// The slots of as many breakpoints.
    fn reserve_all(&self, task: u64, breakpoints: u32) -> Result<Vec<Self::Held>, Failure> {
        (0..breakpoints).map(|_| self.reserve(task)).collect()
    }
}

fn request(task: u64) -> Request {
    Request::new(Target::Task(Task(task)), Kind::Data)
}

/// No accounting.
#[derive(Debug)]
pub(super) struct Nothing;

impl Accounting for Nothing {
    type Held = ();

    fn reserve(&self, _task: u64) -> Result<(), Failure> {
        Ok(())
    }

    fn waited(&self) -> Duration {
        Duration::ZERO
    }
}

/// The hash, as `dormouse-breakpoints` has it.
#[derive(Debug)]
pub(super) struct Hashed {
    slots: Slots,
}

impl Hashed {
    pub(super) fn new(cpus: u32) -> Result<Self, Failure> {
        Ok(Self { slots: Slots::new(Registers::X86, cpus)? })
    }

    fn with_tasks(tasks: u32, args: &BreakpointArgs) -> Result<Self, Failure> {
        let hashed = Self::new(args.cpus)?;
        for task in 0..tasks {
            // The guards of millions would be memory that the accounting does not have; these are for good.
            let held = (&hashed).reserve_all(task.into(), args.breakpoints)?;
            held.into_iter().for_each(std::mem::forget);
        }
        Ok(hashed)
    }

    /// How many tasks hold slots.
    pub(super) fn tasks(&self) -> usize {
        self.slots.tasks()
    }
}

impl<'h> Accounting for &'h Hashed {
    type Held = Reservation<'h>;

    fn reserve(&self, task: u64) -> Result<Reservation<'h>, Failure> {
        self.slots.reserve(request(task)).map_err(|error| Failure::Wrong(error.to_string()))
    }

    fn waited(&self) -> Duration {
        self.slots.waits().total
    }
}

/// The list under its one mutex.
#[derive(Debug)]
pub(super) struct Listed {
    list: Mutex<List>,
    waited: AtomicU64,
}

/// A breakpoint on the list.
#[derive(Debug)]
pub(super) struct OnList<'l> {
    listed: &'l Listed,
    place: usize,
}

impl Listed {
    pub(super) fn new(cpus: u32) -> Self {
        Self { list: Mutex::new(List::new(Registers::X86, cpus)), waited: AtomicU64::new(0) }
    }

    fn with_tasks(tasks: u32, args: &BreakpointArgs) -> Self {
        let listed = Self::new(args.cpus);
        for task in 0..tasks {
            listed.lock().populate(&vec![request(task.into()); args.breakpoints as usize]);
        }
        listed
    }

    /// The lock, and the clock only if it is not free: as that of [`Slots`].
    fn lock(&self) -> MutexGuard<'_, List> {
        match self.list.try_lock() {
            Ok(list) => list,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let (took, list) = wall(|| self.list.lock().unwrap_or_else(PoisonError::into_inner));
                self.waited.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
                list
            }
        }
    }
}

impl<'l> Accounting for &'l Listed {
    type Held = OnList<'l>;

    fn reserve(&self, task: u64) -> Result<OnList<'l>, Failure> {
        let place = self.lock().reserve(request(task));
        let refused = || Failure::Wrong(format!("the list has no space for task {task}"));
        place.map(|place| OnList { listed: self, place }).ok_or_else(refused)
    }

    fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited.load(Ordering::Relaxed))
    }
}

impl Drop for OnList<'_> {
    fn drop(&mut self) {
        self.listed.lock().release(self.place);
    }
}

/// `accounting/hash/N` and `accounting/hash-scattered/N`.
pub(super) fn hash_cases(settings: &Settings, args: &BreakpointArgs) -> Vec<Case<'static>> {
    let mut cases = Vec::new();
    for tasks in SIZES {
        let specs = ["hash", "hash-scattered"].map(|name| spec(name, tasks, args));
        let hashed = match Hashed::with_tasks(tasks, args) {
            Ok(hashed) => Rc::new(hashed),
            Err(failure) => {
                cases.push(Case::new(specs.into(), move || Err(failure.clone())));
                continue;
            }
        };
        for (spec, scattered) in specs.into_iter().zip([false, true]) {
            let (hashed, breakpoints) = (Rc::clone(&hashed), args.breakpoints);
            let mut task = u64::from(tasks);
            cases.push(Case::per_iteration(spec, settings.target(), move |wanted| {
                let rounds = wanted.div_ceil(breakpoints.into());
                let (took, done) = wall(|| {
                    for _ in 0..rounds {
                        // Odd and large: prime to 2^64, so no number comes twice, and none is of the
                        // population but by a chance of one in 10^13.
                        task = if scattered { task.wrapping_add(0x9e37_79b9_7f4a_7c15) } else { task + 1 };
                        come_and_go(&&*hashed, task, breakpoints)?;
                    }
                    Ok::<_, Failure>(())
                });
                done?;
                Ok(took.mul_f64(wanted as f64 / (rounds * u64::from(breakpoints)) as f64))
            }));
        }
    }
    cases
}

/// `accounting/list/N`: measured up to `most` tasks.
pub(super) fn list_cases(settings: &Settings, args: &BreakpointArgs, most: u32) -> Vec<Case<'static>> {
    let case = |tasks| {
        let spec = spec("list", tasks, args);
        if tasks > most {
            let why = "not run at this size: it grows with the tasks, as the smaller rows show";
            return Case::unavailable(vec![spec], why);
        }
        let (listed, args, target) = (Listed::with_tasks(tasks, args), args.clone(), settings.target());
        let mut task = u64::from(tasks);
        Case::new(vec![spec], move || {
            let (begin, mut rounds) = (Instant::now(), 0);
            while rounds == 0 || begin.elapsed() < target {
                task += 1;
                come_and_go(&&listed, task, args.breakpoints)?;
                rounds += 1;
            }
            Ok(vec![begin.elapsed().as_nanos() as f64 / f64::from(rounds * args.breakpoints)])
        })
    };
    SIZES.map(case).into()
}

fn spec(name: &str, tasks: u32, args: &BreakpointArgs) -> Spec {
    Spec::new(format!("accounting/{name}/{tasks}"), "ns")
        .with("per", "breakpoint reserved and released")
        .with("tasks", tasks)
        .with("breakpoints", args.breakpoints)
        .with("cpus", args.cpus)
}

/// A task reserves its breakpoints and releases them.
fn come_and_go(accounting: &impl Accounting, task: u64, breakpoints: u32) -> Result<(), Failure> {
    // Four is the most; a vector would be a part of what is measured.
    let mut held = [const { None }; 4];
    for place in held.iter_mut().take(breakpoints as usize) {
        *place = Some(accounting.reserve(task)?);
    }
    Ok(())
}

/// `waiting/hash`: beside as many tasks as live in the thread rows.
pub(super) fn hash_waiting(settings: &Settings, args: &BreakpointArgs) -> Case<'static> {
    let (spec, span) = waiting_spec("hash", settings, args);
    match Hashed::with_tasks(args.population(), args) {
        Ok(hashed) => waiting(spec, span, args, move |work| work.share(&&hashed)),
        Err(failure) => Case::new(vec![spec], move || Err(failure.clone())),
    }
}

/// `waiting/list`: the same with the list.
pub(super) fn list_waiting(settings: &Settings, args: &BreakpointArgs) -> Case<'static> {
    let (spec, span) = waiting_spec("list", settings, args);
    let listed = Listed::with_tasks(args.population(), args);
    waiting(spec, span, args, move |work| work.share(&&listed))
}

/// One a processor, as the origin's had: more would wait for processors, and then for those who hold
/// locks meanwhile.
fn threads(args: &BreakpointArgs) -> u32 {
    thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32).min(args.parallelism)
}

fn waiting_spec(name: &str, settings: &Settings, args: &BreakpointArgs) -> (Spec, Duration) {
    let spec = Spec::new(format!("waiting/{name}"), "%")
        .with("of", "wall time of the threads")
        .with("threads", threads(args))
        .with("tasks", args.population());
    (spec, Duration::from_millis(if settings.quick { 20 } else { 100 }))
}

fn waiting(
    spec: Spec,
    span: Duration,
    args: &BreakpointArgs,
    share: impl Fn(&Work) -> Result<f64, Failure> + 'static,
) -> Case<'static> {
    let work = Work { args: args.clone(), span };
    Case::new(vec![spec], move || Ok(vec![share(&work)?]))
}

/// Parallel threads that reserve and release for a time.
struct Work {
    args: BreakpointArgs,
    span: Duration,
}

impl Work {
    /// Percent of their time that they waited for locks.
    fn share(&self, accounting: &impl Accounting) -> Result<f64, Failure> {
        let next = AtomicU64::new(self.args.population().into());
        let before = accounting.waited();
        let spent: Result<Duration, Failure> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads(&self.args))
                .map(|_| thread::Builder::new().spawn_scoped(scope, || self.thread(accounting, &next)))
                .collect::<Result<_, _>>()?;
            threads.into_iter().map(|thread| joined(thread)?).sum()
        });
        let waited = accounting.waited().saturating_sub(before);
        Ok(100.0 * waited.as_secs_f64() / spent?.as_secs_f64())
    }

    fn thread(&self, accounting: &impl Accounting, next: &AtomicU64) -> Result<Duration, Failure> {
        let begin = Instant::now();
        while begin.elapsed() < self.span {
            let task = next.fetch_add(1, Ordering::Relaxed);
            come_and_go(accounting, task, self.args.breakpoints)?;
        }
        Ok(begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARGS: BreakpointArgs =
        BreakpointArgs { repeat: 1, breakpoints: 4, parallelism: 2, threads: 8, cpus: 2 };

    /// That the list is populated as if it had been asked each time.
    #[test]
    fn both_have_room_for_new_tasks_and_none_for_those_of_the_population() {
        let (hashed, listed) = (Hashed::with_tasks(10, &ARGS).unwrap(), Listed::with_tasks(10, &ARGS));
        for task in 0..12 {
            assert_eq!((&hashed).reserve(task).is_ok(), task >= 10);
            assert_eq!((&listed).reserve(task).is_ok(), task >= 10);
        }
        assert!(matches!((&hashed).reserve(3), Err(Failure::Wrong(_))));
    }

    #[test]
    fn the_share_of_waiting_is_one() {
        let listed = Listed::with_tasks(ARGS.population(), &ARGS);
        let share = Work { args: ARGS, span: Duration::from_millis(2) }.share(&&listed).unwrap();
        assert!((0.0..=100.0).contains(&share), "{share}");
    }
}
