//! Leaks as JSON.

use serde::Serialize;

use super::{Leak, Leaks};
use crate::cmd::tasks::listing::document::PlaceDocument;

/// The tasks that nothing can wake, and the spawn sites whose number of tasks keeps growing.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct LeaksDocument<'a> {
    pid: u32,
    /// For how long times had been taken.
    taken_ns: u64,
    /// For how long the numbers of tasks had been compared.
    watched_ns: u64,
    /// The longest stretch of time over which growth was judged; null: too short, so that no site
    /// is suspected.
    judged_ns: Option<u64>,
    /// Proved: all wakers of these tasks are gone. Only an abort, or the end of their runtime, ends
    /// them.
    proven: Vec<LeakDocument<'a>>,
    /// Suspected: at each reading there were more tasks of these sites, and those from before are
    /// still there.
    suspected: Vec<LeakDocument<'a>>,
    /// The places and stacks of suspected tasks, the innermost function first.
    places: Vec<PlaceDocument<'a>>,
}

/// Tasks that were spawned at one line.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LeakDocument<'a> {
    /// The source file as the compiler was given it; null, like the line, if there was no room for
    /// the site.
    file: Option<&'a str>,
    line: Option<u32>,
    column: Option<u32>,
    /// How many of its tasks are known.
    tasks: usize,
    /// The age of the oldest one; null if no age is known.
    oldest_ns: Option<u64>,
    /// The groups of the tasks.
    groups: Vec<&'a str>,
    /// By how many tasks their number has grown, and in what time; absent where it is proved that
    /// nothing can wake them.
    #[serde(skip_serializing_if = "Option::is_none")]
    grown: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grown_ns: Option<u64>,
    /// The place where most of the tasks wait; null if none is known.
    place: Option<u32>,
}

impl<'a> LeaksDocument<'a> {
    pub(super) fn new(leaks: &'a Leaks<'a>) -> Self {
        let documents = |of: &'a [Leak<'a>]| of.iter().map(|leak| LeakDocument::new(leaks, leak)).collect();
        let place = |place| PlaceDocument::new(place, leaks.places.frames(place));
        Self {
            pid: leaks.pid,
            taken_ns: leaks.taken.times_ns,
            watched_ns: leaks.watched_ns,
            judged_ns: leaks.judged_ns,
            proven: documents(&leaks.proven),
            suspected: documents(&leaks.suspected),
            places: leaks.wanted_places().into_iter().map(place).collect(),
        }
    }
}

impl<'a> LeakDocument<'a> {
    fn new(leaks: &Leaks<'a>, leak: &'a Leak<'a>) -> Self {
        let mut groups: Vec<&str> = leak.tasks.iter().map(|task| leaks.group(task.group)).collect();
        groups.sort_unstable();
        groups.dedup();
        let line = leak.line.as_ref();
        Self {
            file: line.map(|line| line.file.as_str()),
            line: line.map(|line| line.line),
            column: line.map(|line| line.column),
            tasks: leak.tasks.len(),
            oldest_ns: leak.oldest_ns(),
            groups,
            grown: leak.growth.map(|growth| growth.tasks),
            grown_ns: leak.growth.map(|growth| growth.ns),
            place: leak.place().map(|(place, _)| place),
        }
    }
}
