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
}

impl World {
    fn new() -> Self {
        let (generation, count, charged) = (AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0));
        Self { stay: Stay::new(), generation, count, charged }
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
            if seen.generation == generation {
                return;
            }
            let readings = self.reading();
            let part = Part { readings, known: ALL, taken: None, ..seen.part.clone() };
            if self.stay.is_still(&seen) && self.stay.settle(&seen, &part) {
                return self.charge(seen.part.until(&readings, ALL));
            }
        }
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
            spawn(move || (2..2 + changes).for_each(|generation| world.change(generation)))
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
