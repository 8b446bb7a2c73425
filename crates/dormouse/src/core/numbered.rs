//! Tasks that are only numbers: for C, which has neither guards nor destructors.
//!
//! A caller may copy the numbers, and use them after the task's end. Then the task's group has one
//! task less than there are, and no other task is affected.

use dormouse_events::Mark;
use dormouse_waits::{TaskEnd, TimesId, Who};

use crate::core::ends::{Ending, TaskOutcome, outcome_of};
use crate::core::group::Group;
use crate::core::own_probes::task_traced;
use crate::core::task::ends_as;

/// A task that is only numbers, or an entry of one on a thread.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NumberedTask {
    /// The number of the task.
    pub number: u64,
    /// Where its times are, or those of the entry: [`TimesId::bits`].
    pub times: u32,
}

impl NumberedTask {
    /// How many bits of [`NumberedTask::times`] are used.
    pub const TIMES_BITS: u32 = TimesId::BITS;

    /// Begins a task of `group`. It is a part of another task if `is_part`, or if its group is
    /// current.
    #[inline]
    pub fn begin(group: Group, is_part: bool) -> Self {
        let number = group.begin_task(is_part);
        let times = TimesId::begun(Who { task: number, group: group.id() });
        task_traced(number, group.id(), || times.trace(number));
        Self { number, times: times.bits() }
    }

    /// Begins a task and enters it; `None` if that is impossible, for example in too deep a
    /// nesting: then the task has ended, and its age is no latency.
    #[inline]
    pub fn begin_entered(group: Group, is_part: bool) -> Option<(Mark, Self)> {
        let task = Self::begin(group, is_part);
        let entered = task.enter(group);
        if entered.is_none() {
            task.end_by(group, |_, _| TaskEnd::NoRequest);
        }
        entered
    }

    /// Enters the task on this thread; `None` if that is impossible. Returns the entry for
    /// [`NumberedTask::leave`].
    #[inline]
    pub fn enter(self, group: Group) -> Option<(Mark, Self)> {
        // The time of a stretch holds that of its switches.
        let times = self.times().enter(Who { task: self.number, group: group.id() });
        let mark = group.enter_task(self.number);
        if mark.is_none() {
            times.leave(self.number);
        }
        Some((mark?, Self { times: times.bits(), ..self }))
    }

    /// Leaves what [`NumberedTask::enter`] has returned; false if it is not entered on this thread.
    #[inline]
    pub fn leave(self, group: Group, mark: Mark) -> bool {
        let has_left = group.leave_task(mark);
        if has_left {
            self.times().leave(self.number);
        }
        has_left
    }

    /// Ends the task. If it is called twice for one task, the group has one task less than there
    /// are.
    #[inline]
    pub fn end(self, group: Group) {
        self.end_by(group, ends_as);
    }

    #[inline]
    fn end_by(self, group: Group, as_what: fn(u64, TaskOutcome) -> TaskEnd) {
        match self.times {
            0 => group.end_task(self.number),
            _ => self.end_timed(group, as_what),
        }
    }

    fn end_timed(self, group: Group, as_what: fn(u64, TaskOutcome) -> TaskEnd) {
        let outcome = outcome_of(self.number, Ending::Completed);
        let as_what = as_what(self.number, outcome);
        let age_ns = self.times().end(self.number, as_what, Some(outcome.number()));
        group.end_aged(self.number, outcome, age_ns, None);
    }

    #[inline]
    fn times(self) -> TimesId {
        TimesId::from_bits(self.times)
    }
}
