//! A span as another thread sees it, and the summary that its owner uses.

use super::baseline::Baseline;
use crate::generation::Generation;

/// The delta of a span, where it takes one reading at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortcut {
    /// The span counts no event.
    Empty,
    /// The span counts task-clock alone, since this reading.
    Clock {
        /// The reading.
        since: u64,
    },
    /// No shortcut applies: the span counts other events than task-clock alone, or what is counted
    /// has changed since it began.
    FullRead,
}

/// The counts of a thread in spans that are over, which it has not charged.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pending {
    /// The number of the context.
    pub(crate) context: u32,
    /// How many tasks became current, and how many of these in a scope.
    pub(crate) entries: u64,
    pub(crate) scopes: u64,
    /// CPU time.
    pub(crate) ns: u64,
}

/// A span as it was when another thread looked.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(super) number: u64,
    pub(super) rebased: u64,
    /// The number of the context, 0 if the span is idle.
    pub(crate) context: u32,
    /// The events that the task counts beside those of its context, and those that it does not
    /// count.
    pub(crate) added: u64,
    pub(crate) removed: u64,
    pub(crate) pending: Pending,
    pub(crate) generation: Generation,
    pub(crate) baseline: Baseline,
}

impl Snapshot {
    /// Whether nothing was counted when the span began, nor since. Such a span is the same with a
    /// task and without one: only the thread's block shows whether there is a task.
    pub(crate) fn was_never_counted(&self) -> bool {
        self.generation == Generation::ASLEEP && self.baseline.set.is_empty()
    }
}
