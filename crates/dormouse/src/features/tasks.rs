//! The living tasks, for a client that requests them part by part.
//!
//! Nothing is kept between parts, so a client may stop anywhere.
//!
//! # Cost
//!
//! A part takes about a millisecond, for which other clients wait; threads of the host do not.

use std::time::Duration;

use dormouse_protocol::{TaskColumns, TaskGroup, TasksPart, WokenTasks};
use dormouse_waits::{LivingPart, WokenPart, living_part, wake_unplaced_part};

use crate::core::group::Group;
use crate::core::rows::task_row;

/// Places of tasks that one part looks at.
const PLACES: usize = 4096;

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

/// Wakes those of a part that wait at places that are not known.
pub(crate) fn wake(from: u64) -> WokenTasks {
    let WokenPart { woken, next } = wake_unplaced_part(usize::try_from(from).unwrap_or(usize::MAX), PLACES);
    WokenTasks { woken: woken as u64, next: next.map(|next| next as u64) }
}

fn groups() -> Vec<TaskGroup> {
    let row =
        |group: Group| TaskGroup { id: group.id(), name: group.name().to_owned(), alive: group.alive() };
    Group::all().into_iter().map(row).collect()
}
