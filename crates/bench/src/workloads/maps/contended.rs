//! `contended/…`: two threads look addresses up while a third changes the map a thousand times a
//! second.
//!
//! For comparison, one thread alone, and two without a writer. Each reader is timed by its CPU
//! time, so that other work on the machine has no effect; the time that a thread sleeps for a lock
//! is not included either, which favours the lock.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use dormouse_maps::{Cache, Overlap, RangeMap};

use super::lookups::{Fault, Lookup, by};
use super::peers::{
    Entry, Pattern, Sorted, Tree, entries, faults, find_in_range_map, find_in_tree, range_map, tree,
};
use crate::affinity::Halves;
use crate::bench::Bench;
use crate::clocks::cpu;
use crate::row::Spec;
use crate::runner::Failure;

/// Mappings.
const SIZE: usize = 1_000;
/// Between two changes.
const PERIOD: Duration = Duration::from_millis(1);

/// The ends of the rows' names, how many threads read, and whether one writes.
const CROWDS: [(&str, usize, bool); 3] = [("/one", 1, false), ("/two", 2, false), ("", 2, true)];

/// Makes a map of entries.
type New = fn(&[Entry]) -> Box<dyn Shared>;

const PEERS: [(&str, New); 3] = [
    ("rwlock-btreemap", |entries| Box::new(RwLock::new(tree(entries)))),
    ("arc-swap", |entries| Box::new(ArcSwap::from_pointee(Sorted::of(entries)))),
    ("dormouse", |entries| Box::new(range_map(entries))),
];

/// A map that threads share.
trait Shared: Sync {
    /// Its look-ups by one thread.
    fn reader(&self) -> Lookup<'_>;
    /// Gives a mapping another value.
    fn replace(&self, entry: &Entry, value: u64);
}

impl Shared for RwLock<Tree> {
    fn reader(&self) -> Lookup<'_> {
        by(|addr| find_in_tree(&self.read().unwrap_or_else(PoisonError::into_inner), addr))
    }

    fn replace(&self, entry: &Entry, value: u64) {
        let mut map = self.write().unwrap_or_else(PoisonError::into_inner);
        map.insert(entry.range.start, (entry.last(), value));
    }
}

impl Shared for ArcSwap<Sorted> {
    fn reader(&self) -> Lookup<'_> {
        by(|addr| self.load().find(addr))
    }

    fn replace(&self, entry: &Entry, value: u64) {
        self.rcu(|map| {
            let mut map = Sorted::clone(map);
            map.set(entry.range.start, value);
            map
        });
    }
}

impl Shared for RangeMap<u64> {
    fn reader(&self) -> Lookup<'_> {
        let cache = Box::new(Cache::new());
        by(move |addr| find_in_range_map(self, &cache, addr))
    }

    fn replace(&self, entry: &Entry, value: u64) {
        // The mapping is there and nothing is in the way, so there is nothing to refuse.
        let _ = self.update(|edit| edit.insert(entry.range.clone(), value, Overlap::Replace));
    }
}

pub(super) fn rows(bench: &mut Bench) {
    let target = bench.target() * 10;
    for (suffix, readers, writes) in CROWDS {
        for (peer, new) in PEERS {
            let mut specs = vec![Spec::new(format!("contended/{peer}{suffix}"), "ns").per("look-up").cpu()];
            if writes {
                specs.push(Spec::new(format!("contended-updates/{peer}"), "1/s"));
            }
            let entries = entries(SIZE);
            let faults = faults(Pattern::Hot90, &entries);
            bench.sample(specs, move || {
                let writer = writes.then_some(&entries[SIZE / 2]);
                let (each, updates) = crowded(readers, writer, &*new(&entries), &faults, target)?;
                Ok(if writes { vec![each, updates] } else { vec![each] })
            });
        }
    }
}

/// Nanoseconds a look-up, and how often `writer` was replaced a second.
fn crowded(
    readers: usize,
    writer: Option<&Entry>,
    map: &dyn Shared,
    faults: &[Fault],
    target: Duration,
) -> Result<(f64, f64), Failure> {
    let halves = Halves::of_this_thread();
    let done = AtomicBool::new(false);
    let updates = AtomicU64::new(0);
    let look = || {
        let mut look_up = map.reader();
        let (mut took, mut lookups) = (Duration::ZERO, 0);
        while !done.load(Ordering::Relaxed) {
            let (time, answers) = cpu(|| look_up(faults, 0));
            black_box(answers);
            took += time;
            lookups += faults.len();
        }
        took.as_nanos() as f64 / lookups as f64
    };
    let read = |reader| if reader == 0 { halves.on_first(look) } else { halves.on_second(look) };
    let begin = Instant::now();
    let sum = thread::scope(|scope| {
        let threads: Vec<_> = (0..readers).map(|reader| scope.spawn(move || read(reader))).collect();
        let mut next = begin;
        while begin.elapsed() < target {
            next += PERIOD;
            thread::sleep(next.saturating_duration_since(Instant::now()));
            if let Some(entry) = writer {
                map.replace(entry, updates.fetch_add(1, Ordering::Relaxed));
            }
        }
        done.store(true, Ordering::Relaxed);
        let panicked = |_| Failure::wrong("a reader panicked");
        threads.into_iter().map(|thread| thread.join().map_err(panicked)?).sum::<Result<f64, Failure>>()
    })?;
    let rate = updates.into_inner() as f64 / begin.elapsed().as_secs_f64();
    Ok((sum / readers as f64, rate))
}

pub(super) fn compare(bench: &mut Bench) {
    for (peer, _) in PEERS {
        let [one, two, crowded] = CROWDS.map(|(suffix, ..)| format!("contended/{peer}{suffix}"));
        bench.times(format!("contended-two-to-one/{peer}"), &two, &one);
        bench.times(format!("contended-writer-to-none/{peer}"), &crowded, &two);
    }
    let text = "each of two readers as fast as one, within 5 %";
    bench.at_most(text, "contended-two-to-one/dormouse", 1.05);
    let text = "a writer at 1 kHz costs readers at most 20 %";
    bench.at_most(text, "contended-writer-to-none/dormouse", 1.2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_find_the_replaced_value() {
        let entries = entries(8);
        for (_, new) in PEERS {
            let map = new(&entries);
            let mut look_up = map.reader();
            let first = |addr| [(0, addr)];
            assert_eq!(look_up(&first(entries[3].range.start), 0), 3);
            map.replace(&entries[3], 77);
            assert_eq!(look_up(&first(entries[3].last()), 0), 77);
            assert_eq!(look_up(&first(entries[4].range.start), 0), 4);
        }
    }
}
