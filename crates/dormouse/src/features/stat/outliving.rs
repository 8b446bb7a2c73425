//! Tasks that outlive the requests which began them.
//!
//! A part of a request (a task that it spawns, a connection that its client opens) is charged to
//! the group of that request for as long as it lives. Ages of tasks are known only while times are
//! taken, but the totals of a group are always there, and prove enough. When a group is read that
//! has parts and no request, the number of its parts is remembered, and how many had ended by then:
//! all that were there have outlived their requests. As long as fewer of the group's parts end than
//! there were, some of those are still there.
//!
//! So nothing is stored at a task's begin or end, and what is found is a lower bound. In a group
//! whose other parts come and go quickly, nothing is proved.
//!
//! The agent reads the totals once a minute, each second while it answers clients, and for each
//! answer that shows groups.

use std::collections::BTreeMap;

use dormouse_protocol::Outliving;
use dormouse_sys::clock;

use crate::core::group::Group;
use crate::core::tasks::TaskTotals;

/// The findings of earlier readings, by the numbers of groups.
pub(super) struct OutlivingReadings(BTreeMap<u32, Watched>);

/// The findings of earlier readings of a group.
#[derive(Default)]
struct Watched {
    /// The tasks that a child has from its parent, where most of them are.
    inherited: TaskTotals,
    alone: Option<Alone>,
}

/// A moment at which a group had parts and nothing else.
struct Alone {
    at_ns: u64,
    parts: u64,
    finished_parts: u64,
}

impl Watched {
    fn read(&mut self, now_ns: u64, tasks: TaskTotals) -> Option<Outliving> {
        let tasks = tasks.since(self.inherited);
        let left = |alone: &Alone| {
            let finished = tasks.finished_parts().saturating_sub(alone.finished_parts);
            alone.parts.saturating_sub(finished)
        };
        if self.alone.as_ref().is_none_or(|alone| left(alone) == 0) {
            let (parts, finished_parts) = (tasks.parts(), tasks.finished_parts());
            let is_alone = parts > 0 && parts == tasks.alive() && tasks.are_of_requests();
            self.alone = is_alone.then_some(Alone { at_ns: now_ns, parts, finished_parts });
        }
        let alone = self.alone.as_ref()?;
        Some(Outliving { tasks: left(alone), ns: now_ns.saturating_sub(alone.at_ns) })
    }
}

impl OutlivingReadings {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The groups of a forked child, which have the totals of its parent.
    pub(super) fn inherited() -> Self {
        let watched = |group: Group| (group.id(), Watched { inherited: group.tasks(), alone: None });
        Self(Group::all().into_iter().map(watched).collect())
    }

    /// Reads all groups, and returns those with parts that outlive their requests.
    pub(super) fn read(&mut self) -> BTreeMap<u32, Outliving> {
        let now_ns = clock::monotonic_ns();
        let read = |group: Group| {
            let outliving = self.0.entry(group.id()).or_default().read(now_ns, group.tasks())?;
            Some((group.id(), outliving))
        };
        Group::all().into_iter().filter_map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ends::{Ending, outcome_of};
    use crate::core::tasks::{Tasks, is_request};

    fn finish(tasks: &Tasks, task: u64) {
        tasks.finish(task, outcome_of(task, Ending::Completed));
    }

    const REQUESTS: [u64; 2] = [1, 3];
    const PARTS: [u64; 3] = [4, 8, 12];

    #[test]
    fn parts_alone_have_outlived_their_requests() {
        assert!(REQUESTS.into_iter().all(is_request) && !PARTS.into_iter().any(is_request));
        let (tasks, mut group) = (Tasks::new(), Watched::default());
        let mut read = |at_ns| group.read(at_ns, tasks.read()).map(|found| (found.tasks, found.ns));
        tasks.start(REQUESTS[0]);
        tasks.start(PARTS[0]);
        tasks.start(PARTS[1]);
        assert_eq!(read(0), None, "their request is there");
        finish(&tasks, REQUESTS[0]);
        assert_eq!(read(10), Some((2, 0)));
        tasks.start(REQUESTS[1]);
        tasks.start(PARTS[2]);
        assert_eq!(read(30), Some((2, 20)), "a later request has not begun them");
        finish(&tasks, PARTS[2]);
        assert_eq!(read(40), Some((1, 30)), "it may be one of them that has ended");
        finish(&tasks, PARTS[0]);
        assert_eq!(read(50), None, "the other one, too");
        finish(&tasks, REQUESTS[1]);
        assert_eq!(read(60), Some((1, 0)), "it is alone now");
        finish(&tasks, PARTS[1]);
        assert_eq!(read(70), None);
    }

    #[test]
    fn a_childs_parts_are_its_own() {
        let tasks = Tasks::new();
        tasks.start(PARTS[0]);
        let mut group = Watched { inherited: tasks.read(), alone: None };
        assert_eq!(group.read(0, tasks.read()), None);
        tasks.start(REQUESTS[0]);
        tasks.start(PARTS[1]);
        finish(&tasks, REQUESTS[0]);
        assert_eq!(group.read(10, tasks.read()), Some(Outliving { tasks: 1, ns: 0 }));
    }

    #[test]
    fn a_group_without_requests_is_left_alone() {
        let tasks = Tasks::new();
        for part in PARTS {
            tasks.start(part);
        }
        assert_eq!(Watched::default().read(0, tasks.read()), None);
    }
}
