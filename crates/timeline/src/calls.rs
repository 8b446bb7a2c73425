//! Functions of which one end has come and the other is to follow, on whichever thread.

use std::collections::BTreeSet;

use crate::timeline::TimelineEvent;

/// A function in a task: its event, by thread and index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Call {
    pub(crate) task: u64,
    pub(crate) probe: u32,
    pub(crate) begin: u64,
    pub(crate) thread: usize,
    pub(crate) index: u32,
}

impl Call {
    pub(crate) fn of(event: &TimelineEvent, thread: usize, index: u32) -> Self {
        let TimelineEvent { task, probe, begin_ns: begin, .. } = *event;
        Self { task, probe, begin, thread, index }
    }

    /// Whether it began at `begin`, where one of the two stamps was computed from the `elapsed`
    /// ticks to its end: within a microsecond, and the error of the rates of two clocks, of which
    /// one may have been measured over a millisecond, and the other is steered.
    pub(crate) fn has_begun(&self, begin: u64, elapsed: u64, tsc_hz: f64) -> bool {
        self.begin.abs_diff(begin) <= (tsc_hz / 1e6) as u64 + elapsed / 512
    }
}

/// Calls by task and probe, in the order of their begins.
#[derive(Debug, Default)]
pub(crate) struct Calls(BTreeSet<Call>);

impl Calls {
    pub(crate) fn add(&mut self, call: Call) {
        self.0.insert(call);
    }

    pub(crate) fn remove(&mut self, call: &Call) {
        self.0.remove(call);
    }

    /// The call of that task and probe which began nearest to `begin`.
    pub(crate) fn nearest(&self, task: u64, probe: u32, begin: u64) -> Option<Call> {
        let at = Call { task, probe, begin, thread: usize::MAX, index: u32::MAX };
        let (before, after) = (self.0.range(..=at).next_back(), self.0.range(at..).next());
        let both = [before, after].into_iter().flatten();
        let of_it = both.filter(|call| (call.task, call.probe) == (task, probe));
        of_it.min_by_key(|call| call.begin.abs_diff(begin)).copied()
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = Call> {
        self.0.into_iter()
    }
}
