//! The tasks of a process as a table, as a tree of places, and as JSON; and their long polls.

pub(crate) mod cancelled;
pub(crate) mod document;
pub(crate) mod long_poll;
pub(crate) mod text;
pub(crate) mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use dormouse_protocol::{TaskRow, WireTaskState};
use serde::Serialize;

use crate::duration::short;
use crate::text::{clean, count};
use crate::waiting::list::{Taken, TaskList};
use crate::waiting::place::{PlaceNames, is_unplaced};
use crate::waiting::stacks::UNKNOWN_PLACE;

use cancelled::CancelledListing;

/// Tasks that are shown, and how they were found.
#[derive(Debug)]
pub(crate) struct Listing<'a> {
    pub(crate) pid: u32,
    /// `teaparty (process 12)`.
    pub(crate) who: String,
    pub(crate) taken: Taken,
    /// How long the reading of all tasks took.
    pub(crate) took_ns: u64,
    /// How many tasks are known.
    pub(crate) known: usize,
    /// Those that are shown.
    pub(crate) tasks: Vec<&'a TaskRow>,
    /// How many more there would be.
    pub(crate) more: usize,
    /// The names of groups, by number.
    pub(crate) groups: BTreeMap<u32, &'a str>,
    pub(crate) unlisted: Vec<Unlisted<'a>>,
    pub(crate) places: PlaceNames,
    /// `None` if that is not known.
    pub(crate) cancelled: Option<CancelledListing<'a>>,
    /// The reason why tasks that wait have no place, as a predicate.
    pub(crate) unplaced: &'static str,
    /// Whether they are of a file that had no room for all.
    pub(crate) is_cut: bool,
}

/// The tasks of a group that are alive, and of which no times are known.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Unlisted<'a> {
    pub(crate) group: &'a str,
    pub(crate) tasks: u64,
}

impl<'a> Listing<'a> {
    /// All tasks, without the names of their places.
    pub(crate) fn new((pid, who): (u32, String), taken: Taken, took: Duration, list: &'a TaskList) -> Self {
        let mut known: HashMap<u32, u64> = HashMap::new();
        for task in &list.tasks {
            *known.entry(task.group).or_default() += 1;
        }
        let unlisted = list.groups.values().map(|group| Unlisted {
            group: &group.name,
            tasks: group.alive.saturating_sub(known.get(&group.id).copied().unwrap_or(0)),
        });
        Self {
            pid,
            who,
            taken,
            took_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            known: list.tasks.len(),
            tasks: list.tasks.iter().collect(),
            more: 0,
            unlisted: unlisted.filter(|group| group.tasks > 0).collect(),
            groups: list.groups.iter().map(|(&id, group)| (id, group.name.as_str())).collect(),
            places: PlaceNames::default(),
            cancelled: None,
            unplaced: "",
            is_cut: false,
        }
    }

    /// The places of the tasks and the cancelled requests that are shown.
    pub(crate) fn wanted_places(&self) -> BTreeSet<u32> {
        let cancelled = self.cancelled.iter().flat_map(CancelledListing::stacks);
        self.tasks.iter().flat_map(|task| &task.places).copied().chain(cancelled).collect()
    }

    /// The name of a task's group.
    pub(crate) fn group(&self, task: &TaskRow) -> &'a str {
        self.groups.get(&task.group).copied().unwrap_or_default()
    }

    /// The line above a table.
    fn head(&self) -> String {
        let all = count(self.known as u64, "task");
        let shown = self.tasks.len() + self.more;
        let those = if shown == self.known { all } else { format!("{shown} of {all}") };
        let (taken, took) = (short(self.taken.times_ns), short(self.took_ns));
        let places = self.taken.places_ns.map(short).filter(|places| *places != taken);
        let places = places.map(|places| format!(", places for {places}")).unwrap_or_default();
        format!("{}: {those}, seen within {took}; times are taken for {taken}{places}", clean(&self.who))
    }

    /// How many of the shown tasks wait at an unknown place.
    fn count_unplaced(&self) -> u64 {
        self.tasks.iter().filter(|task| is_unplaced(task)).count() as u64
    }

    /// The lines below a table.
    fn foot(&self) -> String {
        let line = |of: &Unlisted<'_>| {
            // Those of threads that wait for work have no times, however often they are polled.
            let are = match of.tasks {
                1 => "is not known: it has no times, or was",
                _ => "are not known: they have no times, or were",
            };
            let room = if self.is_cut { ", or had no room in the file" } else { "" };
            format!(
                "{} of {} {are} not polled in this time{room}\n",
                count(of.tasks, "task"),
                clean(of.group)
            )
        };
        let mut lines: String = self.unlisted.iter().map(line).collect();
        let unplaced = self.count_unplaced();
        if unplaced > 0 {
            let _ = writeln!(lines, "{} {}", count(unplaced, "task"), self.unplaced);
        }
        let is_unknown = |task: &&&TaskRow| task.places.contains(&UNKNOWN_PLACE);
        let unknown = self.tasks.iter().filter(is_unknown).count() as u64;
        if unknown > 0 {
            let tasks = count(unknown, "task");
            let _ = writeln!(
                lines,
                "the stacks of {tasks} are not known: no unwind table leads to the callers of their leaf"
            );
        }
        lines
    }
}

/// The reason why a task awaits without a waker; it stands for its place.
fn without_waker(task: &TaskRow) -> Option<&'static str> {
    let why = if task.by_hand { "entered by hand" } else { "nothing has its waker" };
    (task.state == WireTaskState::Awaiting && !task.has_waker).then_some(why)
}

/// The word for a state.
pub(crate) fn state(of: WireTaskState) -> &'static str {
    match of {
        WireTaskState::Polled => "polled",
        WireTaskState::Runnable => "runnable",
        WireTaskState::Awaiting => "awaiting",
        WireTaskState::Unknown => "unknown",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::waiting::tests::{list, task};

    pub(crate) fn listing(list: &TaskList, places: PlaceNames) -> Listing<'_> {
        let took = Duration::from_millis(1);
        let taken = Taken { times_ns: 2_000_000_000, places_ns: Some(1_000_000_000) };
        Listing { places, ..Listing::new((7, "tea (process 7)".into()), taken, took, list) }
    }

    #[test]
    fn unknown_tasks_are_counted_by_group() {
        let mut unknown = task(2, 2, WireTaskState::Awaiting, 10);
        unknown.places = vec![UNKNOWN_PLACE];
        let list = list(vec![
            task(1, 1, WireTaskState::Awaiting, 10),
            unknown,
            task(3, 9, WireTaskState::Unknown, 10),
        ]);
        let mut listing = listing(&list, PlaceNames::default());
        assert_eq!(listing.unlisted, [Unlisted { group: "GET /tea", tasks: 4 }]);
        assert_eq!(listing.group(&list.tasks[2]), "", "a group that nobody has named");
        assert!(listing.head().starts_with("tea (process 7): 3 tasks"), "{}", listing.head());
        let foot = listing.foot();
        let reason =
            "4 tasks of GET /tea are not known: they have no times, or were not polled in this time\n";
        assert!(foot.starts_with(reason), "{foot}");
        assert!(foot.contains("the stacks of 1 task are not known"), "{foot}");
        listing.is_cut = true;
        let foot = listing.foot();
        assert!(foot.contains("were not polled in this time, or had no room in the file\n"), "{foot}");
    }
}
