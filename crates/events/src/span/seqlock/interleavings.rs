//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-events --lib interleavings`.

use loom::sync::Arc;
use loom::thread::{spawn, yield_now};

use super::*;
use crate::event_set::mask_of;
use crate::pmu::CountingPmu;
use crate::span::Delta;

static PMU: CountingPmu = CountingPmu::new();

fn set() -> &'static EventSet {
    EventSet::of(mask_of(&[PMU.event("x", 0)]).unwrap()).unwrap()
}

/// A thread's span, and its counter.
struct World {
    span: Span,
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
        let span = Span::new();
        span.arrive();
        Self {
            span,
            generation: AtomicU64::new(2),
            count: zero(),
            charged: zero(),
            task: zero(),
            changed: zero(),
        }
    }

    /// Where nothing is counted, and the span is as tasks want it.
    fn asleep() -> Self {
        let world = Self::new();
        let number = world.span.begin();
        world.span.set_asleep();
        world.span.set_context(1);
        world.span.end(number);
        world
    }

    fn reading(&self) -> Readings {
        let mut readings = Readings::default();
        readings[0] = self.count.load(Relaxed);
        readings
    }

    fn charge(&self, deltas: impl Iterator<Item = Delta>) {
        self.charged.fetch_add(deltas.map(|delta| delta.n).sum(), Release);
    }

    /// The owner goes from one span to the next.
    fn pass(&self, set: &'static EventSet) {
        let number = self.span.begin();
        let generation = Generation(self.generation.load(Acquire));
        let (baseline, readings) = (self.span.baseline(number, generation), self.reading());
        self.charge(baseline.deltas(&readings, ALL));
        self.span.set_baseline(generation, set, &readings);
        self.span.set_context(1);
        self.span.end(number);
    }

    /// The owner has no task from here on.
    fn go_idle(&self) {
        let number = self.span.begin();
        let baseline = self.span.baseline(number, Generation(self.generation.load(Acquire)));
        self.charge(baseline.deltas(&self.reading(), ALL));
        self.span.end_idle(number);
    }

    /// The owner goes on with what it has kept in `generation`, if that still holds.
    fn resume(&self, generation: u64) -> bool {
        let number = self.span.begin();
        if self.generation.load(Acquire) != generation {
            self.span.cancel(number);
            return false;
        }
        self.span.set_first(self.count.load(Relaxed));
        self.span.end(number);
        true
    }

    /// And is idle again.
    fn suspend(&self, generation: u64) -> bool {
        let number = self.span.begin();
        if self.generation.load(Acquire) != generation {
            self.span.cancel(number);
            return false;
        }
        self.charged.fetch_add(self.count.load(Relaxed) - self.span.first(), Release);
        self.span.end_idle(number);
        true
    }

    fn happen(&self) {
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
    }

    /// Does what a change of what is counted does.
    fn change(&self, generation: u64) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.span.try_snapshot() else {
                yield_now();
                continue;
            };
            if seen.context == 0 || seen.generation == Generation(generation) {
                return;
            }
            if seen.was_never_counted() && self.task.load(Relaxed) == 0 {
                return;
            }
            let readings = self.reading();
            let next = Baseline { readings, known: ALL, begun: None, ..seen.baseline.clone() };
            if self.span.is_still(&seen) && self.span.rebase(&seen, &next) {
                return self.charge(seen.baseline.deltas(&readings, ALL));
            }
        }
    }

    /// Does what the change from nothing to something does.
    fn begin_to_count(&self, generation: u64, set: &'static EventSet) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.span.try_snapshot() else {
                yield_now();
                continue;
            };
            if seen.context == 0 || seen.generation == Generation(generation) || self.task.load(Relaxed) == 0
            {
                return;
            }
            let next = Baseline { set, readings: self.reading(), known: ALL, shared: u64::MAX, begun: None };
            if self.span.is_still(&seen) && self.span.rebase(&seen, &next) {
                return;
            }
        }
    }

    /// And back.
    fn end_counting(&self, generation: u64) {
        self.generation.store(generation, Release);
        fence(std::sync::atomic::Ordering::SeqCst);
        loop {
            let Some(seen) = self.span.try_snapshot() else {
                yield_now();
                continue;
            };
            if seen.context == 0
                || seen.generation == Generation(generation)
                || seen.was_never_counted() && self.task.load(Relaxed) == 0
            {
                return;
            }
            let (readings, old) = (self.reading(), seen.baseline.clone());
            let next = Baseline { set: &EMPTY, readings, known: 0, shared: u64::MAX, begun: None };
            if self.span.is_still(&seen) && self.span.rebase(&seen, &next) {
                return self.charge(old.deltas(&readings, ALL));
            }
        }
    }

    /// The owner goes on with a task, or with none, as it does where counting may have ended.
    fn go_on(&self, set: &'static EventSet, task: u64) {
        let number = self.span.begin();
        let generation = Generation(self.generation.load(Acquire));
        let awake = generation.counts();
        if awake || !self.span.has_nothing(number) {
            let (baseline, readings) = (self.span.baseline(number, generation), self.reading());
            self.charge(baseline.deltas(&readings, ALL));
            self.span.set_baseline(generation, if awake && task == 1 { set } else { &EMPTY }, &readings);
            if !awake {
                self.span.set_asleep();
            }
        }
        self.task.store(task, Relaxed);
        if task == 1 { self.span.end(number) } else { self.span.end_idle(number) }
    }

    fn read(&self) -> u64 {
        let charged = self.charged.load(Acquire);
        let pending = self.span.try_snapshot().map_or(0, |seen| {
            let n = seen.baseline.deltas(&self.reading(), ALL).map(|delta| delta.n).sum();
            if self.span.is_still(&seen) { n } else { 0 }
        });
        charged + pending
    }
}

fn explore(changes: u64, rounds: u64, reads: bool) {
    let set = set();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::new());
        world.pass(set);
        let changer = {
            let world = Arc::clone(&world);
            spawn(move || (3..3 + changes).for_each(|generation| world.change(generation)))
        };
        let reader = reads.then(|| {
            let world = Arc::clone(&world);
            spawn(move || assert!(world.read() <= rounds))
        });
        for _ in 0..rounds {
            world.happen();
            world.pass(set);
        }
        changer.join().unwrap();
        reader.map(|reader| reader.join().unwrap());
        world.pass(&EMPTY);
        assert_eq!(world.charged.load(Acquire), rounds);
    });
}

#[test]
fn each_delta_is_charged_once() {
    explore(1, 2, false);
}

#[test]
fn two_changes_charge_each_delta_once() {
    explore(2, 2, false);
}

#[test]
fn a_read_meanwhile_counts_nothing_twice() {
    explore(1, 1, true);
}

#[test]
fn an_idle_thread_is_charged_once() {
    let set = set();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::new());
        world.pass(set);
        world.go_idle();
        let changer = {
            let world = Arc::clone(&world);
            spawn(move || (3..5).for_each(|generation| world.change(generation)))
        };
        for _ in 0..2 {
            if !world.resume(2) {
                world.pass(set);
            }
            world.happen();
            if !world.suspend(2) {
                world.go_idle();
            }
            // In no task.
            world.happen();
        }
        changer.join().unwrap();
        assert_eq!(world.charged.load(Acquire), 2);
    });
}

/// While nothing is counted a span is left as it is, and the block says whether there is a task.
/// From the change on, what happens in a task is charged, and nothing else.
#[test]
fn a_begin_finds_a_task_iff_present() {
    let set = set();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let world = Arc::new(World::asleep());
        let changer = {
            let world = Arc::clone(&world);
            spawn(move || {
                world.begin_to_count(3, set);
                world.changed.store(1, Release);
            })
        };
        let mut at_least = 0;
        for _ in 0..2 {
            world.task.store(1, Relaxed);
            light_barrier();
            if world.generation.load(Acquire) != 2 {
                world.pass(set);
            }
            // An event of a task after the change is charged; one during the change may be.
            at_least += world.changed.load(Acquire);
            world.happen();
            world.task.store(0, Relaxed);
            light_barrier();
            if world.generation.load(Acquire) != 2 {
                world.go_idle();
            }
            // In no task.
            world.count.fetch_add(100, Relaxed);
        }
        changer.join().unwrap();
        let charged = world.charged.load(Acquire);
        assert!((at_least..=2).contains(&charged), "{charged}, at least {at_least}");
    });
}

/// The reverse order: counting ends again while the task runs or after it has ended.
#[test]
fn an_end_leaves_nothing_uncharged() {
    let set = set();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let world = Arc::new(World::asleep());
        let changer = {
            let world = Arc::clone(&world);
            spawn(move || {
                world.begin_to_count(3, set);
                world.changed.store(1, Release);
                world.changed.store(2, Release);
                world.end_counting(4);
            })
        };
        let mut at_least = 0;
        world.task.store(1, Relaxed);
        light_barrier();
        if world.generation.load(Acquire) != 2 {
            world.go_on(set, 1);
        }
        let before = world.changed.load(Acquire);
        world.happen();
        // An event before the end of counting has begun is charged, if both threads can establish
        // that order.
        light_barrier();
        if before == 1 && world.changed.load(Acquire) == 1 {
            at_least += 1;
        }
        world.go_on(set, 0);
        // In no task.
        world.count.fetch_add(100, Relaxed);
        changer.join().unwrap();
        let charged = world.charged.load(Acquire);
        assert!((at_least..=1).contains(&charged), "{charged}, at least {at_least}");
    });
}
