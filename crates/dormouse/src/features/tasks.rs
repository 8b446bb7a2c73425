//! `tasks` and `wake-tasks`: the living tasks, for a client that requests them part by part.
//!
//! Nothing is kept between parts, so a client may stop anywhere.
//!
//! # Cost
//!
//! A part takes about a millisecond, for which other clients wait; threads of the host do not.

use std::time::Duration;

use dormouse_protocol::{
    TaskColumns, TaskGroup, TasksPart, TasksRequest, WakeTasksRequest, WireError, WokenTasks,
};
use dormouse_waits::{LivingPart, WokenPart, living_part, wake_unplaced_part};

use crate::agent::{Answered, Asked};
use crate::core::asleep::{Part, check};
use crate::core::group::Group;
use crate::core::rows::task_row;

/// Places of tasks that one part reads.
const PLACES: usize = 4096;

impl Answered for TasksRequest {
    fn answer(self, _: &mut Asked<'_>) -> Result<TasksPart, WireError> {
        check(Part::Times)?;
        Ok(part(self.from))
    }
}

impl Answered for WakeTasksRequest {
    /// Wakes those of a part that wait at places that are not known.
    fn answer(self, _: &mut Asked<'_>) -> Result<WokenTasks, WireError> {
        let from = usize::try_from(self.from).unwrap_or(usize::MAX);
        let WokenPart { woken, next } = wake_unplaced_part(from, PLACES);
        Ok(WokenTasks { woken: woken as u64, next: next.map(|next| next as u64) })
    }
}

/// The tasks from there on. The first part and the last one have the groups, too.
pub(crate) fn part(from: u64) -> TasksPart {
    let first = (from == 0).then(groups);
    let LivingPart { tasks, next } = living_part(usize::try_from(from).unwrap_or(usize::MAX), PLACES);
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    TasksPart {
        taken_ns: dormouse_waits::taken_for().map(ns),
        noted_ns: dormouse_waits::places::noted_for().map(ns),
        tasks: TaskColumns::of(tasks.into_iter().map(task_row)),
        groups: first.or_else(|| next.is_none().then(groups)).unwrap_or_default(),
        next: next.map(|next| next as u64),
    }
}

fn groups() -> Vec<TaskGroup> {
    let row = |group: Group| TaskGroup {
        id: group.id(),
        name: group.name().to_owned(),
        alive: group.tasks().alive(),
    };
    Group::all().into_iter().map(row).collect()
}
