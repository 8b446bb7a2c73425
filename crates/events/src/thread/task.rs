//! A task, as far as counting is concerned.
//!
//! Most tasks are *plain*: they count what their context counts and nothing else. Two plain tasks
//! of one context cannot be told apart, so a thread that goes from one to the other just goes on
//! counting. A task is *customized* when it keeps counts itself, or (with the feature `origin`) has
//! counters stopped, added or removed for it alone. Memory for that is allocated at the first
//! customization; until then a task is a reference and a number.
//!
//! The origin (Linux 564c2b210add) makes a clone of its parent's counters for every task and
//! exchanges equivalent clones. Here the thread's span takes the place of that clone: it stays
//! where it is, and plain tasks come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::changes::Changes;
use crate::event_set::{EventSet, MAX_EVENTS, events};
use crate::ledger::Context;
use crate::pmu::Event;

/// A unit of work that is charged to a [`Context`]: a future, a fiber, a thread, a scope.
///
/// It can be current on any thread, but only on one at a time.
#[derive(Debug)]
pub struct Task {
    context: &'static Context,
    id: u64,
    pub(super) own: Option<Arc<Customization>>,
}

/// The difference between a task and the others of its context.
#[derive(Debug)]
pub(super) struct Customization {
    pub(super) changes: Changes,
    counts: [AtomicU64; MAX_EVENTS],
}

/// A task's own counts. They can be read on any thread, also after the task has ended.
#[derive(Debug, Clone)]
pub struct TaskCounts(Arc<Customization>);

impl Task {
    /// Task number `id` of `context`. The number must not be 0, which means no task: a change that
    /// begins to count would not find such a task while it runs.
    pub const fn new(context: &'static Context, id: u64) -> Self {
        Self { context, id, own: None }
    }

    /// The context that the task is charged to.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// The task's number.
    pub fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn own(&mut self) -> &Arc<Customization> {
        self.own.get_or_insert_with(|| Arc::new(Customization::new()))
    }

    #[inline]
    pub(super) fn is_customized(&self) -> bool {
        self.own.is_some()
    }

    /// Whether it cannot be told apart from other tasks of its context.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.own.is_none() && !self.context.is_exact()
    }

    /// Its customization, if it has one now. In a context whose tasks count for themselves, this
    /// call creates it.
    pub(super) fn customization(&mut self) -> Option<&Arc<Customization>> {
        if self.context.is_exact() {
            return Some(self.own());
        }
        self.own.as_ref().filter(|own| own.changes.are_some())
    }

    /// The task's own counts: since it was customized, or all of them in a context that is
    /// [`TaskExact`](crate::Mode::TaskExact), up to its last switch. Once an event is no longer
    /// counted, the counts since the last switch are left out.
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.own.as_deref().map(Customization::read).unwrap_or_default()
    }

    /// [`Task::counts`] as a handle that other threads can read.
    pub fn shared_counts(&mut self) -> TaskCounts {
        TaskCounts(Arc::clone(self.own()))
    }
}

impl TaskCounts {
    /// See [`Task::counts`].
    pub fn read(&self) -> Vec<(Event, u64)> {
        self.0.read()
    }
}

impl Customization {
    fn new() -> Self {
        Self { changes: Changes::new(), counts: [const { AtomicU64::new(0) }; MAX_EVENTS] }
    }

    /// The events that the task counts now, whose context counts those of `shared`.
    #[inline]
    pub(super) fn set(&self, shared: &'static EventSet) -> &'static EventSet {
        self.changes.set(shared)
    }

    pub(super) fn charge(&self, index: usize, n: u64) {
        self.counts[index].fetch_add(n, Ordering::Relaxed);
    }

    fn read(&self) -> Vec<(Event, u64)> {
        events(u64::MAX)
            .map(|(index, event)| (event, self.counts[index].load(Ordering::Relaxed)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }
}
