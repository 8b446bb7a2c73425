//! Selecting and sorting the tasks of a list.

use std::cmp::Reverse;

use clap::ValueEnum;
use dormouse::keys::Selector;
use dormouse_protocol::{TaskRow, WireTaskState};
use serde::Deserialize;

use super::Request;
use super::listing::Listing;
use crate::exit::{Exit, Failure, Outcome};
use crate::length::Length;

/// The order of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Sort {
    Age,
    #[default]
    For,
    Polls,
    Wakes,
    Busy,
    Cpu,
    Group,
}

/// Refuses what has no meaning together.
fn check(request: &Request) -> Outcome<()> {
    let Request { state, older, waiting, sort, limit, wake, cpu, tree, .. } = request;
    let of_lists = [("--sort", sort.is_some()), ("--limit", limit.is_some())];
    let of_tasks = [
        ("--state", !state.is_empty()),
        ("--older", older.is_some()),
        ("--waiting", waiting.is_some()),
        ("--wake", *wake),
        ("--tree", *tree),
    ];
    let with_long_polls = [("--leaks", request.leaks)];
    let of_leaks = [("--wake", *wake), ("--cpu", *cpu), ("--tree", *tree)];
    let refused = match request {
        Request { long_poll: Some(_), .. } => {
            of_lists.iter().chain(&of_tasks).chain(&with_long_polls).find(|(_, is_given)| *is_given)
        }
        Request { leaks: true, .. } => of_lists.iter().chain(&of_leaks).find(|(_, is_given)| *is_given),
        Request { tree: true, .. } => of_lists.iter().find(|(_, is_given)| *is_given),
        _ => None,
    };
    let Some((refused, _)) = refused else { return Ok(()) };
    let one = match request {
        Request { long_poll: Some(_), .. } => "--long-poll",
        Request { leaks: true, .. } => "--leaks",
        _ => "--tree",
    };
    Err(Failure::new(Exit::Usage, format!("{one} cannot be used with {refused}")))
}

/// The tasks that are wanted.
#[derive(Debug)]
pub(super) struct Choice {
    groups: Option<Selector>,
    states: Vec<WireTaskState>,
    older_ns: u64,
    waiting_ns: u64,
    sort: Sort,
    limit: usize,
}

impl Choice {
    pub(super) fn new(request: &Request) -> Outcome<Choice> {
        check(request)?;
        let sort = request.sort.unwrap_or_default();
        let parse = |globs: &String| {
            Selector::parse(globs).map_err(|error| {
                Failure::new(Exit::Usage, format!("--group: {error}"))
                    .hint("globs are as in 'GET /*,!GET /health'; quote them from the shell")
            })
        };
        let ns = |length: Option<Length>| {
            length.map_or(0, |Length(length)| u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
        };
        if sort == Sort::Cpu && !request.cpu {
            return Err(Failure::new(Exit::Usage, "CPU time is sorted by where it is taken: add --cpu"));
        }
        Ok(Choice {
            groups: request.group.as_ref().map(parse).transpose()?,
            states: request.state.iter().map(|&state| state.into()).collect(),
            older_ns: ns(request.older),
            waiting_ns: ns(request.waiting),
            sort,
            limit: request.limit.unwrap_or(usize::MAX),
        })
    }

    /// Leaves the wanted tasks in their order, and counts those beyond the limit.
    pub(super) fn arrange(&self, listing: &mut Listing<'_>) {
        let Listing { tasks, groups, unlisted, .. } = listing;
        unlisted.retain(|of| self.has_group(of.group));
        tasks.retain(|task| {
            self.has(task) && self.has_group(groups.get(&task.group).copied().unwrap_or_default())
        });
        let by_name = self.sort == Sort::Group;
        tasks.sort_by_key(|task| {
            let name = groups.get(&task.group).filter(|_| by_name);
            (name, Reverse(self.first(task)), Reverse(task.for_ns), task.task)
        });
        listing.more = tasks.len().saturating_sub(self.limit);
        tasks.truncate(self.limit);
    }

    /// Whether tasks of a group of this name are wanted.
    pub(super) fn has_group(&self, name: &str) -> bool {
        // A group is defined at no line.
        self.groups.as_ref().is_none_or(|groups| groups.matches_at(name, "", 0))
    }

    /// Whether a task is wanted, but for its group.
    pub(super) fn has(&self, task: &TaskRow) -> bool {
        (self.states.is_empty() || self.states.contains(&task.state))
            && task.age_ns.is_none_or(|age| age >= self.older_ns)
            && task.for_ns >= self.waiting_ns
    }

    /// The number by which tasks are sorted, the greatest first.
    fn first(&self, task: &TaskRow) -> u64 {
        match self.sort {
            // The oldest are those whose age is not known.
            Sort::Age => task.age_ns.unwrap_or(u64::MAX),
            Sort::For | Sort::Group => task.for_ns,
            Sort::Polls => task.polls,
            Sort::Wakes => task.wakes,
            Sort::Busy => task.poll_ns,
            Sort::Cpu => task.cpu_ns.unwrap_or(0),
        }
    }
}
