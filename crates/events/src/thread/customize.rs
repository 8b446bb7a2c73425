//! Tasks with counters of their own, which may be current: what the table of an origin needs, and
//! nothing else. With the feature `origin`.
//!
//! # Safety
//!
//! The unsafe code keeps the customization of the span's task, by invariant 3 of [`super::stack`].
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::changes::Changes;
use super::stack::{Stack, with};
use super::task::Task;
use crate::error::Error;
use crate::event_set::{EventSet, index_of};
use crate::pmu::Event;

impl Task {
    fn change(&mut self, change: impl FnOnce(&Changes)) {
        change(&self.own().changes);
        with(|stack| stack.renew(self));
    }

    /// A task that this one starts: of the same context, with the context's counters. (As in the
    /// origin, a clone of a clone is a clone of the parent, and the children of a task with all
    /// counters disabled have them disabled, too.)
    #[must_use]
    pub fn inherit(&self, id: u64) -> Self {
        let mut child = Self::new(self.context(), id);
        if self.own.as_deref().is_some_and(|own| own.changes.disabled.load(Ordering::Relaxed)) {
            child.own().changes.disabled.store(true, Ordering::Relaxed);
        }
        child
    }

    /// Whether a thread may go from one task to the other without reading counters: same context,
    /// same events enabled, neither pinned.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        let set = |task: &Self| match task.own.as_deref() {
            _ if task.context().is_exact() => None,
            None => Some(task.context().set()),
            Some(own) if own.changes.pinned.load(Ordering::Relaxed) => None,
            Some(own) => Some(own.set(task.context().set())),
        };
        ptr::eq(self.context(), other.context()) && set(self).is_some() && set(self) == set(other)
    }

    /// Keeps the task's counts apart: from now on every switch from or to the task reads the
    /// counters, and also adds to the task's own counts.
    pub fn pin(&mut self) {
        self.change(|own| own.pinned.store(true, Ordering::Relaxed));
    }

    /// Undoes [`Task::pin`]; the task's own counts keep their values.
    pub fn unpin(&mut self) {
        self.change(|own| own.pinned.store(false, Ordering::Relaxed));
    }

    /// Stops all counters for this task. Once they are enabled again, the task is equivalent to the
    /// same tasks as before.
    pub fn disable_all(&mut self) {
        self.change(|own| own.disabled.store(true, Ordering::Relaxed));
    }

    /// Starts all counters for this task.
    pub fn enable_all(&mut self) {
        self.change(|own| own.disabled.store(false, Ordering::Relaxed));
    }

    /// Counts one more event for this task alone, in [`Task::counts`]. Its context does not count
    /// the event unless it did before.
    ///
    /// # Errors
    ///
    /// If the event is counted already, or there is no room for the event or for the set of events
    /// with it.
    pub fn add(&mut self, event: Event) -> Result<(), Error> {
        self.set_counted(event, true)
    }

    /// Stops one event for this task alone. Its counts of the event stay with its context.
    ///
    /// # Errors
    ///
    /// If the event is not counted, or there is no room for the set of the other events.
    pub fn remove(&mut self, event: Event) -> Result<(), Error> {
        self.set_counted(event, false)
    }

    /// The events that it counts while its counters are enabled, by index.
    fn mask(&self) -> u64 {
        let shared = self.context().set();
        self.own.as_deref().map_or(shared.mask(), |own| own.changes.mask(shared))
    }

    fn set_counted(&mut self, event: Event, counted: bool) -> Result<(), Error> {
        let (bit, mask) = (1_u64 << index_of(event)?, self.mask());
        if (mask & bit != 0) == counted {
            let event = event.name();
            return Err(if counted { Error::Twice { event } } else { Error::NotCounted { event } });
        }
        EventSet::of(mask ^ bit)?;
        self.change(|own| {
            let (on, off) = if counted { (&own.added, &own.removed) } else { (&own.removed, &own.added) };
            on.fetch_or(bit, Ordering::Relaxed);
            off.fetch_and(!bit, Ordering::Relaxed);
        });
        Ok(())
    }
}

impl Stack {
    /// Has the frames of `task` follow a change of its customization.
    fn renew(&self, task: &mut Task) {
        let (context, id) = (task.context(), task.id());
        let own = task.customization();
        for frame in &self.frames[..self.depth()] {
            if frame.task.get() != id || !frame.context.get().is_some_and(|there| ptr::eq(there, context)) {
                continue;
            }
            let charged = self.charged_own.get();
            let is_top = self.top_frame().is_some_and(|top| ptr::eq(top, frame));
            // SAFETY: invariant 3; the frame owns it still. The clone lives until the span is
            // charged.
            let _until_charged = (!charged.is_null() && is_top).then(|| unsafe {
                Arc::increment_strong_count(charged);
                Arc::from_raw(charged)
            });
            frame.set_own(own);
            if is_top {
                self.charge_top();
            }
        }
    }
}
