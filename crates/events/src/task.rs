//! A task, as far as counting is concerned.
//!
//! Most tasks count what their context counts and nothing else: two of them cannot be told apart, so a thread that goes
//! from one to the other just goes on counting. What a task has of its own (its own counts, counters stopped or
//! changed for it alone) is made when it is first asked for; until then a task is a reference and a number.
//!
//! The origin (Linux 564c2b210add) makes a clone of its parent's counters for every task and exchanges clones that are
//! equivalent. Here the clone that would be exchanged is the thread's: it stays where it is, and tasks without one of
//! their own come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::account::{self, MAX_EVENTS};
use crate::context::Context;
use crate::error::Error;
use crate::layout::{Layout, NOTHING};
use crate::pmu::Event;
use crate::switch;

/// A unit of work that is charged to a [`Context`]: a future, a fiber, a thread, a scope.
///
/// It can be current on any thread, on one at a time.
#[derive(Debug)]
pub struct Task {
    context: &'static Context,
    id: u64,
    own: Option<Arc<Own>>,
}

/// What a task has that others of its context have not.
#[derive(Debug)]
pub(crate) struct Own {
    disabled: AtomicBool,
    pinned: AtomicBool,
    /// Events that it counts beside those of its context, and those that it does not count.
    more: AtomicU64,
    less: AtomicU64,
    /// The set that it has counted last, so that a switch need not look for it.
    layout: AtomicPtr<Layout>,
    counts: [AtomicU64; MAX_EVENTS],
}

/// A task's own counts, to be read from anywhere, also when the task is gone.
#[derive(Debug, Clone)]
pub struct TaskCounts(Arc<Own>);

impl Task {
    /// Task number `id` of `context`; not 0, which says that there is none: a task that had it would not be found by who
    /// begins to count while it runs.
    pub const fn new(context: &'static Context, id: u64) -> Self {
        Self { context, id, own: None }
    }

    /// A task that this one starts: of the same context, with the context's counters. (As in the origin, a clone
    /// of a clone is a clone of the parent. A task that has all disabled has children that have, too.)
    #[must_use]
    pub fn inherit(&self, id: u64) -> Self {
        let mut child = Self::new(self.context, id);
        if self.own.as_deref().is_some_and(|own| own.disabled.load(Ordering::Relaxed)) {
            child.own().disabled.store(true, Ordering::Relaxed);
        }
        child
    }

    /// What it is charged to.
    pub fn context(&self) -> &'static Context {
        self.context
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn own(&mut self) -> &Own {
        self.own.get_or_insert_with(|| Arc::new(Own::new()))
    }

    /// Whether it cannot be told apart from others of its context.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.own.is_none() && !self.context.is_exact()
    }

    /// As [`Task::is_plain`], where it is known that the context's tasks do not count for themselves.
    #[inline]
    pub(crate) fn has_nothing(&self) -> bool {
        self.own.is_none()
    }

    /// What is to be current with it: nothing if it cannot be told apart from others of its context. A context whose tasks
    /// count for themselves gives it its own counts here.
    #[inline]
    pub(crate) fn special(&mut self) -> Option<&Arc<Own>> {
        if self.own.is_none() && !self.context.is_exact() {
            return None;
        }
        self.specially()
    }

    #[cold]
    fn specially(&mut self) -> Option<&Arc<Own>> {
        let exact = self.context.is_exact();
        if exact {
            self.own();
        }
        self.own.as_ref().filter(|own| exact || !own.is_plain())
    }

    fn change(&mut self, change: impl FnOnce(&Own)) {
        change(self.own());
        switch::renew(self);
    }

    /// Keeps its counts apart: from now on every switch from or to it reads, and what it counts is its own, too.
    pub fn pin(&mut self) {
        self.change(|own| own.pinned.store(true, Ordering::Relaxed));
    }

    /// Undoes [`Task::pin`]; its own counts stay as they are.
    pub fn unpin(&mut self) {
        self.change(|own| own.pinned.store(false, Ordering::Relaxed));
    }

    /// Stops all counters for this task. Nothing else changes: with all enabled again it is equivalent to what it was
    /// equivalent to.
    pub fn disable_all(&mut self) {
        self.change(|own| own.disabled.store(true, Ordering::Relaxed));
    }

    /// Starts all counters for this task.
    pub fn enable_all(&mut self) {
        self.change(|own| own.disabled.store(false, Ordering::Relaxed));
    }

    /// One event more, for this task alone: counted in [`Task::counts`], and not in its context unless that
    /// counts it anyway.
    ///
    /// # Errors
    ///
    /// If it is counted already, or there is no room for the event or for the set that comes of it.
    pub fn add(&mut self, event: Event) -> Result<(), Error> {
        let bit = 1 << account::of(event)?;
        Layout::of(self.layout_with(bit, 0).ok_or(Error::Twice { event: event.name() })?)?;
        self.change(|own| {
            own.more.fetch_or(bit, Ordering::Relaxed);
            own.less.fetch_and(!bit, Ordering::Relaxed);
        });
        Ok(())
    }

    /// One event less, for this task alone. What it has counted of it stays with its context.
    ///
    /// # Errors
    ///
    /// If it is not counted, or there is no room for the set that is left.
    pub fn remove(&mut self, event: Event) -> Result<(), Error> {
        let bit = 1 << account::of(event)?;
        Layout::of(self.layout_with(0, bit).ok_or(Error::NotCounted { event: event.name() })?)?;
        self.change(|own| {
            own.less.fetch_or(bit, Ordering::Relaxed);
            own.more.fetch_and(!bit, Ordering::Relaxed);
        });
        Ok(())
    }

    /// The set that it counts with `more` and without `less`; `None` if that would change nothing.
    fn layout_with(&self, more: u64, less: u64) -> Option<u64> {
        let now =
            self.own.as_deref().map_or(self.context.layout().mask(), |own| own.mask(self.context.layout()));
        let then = (now | more) & !less;
        (then != now).then_some(then)
    }

    /// What it has counted itself: since it was pinned, since it has counters of its own, or all of it in a context
    /// that is [`TaskExact`](crate::Mode::TaskExact). What it counts now is in it from its next switch on; of an event
    /// that nobody counts any more, what it has counted since its last switch is left out.
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.own.as_deref().map(Own::read).unwrap_or_default()
    }

    /// The same, for others to read.
    pub fn shared_counts(&mut self) -> TaskCounts {
        self.own();
        TaskCounts(Arc::clone(self.own.get_or_insert_with(|| Arc::new(Own::new()))))
    }

    /// Whether a thread may go from one to the other and go on counting as if nothing had happened: same context, same
    /// events enabled, neither pinned.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let set = |task: &Self| match task.own.as_deref() {
            _ if task.context.is_exact() => None,
            None => Some(task.context.layout().mask()),
            Some(own) if own.pinned.load(Ordering::Relaxed) => None,
            Some(own) => Some(own.layout(task.context.layout()).mask()),
        };
        std::ptr::eq(self.context, other.context) && set(self).is_some() && set(self) == set(other)
    }
}

impl TaskCounts {
    /// As of [`Task::counts`].
    pub fn read(&self) -> Vec<(Event, u64)> {
        self.0.read()
    }
}

impl Own {
    fn new() -> Self {
        Self {
            disabled: AtomicBool::new(false),
            pinned: AtomicBool::new(false),
            more: AtomicU64::new(0),
            less: AtomicU64::new(0),
            layout: AtomicPtr::new((&raw const NOTHING).cast_mut()),
            counts: [const { AtomicU64::new(0) }; MAX_EVENTS],
        }
    }

    fn is_plain(&self) -> bool {
        !self.disabled.load(Ordering::Relaxed)
            && !self.pinned.load(Ordering::Relaxed)
            && self.more.load(Ordering::Relaxed) | self.less.load(Ordering::Relaxed) == 0
    }

    /// What it counts beside what its context does, and what it does not count.
    pub(crate) fn set(&self) -> (u64, u64) {
        if self.disabled.load(Ordering::Relaxed) {
            return (0, u64::MAX);
        }
        (self.more.load(Ordering::Relaxed), self.less.load(Ordering::Relaxed))
    }

    fn mask(&self, context: &Layout) -> u64 {
        (context.mask() | self.more.load(Ordering::Relaxed)) & !self.less.load(Ordering::Relaxed)
    }

    /// What the task counts now, of a context that counts `context`.
    pub(crate) fn layout(&self, context: &'static Layout) -> &'static Layout {
        if self.disabled.load(Ordering::Relaxed) {
            return &NOTHING;
        }
        if self.more.load(Ordering::Relaxed) | self.less.load(Ordering::Relaxed) == 0 {
            return context;
        }
        let mask = self.mask(context);
        let last = Layout::behind(&self.layout);
        if last.mask() == mask {
            return last;
        }
        // Its context may count so much more by now that there is no room for both.
        let Ok(layout) = Layout::of(mask) else { return context };
        // Pairs with the load in `behind`.
        self.layout.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Release);
        layout
    }

    pub(crate) fn charge(&self, account: usize, n: u64) {
        self.counts[account].fetch_add(n, Ordering::Relaxed);
    }

    fn read(&self) -> Vec<(Event, u64)> {
        account::events(u64::MAX)
            .map(|(account, event)| (event, self.counts[account].load(Ordering::Relaxed)))
            .filter(|(_, n)| *n > 0)
            .collect()
    }
}
