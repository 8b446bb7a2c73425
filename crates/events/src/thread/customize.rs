//! Counters stopped, added or removed for one task, which may be current.

use std::sync::atomic::Ordering;

use super::stack::with;
use super::task::{Customization, Task};
use crate::error::Error;
use crate::event_set::{EventSet, index_of};
use crate::pmu::Event;

impl Task {
    fn customize(&mut self, change: impl FnOnce(&Customization)) {
        change(self.own());
        with(|stack| stack.renew(self));
    }

    /// Keeps its counts apart: from now on every switch from or to the task reads the counters and
    /// adds to counts of its own, too.
    pub fn pin(&mut self) {
        self.customize(|own| own.pinned.store(true, Ordering::Relaxed));
    }

    /// Undoes [`Task::pin`]; the task's own counts keep their values.
    pub fn unpin(&mut self) {
        self.customize(|own| own.pinned.store(false, Ordering::Relaxed));
    }

    /// Stops all counters for this task. Once they are enabled again, the task is equivalent to the
    /// same tasks as before.
    pub fn disable_all(&mut self) {
        self.customize(|own| own.disabled.store(true, Ordering::Relaxed));
    }

    /// Starts all counters for this task.
    pub fn enable_all(&mut self) {
        self.customize(|own| own.disabled.store(false, Ordering::Relaxed));
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

    fn set_counted(&mut self, event: Event, counted: bool) -> Result<(), Error> {
        let (bit, mask) = (1_u64 << index_of(event)?, self.mask());
        if (mask & bit != 0) == counted {
            let event = event.name();
            return Err(if counted { Error::Twice { event } } else { Error::NotCounted { event } });
        }
        EventSet::of(mask ^ bit)?;
        self.customize(|own| {
            let (on, off) = if counted { (&own.added, &own.removed) } else { (&own.removed, &own.added) };
            on.fetch_or(bit, Ordering::Relaxed);
            off.fetch_and(!bit, Ordering::Relaxed);
        });
        Ok(())
    }
}
