//! A task, as far as counting is concerned.
//!
//! Most tasks are *plain*: they count what their context counts and nothing else. Two plain tasks
//! of one context cannot be told apart, so a thread that goes from one to the other just goes on
//! counting. A task is *customized* when it keeps counts itself, or has counters stopped, added or
//! removed for it alone. Memory for that is allocated at the first customization; until then a task
//! is a reference and a number.
//!
//! The origin (Linux 564c2b210add) makes a clone of its parent's counters for every task and
//! exchanges equivalent clones. Here the thread's span takes the place of that clone: it stays
//! where it is, and plain tasks come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::event_set::{EMPTY, EventSet, MAX_EVENTS, SetCell, events};
use crate::ledger::Context;
use crate::pmu::Event;

/// A unit of work that is charged to a [`Context`]: a future, a fiber, a thread, a scope.
///
/// It can be current on any thread, but only on one at a time.
#[derive(Debug)]
pub struct Task {
    context: &'static Context,
    id: u64,
    own: Option<Arc<Customization>>,
}

/// The difference between a task and the others of its context.
#[derive(Debug)]
pub(super) struct Customization {
    pub(super) disabled: AtomicBool,
    pub(super) pinned: AtomicBool,
    /// The events that it counts beside those of its context, and those that it does not count.
    pub(super) added: AtomicU64,
    pub(super) removed: AtomicU64,
    /// The set that it counted last, so that a switch need not look for it.
    last: SetCell,
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

    /// A task that this one starts: of the same context, with the context's counters. (As in the
    /// origin, a clone of a clone is a clone of the parent, and the children of a task with all
    /// counters disabled have them disabled, too.)
    #[must_use]
    pub fn inherit(&self, id: u64) -> Self {
        let mut child = Self::new(self.context, id);
        if self.own.as_deref().is_some_and(|own| own.disabled.load(Ordering::Relaxed)) {
            child.own().disabled.store(true, Ordering::Relaxed);
        }
        child
    }

    /// The context that it is charged to.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Its number.
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
        self.own.as_ref().filter(|own| !own.is_undone())
    }

    /// Its own counts: since it was pinned, since it has its own counters, or all of them in a
    /// context that is [`TaskExact`](crate::Mode::TaskExact), up to its last switch. Once an event
    /// is no longer counted, the counts since the last switch are left out.
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.own.as_deref().map(Customization::read).unwrap_or_default()
    }

    /// [`Task::counts`] as a handle that other threads can read.
    pub fn shared_counts(&mut self) -> TaskCounts {
        TaskCounts(Arc::clone(self.own()))
    }

    /// Whether a thread may go from one task to the other without reading counters: same context,
    /// same events enabled, neither pinned.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let set = |task: &Self| match task.own.as_deref() {
            _ if task.context.is_exact() => None,
            None => Some(task.context.set()),
            Some(own) if own.pinned.load(Ordering::Relaxed) => None,
            Some(own) => Some(own.set(task.context.set())),
        };
        std::ptr::eq(self.context, other.context) && set(self).is_some() && set(self) == set(other)
    }

    /// The events that it counts while its counters are enabled, by index.
    pub(super) fn mask(&self) -> u64 {
        let shared = self.context.set();
        self.own.as_deref().map_or(shared.mask(), |own| own.mask(shared))
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
        Self {
            disabled: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            added: AtomicU64::new(0),
            removed: AtomicU64::new(0),
            last: SetCell::empty(),
            counts: [const { AtomicU64::new(0) }; MAX_EVENTS],
        }
    }

    /// Whether everything about it was taken back.
    fn is_undone(&self) -> bool {
        !self.disabled.load(Ordering::Relaxed)
            && !self.pinned.load(Ordering::Relaxed)
            && self.added.load(Ordering::Relaxed) | self.removed.load(Ordering::Relaxed) == 0
    }

    /// The events that it counts beside those of its context, and those that it does not count.
    pub(super) fn changes(&self) -> (u64, u64) {
        if self.disabled.load(Ordering::Relaxed) {
            return (0, u64::MAX);
        }
        (self.added.load(Ordering::Relaxed), self.removed.load(Ordering::Relaxed))
    }

    fn mask(&self, shared: &EventSet) -> u64 {
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
        // The context may count so many events by now that there is no room for those of the task
        // beside them.
        let Ok(set) = EventSet::of(mask) else { return shared };
        self.last.store(set);
        set
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
