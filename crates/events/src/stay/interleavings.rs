//! `RUSTFLAGS="--cfg loom" cargo test -p dormouse-events --lib interleavings`

use loom::sync::Arc;
use loom::thread::{spawn, yield_now};

use super::*;
use crate::account;
use crate::pmu::CountingPmu;

static PMU: CountingPmu = CountingPmu::new();

fn layout() -> &'static Layout {
    Layout::of(account::mask(&[PMU.event("x", 0)]).unwrap()).unwrap()
}

/// A thread's stay, and what it counts.
struct World {
    stay: Stay,
    generation: AtomicU64,
    /// How often it has happened: what a reading of the thread's counter shows.
    count: AtomicU64,
    charged: AtomicU64,
    /// Whether the thread has a task, as its block shows it.
    task: AtomicU64,
    /// Whether what is counted has changed to the end.
    changed: AtomicU64,
}

impl World {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            stay: Stay::new(),
            generation: AtomicU64::new(2),
            count: zero(),
            charged: zero(),
            task: zero(),
            changed: zero(),
        }
    }

    /// Where nothing is counted, and the stay is as tasks want it.
    fn asleep() -> Self {
        let world = Self::new();
        let number = world.stay.begin();
        world.stay.set_asleep();
        world.stay.set_context(1);
        world.stay.end(number);
        world
    }

    fn reading(&self) -> Readings {
        let mut readings = Readings::default();
        readings[0] = self.count.load(Relaxed);
        readings
    }

    fn charge(&self, counts: impl Iterator<Item = (usize, u64)>) {
        self.charged.fetch_add(counts.map(|(_, n)| n).sum(), Release);
    }

    /// The owner goes from one stay to the next.
    fn pass(&self, layout: &'static Layout) {
        let number = self.stay.begin();
        let generation = self.generation.load(Acquire);
        let (rest, readings) = (self.stay.rest(number, generation), self.reading());
        self.charge(rest.until(&readings, ALL));
        self.stay.set(generation, layout, &readings);
        self.stay.set_context(1);
        self.stay.end(number);
    }

    /// The owner has no task from here on.
    fn go_idle(&self) {
        let number = self.stay.begin();
        let rest = self.stay.rest(number, self.generation.load(Acquire));
        self.charge(rest.until(&self.reading(), ALL));
        self.stay.end_idle(number);
    }

    /// The owner goes on with what it has kept in `generation`, if that holds.
    fn resume(&self, generation: u64) -> bool {
        let number = self.stay.begin();
        if self.generation.load(Acquire) != generation {
            self.stay.cancel(number);
            return false;
        }
        self.stay.set_first(self.count.load(Relaxed));
        self.stay.end(number);
        true
    }

    /// And is idle again.
    fn suspend(&self, generation: u64) -> bool {
        let number = self.stay.begin();
        if self.generation.load(Acquire) != generation {
            self.stay.cancel(number);
            return false;
        }
        self.charged.fetch_add(self.count.load(Relaxed) - self.stay.first(), Release);
        self.stay.end_idle(number);
        true
    }

    fn happen(&self) {
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
    }

    /// As the change of what is counted does.
    fn change(&self, generation: u64) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.stay.look() else {
                yield_now();
                continue;
            };
            if seen.context == 0 || seen.generation == generation {
                return;
            }
            if seen.is_empty() && self.task.load(Relaxed) == 0 {
                return;
            }
            let readings = self.reading();
            let part = Part { readings, known: ALL, taken: None, ..seen.part.clone() };
            if self.stay.is_still(&seen) && self.stay.settle(&seen, &part) {
                return self.charge(seen.part.until(&readings, ALL));
            }
        }
    }

    /// As the change from nothing to something does.
    fn begin_to_count(&self, generation: u64, layout: &'static Layout) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.stay.look() else {
                yield_now();
                continue;
            };
            if seen.context == 0 || seen.generation == generation || self.task.load(Relaxed) == 0 {
                return;
            }
            let part = Part { layout, readings: self.reading(), known: ALL, shared: u64::MAX, taken: None };
            if self.stay.is_still(&seen) && self.stay.settle(&seen, &part) {
                return;
            }
        }
    }

    /// And back.
    fn end_counting(&self, generation: u64) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.stay.look() else {
                yield_now();
                continue;
            };
            if seen.context == 0
                || seen.generation == generation
                || seen.is_empty() && self.task.load(Relaxed) == 0
            {
                return;
            }
            let (readings, old) = (self.reading(), seen.part.clone());
            let part = Part { layout: &NOTHING, readings, known: 0, shared: u64::MAX, taken: None };
            if self.stay.is_still(&seen) && self.stay.settle(&seen, &part) {
                return self.charge(old.until(&readings, ALL));
            }
        }
    }

    /// The owner goes on with a task, or with none, as it does where counting may have ended.
    fn go_on(&self, layout: &'static Layout, task: u64) {
        let number = self.stay.begin();
        let generation = self.generation.load(Acquire);
        let awake = !generation.is_multiple_of(2);
        if awake || !self.stay.is_empty(number) {
            let (rest, readings) = (self.stay.rest(number, generation), self.reading());
            self.charge(rest.until(&readings, ALL));
            self.stay.set(generation, if awake && task == 1 { layout } else { &NOTHING }, &readings);
            if !awake {
                self.stay.set_asleep();
            }
        }
        self.task.store(task, Relaxed);
        if task == 1 { self.stay.end(number) } else { self.stay.end_idle(number) }
    }

    fn read(&self) -> u64 {
        let charged = self.charged.load(Acquire);
        let pending = self.stay.look().map_or(0, |seen| {
            let n = seen.part.until(&self.reading(), ALL).map(|(_, n)| n).sum();
            if self.stay.is_still(&seen) { n } else { 0 }
        });
        charged + pending
    }
}

fn explore(changes: u64, rounds: u64, reads: bool) {
    let layout = layout();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::new());
        world.pass(layout);
        let settler = {
            let world = Arc::clone(&world);
            spawn(move || (3..3 + changes).for_each(|generation| world.change(generation)))
        };
        let reader = reads.then(|| {
            let world = Arc::clone(&world);
            spawn(move || assert!(world.read() <= rounds))
        });
        for _ in 0..rounds {
            world.happen();
            world.pass(layout);
        }
        settler.join().unwrap();
        reader.map(|reader| reader.join().unwrap());
        world.pass(&NOTHING);
        assert_eq!(world.charged.load(Acquire), rounds);
    });
}

#[test]
fn each_part_of_a_stay_is_charged_once_whoever_charges_it() {
    explore(1, 2, false);
}

#[test]
fn two_changes_in_a_row_charge_each_part_once() {
    explore(2, 2, false);
}

#[test]
fn a_read_meanwhile_counts_nothing_twice() {
    explore(1, 1, true);
}

#[test]
fn what_is_kept_by_an_idle_thread_is_charged_once() {
    let layout = layout();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::new());
        world.pass(layout);
        world.go_idle();
        let settler = {
            let world = Arc::clone(&world);
            spawn(move || (3..5).for_each(|generation| world.change(generation)))
        };
        for _ in 0..2 {
            if !world.resume(2) {
                world.pass(layout);
            }
            world.happen();
            if !world.suspend(2) {
                world.go_idle();
            }
            // By nobody's task.
            world.happen();
        }
        settler.join().unwrap();
        assert_eq!(world.charged.load(Acquire), 2);
    });
}

/// While nothing is counted a stay is left as it is, and the block says whether there is a task. From the change on,
/// what happens in a task is charged, and nothing else.
#[test]
fn counting_that_begins_finds_a_task_that_is_there_and_none_that_is_not() {
    let layout = layout();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::asleep());
        let settler = {
            let world = Arc::clone(&world);
            spawn(move || {
                world.begin_to_count(3, layout);
                world.changed.store(1, Release);
            })
        };
        let mut at_least = 0;
        for _ in 0..2 {
            world.task.store(1, Relaxed);
            light_barrier();
            if world.generation.load(Acquire) != 2 {
                world.pass(layout);
            }
            // What happens to a task after the change is charged; during it, it may be.
            at_least += world.changed.load(Acquire);
            world.happen();
            world.task.store(0, Relaxed);
            light_barrier();
            if world.generation.load(Acquire) != 2 {
                world.go_idle();
            }
            // By nobody's task.
            world.count.fetch_add(100, Relaxed);
        }
        settler.join().unwrap();
        let charged = world.charged.load(Acquire);
        assert!((at_least..=2).contains(&charged), "{charged}, at least {at_least}");
    });
}

/// The same, where counting ends again while the task is there, or no more.
#[test]
fn counting_that_ends_leaves_nothing_of_a_task_uncharged() {
    let layout = layout();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = Arc::new(World::asleep());
        let settler = {
            let world = Arc::clone(&world);
            spawn(move || {
                world.begin_to_count(3, layout);
                world.changed.store(1, Release);
                world.changed.store(2, Release);
                world.end_counting(4);
            })
        };
        let mut at_least = 0;
        world.task.store(1, Relaxed);
        light_barrier();
        if world.generation.load(Acquire) != 2 {
            world.go_on(layout, 1);
        }
        let before = world.changed.load(Acquire);
        world.happen();
        // What has happened before the end has begun is to be charged, and that is before only if both can tell.
        light_barrier();
        if before == 1 && world.changed.load(Acquire) == 1 {
            at_least += 1;
        }
        world.go_on(layout, 0);
        // By nobody's task.
        world.count.fetch_add(100, Relaxed);
        settler.join().unwrap();
        let charged = world.charged.load(Acquire);
        assert!((at_least..=1).contains(&charged), "{charged}, at least {at_least}");
    });
}
