//! Counters stopped, added or removed for one task alone: with the feature `origin`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::event_set::{EMPTY, EventSet, SetCell};

/// The difference between the events of a task and those of its context.
#[derive(Debug)]
pub(super) struct Changes {
    pub(super) disabled: AtomicBool,
    pub(super) pinned: AtomicBool,
    /// The events that it counts beside those of its context, and those that it does not count.
    pub(super) added: AtomicU64,
    pub(super) removed: AtomicU64,
    /// The set that it counted last, so that a switch need not look for it.
    last: SetCell,
}

impl Changes {
    pub(super) fn new() -> Self {
        Self {
            disabled: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            added: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            last: SetCell::empty(),
        }
    }

    /// Whether not all of them were taken back.
    pub(super) fn are_some(&self) -> bool {
        self.disabled.load(Ordering::Relaxed)
            || self.pinned.load(Ordering::Relaxed)
            || self.added.load(Ordering::Relaxed) | self.removed.load(Ordering::Relaxed) != 0
    }

    /// The events that the task counts beside those of its context, and those that it does not
    /// count.
    pub(super) fn masks(&self) -> (u64, u64) {
        if self.disabled.load(Ordering::Relaxed) {
            return (0, u64::MAX);
        }
        (self.added.load(Ordering::Relaxed), self.removed.load(Ordering::Relaxed))
    }

    pub(super) fn mask(&self, shared: &EventSet) -> u64 {
        (shared.mask() | self.added.load(Ordering::Relaxed)) & !self.removed.load(Ordering::Relaxed)
    }

    /// The events that the task counts now, whose context counts those of `shared`.
    pub(super) fn set(&self, shared: &'static EventSet) -> &'static EventSet {
        if self.disabled.load(Ordering::Relaxed) {
            return &EMPTY;
        }
        let (mask, last) = (self.mask(shared), self.last.load());
        if mask == shared.mask() {
            return shared;
        }
        if mask == last.mask() {
            return last;
        }
        // Without room for the set, the task counts what its context counts.
        let Ok(set) = EventSet::of(mask) else { return shared };
        self.last.store(set);
        set
    }
}
