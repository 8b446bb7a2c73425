//! `tasks`: the tasks that are alive, in parts.
//!
//! There may be very many, so an answer has the tasks in some of the places in which tasks are
//! kept, and the position of the next part; the service keeps no state in between. A task stays in
//! its place: one that lives all the time is in exactly one part, in its state at the time of that
//! part. Tasks that begin or end meanwhile may be missing.
//!
//! A part has one column of numbers for each property of the tasks. That keeps it short, and later
//! versions can add columns.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Lists the tasks that are alive and whose times are known; the answer is [`TasksPart`]. It does
/// not start taking times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TasksRequest {
    /// Where the answer begins: 0, or `next` of the part before.
    #[serde(default)]
    pub from: u64,
}

impl Verb for TasksRequest {
    const NAME: &'static str = "tasks";
    const LACKS: &'static str = "does not list tasks";
    const MEMORY: Memory = Memory::bytes(8 * 1024 * 1024);
    type Answer = TasksPart;
}

/// Answer to `tasks`: some of the tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TasksPart {
    /// For how long times have been taken, in nanoseconds; absent if they are not taken. Tasks that
    /// were not polled in this time are in no part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_ns: Option<u64>,
    /// For how long the places of wakers have been recorded, in nanoseconds; absent if they are
    /// not. A wait whose waker was taken before has no place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noted_ns: Option<u64>,
    /// The tasks.
    pub tasks: TaskColumns,
    /// All groups and how many tasks each has: in the first part, as they were before it was taken,
    /// and again in the last part, which has no tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<TaskGroup>,
    /// The `from` of the next part; absent in the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A group, and how many tasks it has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskGroup {
    /// The group's number in records.
    pub id: u32,
    /// The group's name.
    pub name: String,
    /// The number of tasks alive now, including those whose times are unknown.
    pub alive: u64,
}

/// Tasks, by columns of equal length. Times are in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskColumns {
    /// The numbers of the tasks.
    pub task: Vec<u64>,
    /// The numbers of the tasks' groups.
    pub group: Vec<u32>,
    /// The ages of the tasks; null for a task that began before times were taken.
    pub age_ns: Vec<Option<u64>>,
    /// The states of the tasks.
    pub state: Vec<WireTaskState>,
    /// For how long each task has been in its state.
    pub for_ns: Vec<u64>,
    /// The time that each task has spent in polls so far.
    pub poll_ns: Vec<u64>,
    /// The time of each task from wakes to the polls that followed.
    pub runnable_ns: Vec<u64>,
    /// The time of each task in neither state.
    pub await_ns: Vec<u64>,
    /// How many polls of each task have ended.
    pub polls: Vec<u64>,
    /// How many wakes made each task runnable.
    pub wakes: Vec<u64>,
    /// Whether a waker of each task exists outside of it.
    pub has_waker: Vec<bool>,
    /// The CPU time of each task since CPU times are requested; null for a task whose present poll
    /// began before. Empty if they are not requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cpu_ns: Vec<Option<u64>>,
    /// The numbers of the places where each task waits; empty if no task has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<Vec<u32>>,
    /// How many polls ago each task took its wakers there; empty if that was the last poll for all
    /// tasks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub polls_ago: Vec<u32>,
    /// Whether each task has more places than are listed; empty if none has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_places: Vec<bool>,
    /// The trace to which each task belongs, as 32 digits; empty if no task's is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trace_id: Vec<Option<String>>,
    /// The numbers of the sites where the tasks were spawned; 0: not known. Empty if none is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub site: Vec<u32>,
    /// Whether it is proved that nothing can wake each task any more; empty if it is for none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unwakeable: Vec<bool>,
    /// Whether each task was entered by hand, and so needs no waker to go on; empty if none was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_hand: Vec<bool>,
}

/// A state of a task; on the wire its first letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WireTaskState {
    /// It is in a poll.
    #[serde(rename = "p")]
    Polled,
    /// It was woken, and is not polled yet.
    #[serde(rename = "r")]
    Runnable,
    /// It awaits something.
    #[serde(rename = "a")]
    Awaiting,
    /// A state that only a newer agent has.
    #[serde(other, rename = "?")]
    Unknown,
}

/// One task of a part; see [`TaskColumns`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns' names")]
#[expect(clippy::struct_excessive_bools, reason = "each is a column of its own")]
pub struct TaskRow {
    pub task: u64,
    pub group: u32,
    pub age_ns: Option<u64>,
    pub state: WireTaskState,
    pub for_ns: u64,
    pub poll_ns: u64,
    pub runnable_ns: u64,
    pub await_ns: u64,
    pub polls: u64,
    pub wakes: u64,
    pub has_waker: bool,
    pub cpu_ns: Option<u64>,
    pub places: Vec<u32>,
    pub polls_ago: u32,
    pub more_places: bool,
    pub trace_id: Option<String>,
    pub site: u32,
    pub unwakeable: bool,
    pub by_hand: bool,
}

/// Drops a column of which no task has anything.
fn leave_out<T: Default + PartialEq>(column: &mut Vec<T>) {
    if column.iter().all(|value| *value == T::default()) {
        *column = Vec::new();
    }
}

impl TaskColumns {
    /// Puts these tasks into columns. Columns that would be empty for all tasks are left out.
    pub fn of(tasks: impl IntoIterator<Item = TaskRow>) -> Self {
        let mut all = Self::default();
        for task in tasks {
            all.task.push(task.task);
            all.group.push(task.group);
            all.age_ns.push(task.age_ns);
            all.state.push(task.state);
            all.for_ns.push(task.for_ns);
            all.poll_ns.push(task.poll_ns);
            all.runnable_ns.push(task.runnable_ns);
            all.await_ns.push(task.await_ns);
            all.polls.push(task.polls);
            all.wakes.push(task.wakes);
            all.has_waker.push(task.has_waker);
            all.cpu_ns.push(task.cpu_ns);
            all.places.push(task.places);
            all.polls_ago.push(task.polls_ago);
            all.more_places.push(task.more_places);
            all.trace_id.push(task.trace_id);
            all.site.push(task.site);
            all.unwakeable.push(task.unwakeable);
            all.by_hand.push(task.by_hand);
        }
        leave_out(&mut all.cpu_ns);
        leave_out(&mut all.places);
        leave_out(&mut all.polls_ago);
        leave_out(&mut all.more_places);
        leave_out(&mut all.trace_id);
        leave_out(&mut all.site);
        leave_out(&mut all.unwakeable);
        leave_out(&mut all.by_hand);
        all
    }

    /// The tasks, one by one; `None` if the columns differ in length.
    pub fn rows(mut self) -> Option<impl Iterator<Item = TaskRow>> {
        let count = self.task.len();
        if self.places.is_empty() {
            self.places.resize_with(count, Vec::new);
        }
        if self.polls_ago.is_empty() {
            self.polls_ago.resize(count, 0);
        }
        if self.more_places.is_empty() {
            self.more_places.resize(count, false);
        }
        if self.cpu_ns.is_empty() {
            self.cpu_ns.resize(count, None);
        }
        if self.trace_id.is_empty() {
            self.trace_id.resize(count, None);
        }
        if self.site.is_empty() {
            self.site.resize(count, 0);
        }
        if self.unwakeable.is_empty() {
            self.unwakeable.resize(count, false);
        }
        if self.by_hand.is_empty() {
            self.by_hand.resize(count, false);
        }
        let lengths = [
            self.group.len(),
            self.age_ns.len(),
            self.state.len(),
            self.for_ns.len(),
            self.poll_ns.len(),
            self.runnable_ns.len(),
            self.await_ns.len(),
            self.polls.len(),
            self.wakes.len(),
            self.has_waker.len(),
            self.cpu_ns.len(),
            self.places.len(),
            self.polls_ago.len(),
            self.more_places.len(),
            self.trace_id.len(),
            self.site.len(),
            self.unwakeable.len(),
            self.by_hand.len(),
        ];
        if lengths != [count; 18] {
            return None;
        }
        let (mut places, mut traces) = (self.places.into_iter(), self.trace_id.into_iter());
        Some((0..count).map(move |at| TaskRow {
            task: self.task[at],
            group: self.group[at],
            age_ns: self.age_ns[at],
            state: self.state[at],
            for_ns: self.for_ns[at],
            poll_ns: self.poll_ns[at],
            runnable_ns: self.runnable_ns[at],
            await_ns: self.await_ns[at],
            polls: self.polls[at],
            wakes: self.wakes[at],
            has_waker: self.has_waker[at],
            cpu_ns: self.cpu_ns[at],
            places: places.next().unwrap_or_default(),
            polls_ago: self.polls_ago[at],
            more_places: self.more_places[at],
            trace_id: traces.next().flatten(),
            site: self.site[at],
            unwakeable: self.unwakeable[at],
            by_hand: self.by_hand[at],
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(task: u64, places: Vec<u32>) -> TaskRow {
        TaskRow {
            task,
            group: 3,
            age_ns: (task > 1).then_some(100),
            state: WireTaskState::Runnable,
            for_ns: 10,
            poll_ns: 20,
            runnable_ns: 30,
            await_ns: 50,
            polls: 4,
            wakes: 5,
            has_waker: task > 1,
            trace_id: (!places.is_empty()).then(|| "07".repeat(16)),
            cpu_ns: (task > 1).then_some(places.len() as u64).filter(|&ns| ns > 0),
            polls_ago: places.len() as u32,
            more_places: places.len() > 1,
            site: places.len() as u32,
            unwakeable: places.len() > 1,
            by_hand: places.len() > 1,
            places,
        }
    }

    #[test]
    fn rows_come_back_from_their_columns() {
        for places in [vec![], vec![7, 8]] {
            let columns = TaskColumns::of(vec![row(1, vec![]), row(2, places.clone())]);
            let text = serde_json::to_string(&columns).unwrap();
            let rows: Vec<TaskRow> =
                serde_json::from_str::<TaskColumns>(&text).unwrap().rows().unwrap().collect();
            assert_eq!(rows.len(), 2);
            assert_eq!((rows[0].task, rows[0].age_ns, rows[0].has_waker), (1, None, false));
            let second = (rows[1].age_ns, rows[1].state, rows[1].await_ns, rows[1].wakes, &rows[1].places);
            assert_eq!(second, (Some(100), WireTaskState::Runnable, 50, 5, &places));
            assert_eq!(text.contains("cpu_ns"), !places.is_empty(), "a column only where there is one");
            assert_eq!((rows[0].polls_ago, rows[0].more_places), (0, false));
            assert_eq!((rows[1].polls_ago as usize, rows[1].more_places), (places.len(), !places.is_empty()));
            assert_eq!((rows[0].site, rows[0].unwakeable, rows[0].by_hand), (0, false, false));
            assert_eq!((rows[1].site as usize, rows[1].unwakeable), (places.len(), !places.is_empty()));
            assert_eq!((rows[1].by_hand, text.contains("by_hand")), (!places.is_empty(), !places.is_empty()));
            assert_eq!(rows[0].trace_id, None);
            assert_eq!(rows[1].trace_id, (!places.is_empty()).then(|| "07".repeat(16)));
            assert_eq!((rows[0].cpu_ns, rows[1].cpu_ns.is_some()), (None, !places.is_empty()));
        }
    }

    #[test]
    fn columns_of_unequal_length_are_no_rows() {
        let mut columns = TaskColumns::of(vec![row(1, vec![1])]);
        columns.wakes.push(1);
        assert!(columns.rows().is_none());
        let mut columns = TaskColumns::of(vec![row(1, vec![]), row(2, vec![])]);
        columns.places.push(vec![1]);
        assert!(columns.rows().is_none());
    }

    #[test]
    fn a_state_of_a_newer_agent_is_unknown() {
        assert_eq!(serde_json::from_str::<WireTaskState>("\"x\"").unwrap(), WireTaskState::Unknown);
        assert_eq!(serde_json::to_string(&WireTaskState::Awaiting).unwrap(), "\"a\"");
    }
}
