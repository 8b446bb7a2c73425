//! The readings from which a span is charged, and the delta since then.

use std::sync::atomic::Ordering::Relaxed;

use crate::event_set::{EMPTY, EventSet, MAX_COUNTERS, Readings, SetCell};
use crate::primitive::{AtomicU32, AtomicU64, const_unless_loom, zeros};

/// All slots have a reading.
pub(crate) const ALL: u32 = u32::MAX;

/// From where a span is to be charged.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    pub(crate) set: &'static EventSet,
    /// The slots that have a reading, by bits.
    pub(crate) known: u32,
    /// The events that the context counts, by index. The others are the task's alone.
    pub(crate) shared: u64,
    /// Up to here the context is charged.
    pub(crate) readings: Readings,
    /// Up to these readings the owner has charged the task's own counts and the contexts around it,
    /// which no other thread can find. `None`: up to `readings`.
    pub(crate) begun: Option<Readings>,
}

/// The count of one event since a baseline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delta {
    /// The index of the event.
    pub(crate) index: usize,
    /// Since the context was charged last.
    pub(crate) n: u64,
    /// Since the owner charged its own part last: at least `n`.
    pub(crate) whole: u64,
    pub(crate) is_shared: bool,
}

impl Baseline {
    pub(crate) const NOTHING: Self =
        Self { set: &EMPTY, known: 0, shared: 0, readings: [0; MAX_COUNTERS], begun: None };

    /// The counts up to the `known` slots of `now`.
    #[inline]
    pub(crate) fn deltas(&self, now: &Readings, known: u32) -> impl Iterator<Item = Delta> {
        let known = self.known & known;
        let begun = self.begun.as_ref().unwrap_or(&self.readings);
        let slots = self.set.indices().enumerate().filter(move |(slot, _)| known & 1 << slot != 0);
        slots.map(move |(slot, index)| Delta {
            index,
            // Saturating: a fork child's counters begin again at zero, and the owner's clock may be
            // a little ahead of the kernel's answer to another thread.
            n: now[slot].saturating_sub(self.readings[slot]),
            whole: now[slot].saturating_sub(begun[slot]),
            is_shared: self.shared & 1 << index != 0,
        })
    }

    /// The baseline that follows when somebody else charges this one up to the `known` slots of
    /// `now` and `set` is counted from here on, from `fresh` readings where the old set lacks the
    /// event.
    pub(crate) fn followed_by(
        &self,
        (now, known): (&Readings, u32),
        set: &'static EventSet,
        shared: u64,
        (fresh, fresh_known): (&Readings, u32),
    ) -> Self {
        let mut next = Self { set, known: fresh_known, shared, readings: *fresh, begun: Some(*fresh) };
        for (slot, index) in set.indices().enumerate() {
            let Some(old) = self.set.indices().position(|there| there == index) else { continue };
            let (bit, of_index) = (1 << slot, 1 << index);
            let begun = self.begun.as_ref().unwrap_or(&self.readings)[old];
            if self.known & known & 1 << old != 0 {
                // An event that both sets count goes on from one reading.
                (next.readings[slot], next.known) = (now[old], next.known | bit);
            } else if self.known & 1 << old != 0 && (self.shared ^ shared) & of_index == 0 {
                // A counter that cannot be read from outside: the owner charges it as if nothing
                // had changed.
                (next.readings[slot], next.known) = (self.readings[old], next.known | bit);
            } else {
                continue;
            }
            if let Some(next) = &mut next.begun {
                next[slot] = begun;
            }
        }
        next
    }
}

/// A baseline where other threads can see it.
#[derive(Debug)]
pub(super) struct BaselineCells {
    pub(super) set: SetCell,
    pub(super) known: AtomicU32,
    pub(super) shared: AtomicU64,
    pub(super) readings: [AtomicU64; MAX_COUNTERS],
}

impl BaselineCells {
    const_unless_loom! {
        pub(super) const fn new() -> Self {
            Self {
                set: SetCell::unset(),
                known: AtomicU32::new(0),
                shared: AtomicU64::new(0),
                readings: zeros!(),
            }
        }
    }

    #[inline]
    pub(super) fn store(&self, set: &'static EventSet, known: u32, readings: &Readings) {
        for (slot, reading) in self.readings.iter().zip(readings).take(set.len()) {
            slot.store(*reading, Relaxed);
        }
        self.known.store(known, Relaxed);
        self.set.store(set);
    }

    /// The baseline of a task, which only if it is changed shares less than everything with its
    /// context.
    pub(super) fn load(&self, is_changed: bool) -> Baseline {
        let set = self.set.load();
        let shared = if is_changed { self.shared.load(Relaxed) } else { u64::MAX };
        let readings = load(&self.readings, set);
        Baseline { set, known: self.known.load(Relaxed), shared, readings, begun: None }
    }
}

/// The words of the slots that `set` has.
pub(super) fn load(words: &[AtomicU64; MAX_COUNTERS], set: &EventSet) -> Readings {
    let mut readings = Readings::default();
    for (reading, word) in readings.iter_mut().zip(words).take(set.len()) {
        *reading = word.load(Relaxed);
    }
    readings
}
