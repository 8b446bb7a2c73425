//! Tasks that wait, and polls that do not end: as an agent lists them, with the names of the
//! places.
//!
//! Each file depends only on those before it: `list`, `reports`, `stacks`, `place`, `dropped`,
//! `queues`.

pub(crate) mod dropped;
pub(crate) mod list;
pub(crate) mod place;
pub(crate) mod queues;
pub(crate) mod reports;
pub(crate) mod stacks;

#[cfg(test)]
pub(crate) mod tests {
    use dormouse_protocol::{TaskGroup, TaskRow, WireTaskState};

    use super::list::TaskList;

    pub(crate) fn task(number: u64, group: u32, state: WireTaskState, for_ns: u64) -> TaskRow {
        TaskRow {
            task: number,
            group,
            age_ns: Some(for_ns * 2),
            state,
            for_ns,
            poll_ns: 1_000,
            runnable_ns: 0,
            cpu_ns: None,
            await_ns: for_ns,
            polls: 3,
            wakes: 2,
            has_waker: true,
            places: Vec::new(),
            polls_ago: 0,
            more_places: false,
            trace_id: None,
            site: 0,
            unwakeable: false,
            by_hand: false,
        }
    }

    pub(crate) fn list(tasks: Vec<TaskRow>) -> TaskList {
        let group = |id: u32, name: &str, alive| (id, TaskGroup { id, name: name.into(), alive });
        let groups = [group(1, "GET /tea", 5), group(2, "GET /menu", 1)].into();
        TaskList { tasks, groups, ..TaskList::default() }
    }
}
