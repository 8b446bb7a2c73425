//! The slots of the processors themselves.
//!
//! # Locking
//!
//! Read under any shard's lock, changed under those of all shards: whoever holds one sees a state between
//! two changes. The locks order; the atomics only spare the readers a lock in common, so relaxed is enough.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::request::CLASSES;
use crate::shard::Shard;
use crate::{Cpu, MOST_SLOTS};

/// The locks of all shards.
pub(crate) type AllLocked<'a> = [MutexGuard<'a, Shard>];

/// Slots by processor.
#[derive(Debug)]
pub(crate) struct Cpus {
    classes: [Class; CLASSES],
}

#[derive(Debug)]
struct Class {
    slots: Box<[AtomicU32]>,
    /// Processors by slots, as [`Histogram`](crate::histogram::Histogram), readable by all.
    histogram: [AtomicU32; MOST_SLOTS as usize],
}

impl Cpus {
    pub(crate) fn new(cpus: u32) -> Self {
        Self {
            classes: std::array::from_fn(|_| Class {
                slots: (0..cpus).map(|_| AtomicU32::new(0)).collect(),
                histogram: Default::default(),
            }),
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.classes[0].slots.len() as u32
    }

    /// Slots of one processor.
    pub(crate) fn on(&self, class: usize, cpu: Cpu) -> u32 {
        self.classes[class].slots[cpu.0 as usize].load(Ordering::Relaxed)
    }

    /// Slots of all processors, in order.
    pub(crate) fn each(&self, class: usize) -> impl Iterator<Item = u32> {
        self.classes[class].slots.iter().map(|slots| slots.load(Ordering::Relaxed))
    }

    /// The most slots of any processor.
    pub(crate) fn most(&self, class: usize) -> u32 {
        let histogram = &self.classes[class].histogram;
        let index = histogram.iter().rposition(|count| count.load(Ordering::Relaxed) > 0);
        index.map_or(0, |index| index as u32 + 1)
    }

    /// A processor has `to` slots from now on.
    pub(crate) fn set(&self, _all: &AllLocked<'_>, class: usize, cpu: Cpu, to: u32) {
        let class = &self.classes[class];
        let from = class.slots[cpu.0 as usize].swap(to, Ordering::Relaxed);
        if from > 0 {
            class.histogram[from as usize - 1].fetch_sub(1, Ordering::Relaxed);
        }
        if to > 0 {
            class.histogram[to as usize - 1].fetch_add(1, Ordering::Relaxed);
        }
    }
}
