//! Profiles of allocations that are being taken, on the keeper's thread.
//!
//! # Weights
//!
//! A sample of `size` bytes was reported with probability `1 - exp(-size / period)`, and stands for
//! the inverse of that many allocations. Profiles that are taken at once share the samples of the
//! finest: each sample has the weight of the period by which it was picked, so all are right.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use dormouse_protocol::profile::{Profile, ProfileKind};
use dormouse_sys::heap::{Heap, Subscription};
use dormouse_sys::own_stack;

use super::listener::{LISTENER, Picked, QUEUE, Record};
use super::live;
use crate::Error;
use crate::mappings::Mappings;
use crate::options::Options;
use crate::sampling::engine::Engine;
use crate::sampling::queue::Queue;
use crate::sampling::sum::Sum;

/// The time between two readings of the queue.
const DRAIN: Duration = Duration::from_millis(50);
/// Records that there is room for: twenty thousand a second.
const RECORDS: usize = 1024;

/// The note on live allocations that were not kept.
const TOO_MANY: &str = "more allocations were there than the table of them has room for: inuse is too low";

/// The sampler of allocations.
#[derive(Debug, Default)]
pub(in crate::sampling) struct Sampler {
    takes: BTreeMap<u64, Take>,
    awake: Option<Awake>,
    mappings: Mappings,
}

/// The allocator, while it reports allocations.
#[derive(Debug)]
struct Awake {
    heap: &'static dyn Heap,
    queue: &'static Queue<Picked>,
    _sample: Box<dyn Subscription>,
    frees: Option<Box<dyn Subscription>>,
}

/// One profile.
#[derive(Debug)]
struct Take {
    sum: Sum,
    /// The samples that the queue, and the table of those that are there, had lost before.
    dropped: u64,
    lost: u64,
    /// A part of an object, which is left of rounded weights.
    rest: f64,
    /// By index in the table: the latest sample that had it. `None` if live allocations are not
    /// requested.
    live: Option<HashMap<u32, Kept>>,
}

#[derive(Debug)]
struct Kept {
    address: usize,
    row: u32,
    objects: u64,
    bytes: u64,
}

impl Engine for Sampler {
    fn kind(&self) -> ProfileKind {
        ProfileKind::Alloc
    }

    fn start(&mut self, number: u64, options: &Options, note: Option<&str>) -> Result<(), Error> {
        own_stack::learn();
        let unavailable = |why: String| Error::Unavailable(why);
        let Some(heap) = options.heap else {
            return Err(unavailable(
                "the service does not use dormouse::Alloc as its global allocator".into(),
            ));
        };
        if let Some(why) = heap.why_not() {
            return Err(unavailable(why));
        }
        self.drain();
        let period = options.bytes.max(1);
        let finest = self.takes.values().map(|take| take.sum.period()).fold(period, u64::min);
        let awake = match &mut self.awake {
            Some(awake) => awake,
            none => {
                let queue = QUEUE.begin(RECORDS).map_err(|error| unavailable(error.to_string()))?;
                heap.set_period(finest);
                let sample = heap.sample(&LISTENER).map_err(unavailable)?;
                none.insert(Awake { heap, queue, _sample: sample, frees: None })
            }
        };
        if options.live && awake.frees.is_none() {
            let frees = awake.heap.watch_frees().map_err(unavailable);
            match frees {
                Ok(frees) => awake.frees = Some(frees),
                Err(error) => {
                    self.sleep_if_empty();
                    return Err(error);
                }
            }
            // Frees are reported from now on, so no entry can become stale.
            live::begin();
        }
        awake.heap.set_period(finest);
        let (dropped, lost) = (awake.queue.dropped(), live::lost());
        let live = options.live.then(HashMap::new);
        let mut sum = Sum::new(ProfileKind::Alloc, period);
        if let Some(note) = note {
            sum.note(note);
        }
        let take = Take { sum, dropped, lost, rest: 0.0, live };
        self.look_at_mappings();
        self.takes.insert(number, take);
        Ok(())
    }

    fn size(&self, number: u64) -> usize {
        self.takes.get(&number).map_or(0, |take| take.sum.size())
    }

    fn read(&mut self, number: u64) -> Option<Profile> {
        self.drain();
        self.look_at_mappings();
        let dropped = self.awake.as_ref().map_or(0, |awake| awake.queue.dropped());
        let take = self.takes.get_mut(&number)?;
        Some(take.read(dropped, &self.mappings))
    }

    fn end(&mut self, number: u64) {
        self.drain();
        self.takes.remove(&number);
        self.sleep_if_empty();
        let Some(awake) = &mut self.awake else { return };
        if !self.takes.values().any(|take| take.live.is_some()) {
            live::end();
            awake.frees = None;
        }
        let finest = self.takes.values().map(|take| take.sum.period()).min();
        awake.heap.set_period(finest.unwrap_or(u64::MAX));
    }

    fn step(&mut self) -> Option<Duration> {
        self.drain();
        (!self.is_empty()).then_some(DRAIN)
    }
}

impl Sampler {
    fn look_at_mappings(&mut self) {
        self.mappings.refresh();
        self.takes.values_mut().for_each(|take| take.sum.replace(self.mappings.replaced()));
    }

    /// Whether nobody profiles.
    pub(in crate::sampling) fn is_empty(&self) -> bool {
        self.takes.is_empty()
    }

    fn sleep_if_empty(&mut self) {
        if self.takes.is_empty() {
            live::end();
            self.awake = None;
        }
    }

    fn drain(&mut self) {
        let Some(awake) = &self.awake else { return };
        let takes = &mut self.takes;
        awake.queue.drain(|record| takes.values_mut().for_each(|take| take.add(record)));
    }
}

impl Take {
    fn add(&mut self, record: &Record) {
        let Picked { tid, live, allocation } = record.of_kind;
        let weight = weight(allocation.size, allocation.period);
        // Parts of objects are handed on to the next sample, so that they are not lost.
        let objects = (weight + self.rest).floor();
        self.rest += weight - objects;
        let (objects, bytes) = (objects as u64, (weight * allocation.size as f64).round() as u64);
        let row = self.sum.add(tid, record, [objects, bytes, 0, 0]);
        if let (Some(kept), Some(place)) = (&mut self.live, live) {
            // One that had the place before has been freed.
            if kept.try_reserve(1).is_ok() {
                kept.insert(place, Kept { address: allocation.place, row, objects, bytes });
            } else {
                kept.remove(&place);
                self.sum.note(TOO_MANY);
            }
        }
    }

    fn read(&mut self, dropped: u64, mappings: &Mappings) -> Profile {
        let dropped = dropped - self.dropped;
        if dropped > 0 {
            self.sum.note(
                "allocations came faster than samples are read: what found no room is missing; a longer period \
                 loses nothing",
            );
        }
        let lost = live::lost() - self.lost;
        if lost > 0 && self.live.is_some() {
            self.sum.note(TOO_MANY);
        }
        self.sum.coverage.dropped = dropped;
        let live = &self.live;
        let profile = self.sum.read(mappings, |rows| {
            for (&place, kept) in live.iter().flatten() {
                if live::has(place, kept.address) {
                    let [_, _, objects, bytes] = &mut rows[kept.row as usize].values;
                    *objects += kept.objects;
                    *bytes += kept.bytes;
                }
            }
        });
        Profile { live: live.is_some(), ..profile }
    }
}

/// How many allocations of a size a sample stands for.
fn weight(size: usize, period: u64) -> f64 {
    let odds = -(-(size as f64) / period as f64).exp_m1();
    if odds > 0.0 { 1.0 / odds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::weight;

    #[test]
    fn weights_are_inverse_odds() {
        assert!((weight(1, 512) - 512.5).abs() < 0.01);
        assert!((weight(512, 512) - 1.0 / (1.0 - 1.0 / std::f64::consts::E)).abs() < 1e-9);
        assert!((weight(1 << 20, 512) - 1.0).abs() < 1e-9);
    }
}
