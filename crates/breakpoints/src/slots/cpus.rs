//! The slots that are taken on processors as a whole.
//!
//! # Locking
//!
//! Readers hold the lock of any shard, writers those of all shards, so each reader sees a state
//! between two changes. The locks provide the ordering; the atomics only spare the readers a common
//! lock, so relaxed is enough.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, Ordering};

use super::shard::Shard;
use crate::Cpu;
use crate::request::CLASSES;

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
    /// The greatest of them.
    most: AtomicU32,
}

impl Cpus {
    pub(crate) fn new(cpus: u32) -> Self {
        let slots = || (0..cpus).map(|_| AtomicU32::new(0)).collect();
        Self { classes: std::array::from_fn(|_| Class { slots: slots(), most: AtomicU32::new(0) }) }
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
        self.classes[class].most.load(Ordering::Relaxed)
    }

    /// A processor has `to` slots from now on.
    pub(crate) fn set(&self, _all: &AllLocked<'_>, class: usize, cpu: Cpu, to: u32) {
        self.classes[class].slots[cpu.0 as usize].store(to, Ordering::Relaxed);
        let most = self.each(class).max().unwrap_or(0);
        self.classes[class].most.store(most, Ordering::Relaxed);
    }
}
