//! The requests that were cancelled lately: where they waited, and what dropped them.
//!
//! The service has one row for each stack. Here rows become one whose stacks differ in nothing that
//! people read: the same group, the same place of the wait, and the same code that dropped them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write as _;
use std::ops::Not;

use clap::builder::styling::Style;
use dormouse_protocol::{CancelledRow, CancelledRows, WireWaited};
use dormouse_statistics::buckets::Histogram;
use serde::Serialize;

use super::text::{cut, short_name};
use crate::duration::short;
use crate::output::HEAD;
use crate::render::frame::CodeFrame;
use crate::render::table::Table;
use crate::text::count;
use crate::waiting::dropped::{Dropper, waited_at};
use crate::waiting::place::PlaceNames;

/// The most lines of the table.
const MOST_LINES: usize = 20;

/// Cancelled requests of a group that waited at the same place, and that the same code dropped.
#[derive(Debug, Clone)]
pub(super) struct CancelledLine<'a> {
    group: &'a str,
    of: CancelledRow,
    ages: Histogram,
    waited_at: String,
    dropped: Dropper,
    dropped_by: String,
}

/// The requests that were cancelled lately.
#[derive(Debug)]
pub(crate) struct CancelledListing<'a> {
    for_ns: u64,
    no_room: u64,
    lines: Vec<CancelledLine<'a>>,
}

/// Their part of the document.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct CancelledDocument<'a> {
    /// They were cancelled within this time: the last five to ten minutes, or since places are
    /// recorded.
    for_ns: u64,
    requests: u64,
    /// How many more there were for which the service had no room.
    no_room: u64,
    rows: Vec<CancelledLineDocument<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct CancelledLineDocument<'a> {
    group: &'a str,
    requests: u64,
    /// `awaiting`, `runnable` (woken, and not polled yet), `not_begun` (never polled), or
    /// `unknown`.
    waited: &'static str,
    /// The place where they waited; null if it is not known.
    place: Option<u32>,
    /// At how many other places each of them waited; absent: at none.
    #[serde(skip_serializing_if = "is_zero")]
    more_places: u32,
    /// `timeout`, `connection` (it ended, or reset its stream), `abort`, `shutdown`, `select` (a
    /// lost one), `panic` (one beside it), `function`, `answer` (no future was dropped), or
    /// `unknown`.
    dropped_by: &'static str,
    /// The function that dropped them; absent if it is a server's or a runtime's, or not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_at: Option<&'a CodeFrame>,
    /// The stack of the drop, among the places; null if no future was dropped.
    stack: Option<u32>,
    /// The ages are of requests that began while times were taken; null if there are none.
    age_p50_ns: Option<u64>,
    age_max_ns: Option<u64>,
    /// The oldest one.
    max_task: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_trace_id: Option<&'a str>,
    /// How long ago the last one was cancelled.
    last_ns: u64,
    /// Whether the place is that of a collection, whose parts are not seen; absent: no.
    #[serde(skip_serializing_if = "Not::not")]
    set: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The stacks that a row names.
pub(crate) fn stacks(rows: &CancelledRows) -> impl Iterator<Item = u32> {
    rows.rows.iter().flat_map(|row| [row.place, row.stack]).flatten()
}

impl<'a> CancelledListing<'a> {
    /// The rows of groups that are wanted, most requests first; `None` if places are not recorded.
    pub(crate) fn new(
        rows: CancelledRows,
        names: &PlaceNames,
        group: impl Fn(u32) -> Option<&'a str>,
    ) -> Option<Self> {
        let mut lines: Vec<CancelledLine<'a>> = Vec::new();
        let mut by_words: HashMap<(&str, String, String), usize> = HashMap::new();
        for row in rows.rows {
            let Some(group) = group(row.group) else { continue };
            let line = CancelledLine::new(group, row, names);
            match by_words.entry((group, line.waited_at.clone(), line.dropped_by.clone())) {
                Entry::Occupied(known) => lines[*known.get()].add(line),
                Entry::Vacant(new) => {
                    new.insert(lines.len());
                    lines.push(line);
                }
            }
        }
        lines.sort_by(|a, b| {
            let key = |line: &CancelledLine<'_>| (Reverse(line.of.requests), line.of.last_ns);
            key(a).cmp(&key(b)).then_with(|| a.group.cmp(b.group))
        });
        Some(Self { for_ns: rows.for_ns?, no_room: rows.no_room, lines })
    }

    fn requests(&self) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.saturating_add(line.of.requests))
    }

    /// The places and stacks that the document's rows name.
    pub(super) fn stacks(&self) -> impl Iterator<Item = u32> {
        self.lines.iter().flat_map(|line| [line.of.place, line.of.stack]).flatten()
    }

    /// The table; empty if no request was cancelled.
    pub(super) fn report(&self, width: Option<usize>) -> String {
        if self.lines.is_empty() {
            return String::new();
        }
        let mut text = String::new();
        let were = if self.requests() == 1 { "was" } else { "were" };
        let requests = count(self.requests(), "request");
        let head = format!("{requests} {were} cancelled in the last {}", short(self.for_ns));
        text.push_str(&cut(&head, width, HEAD));
        let titles = [">CANCELLED", "GROUP", ">P50 AGE", ">MAX", ">LAST", "WAITED AT", "DROPPED BY"];
        let mut table = Table::new(titles);
        for line in self.lines.iter().take(MOST_LINES) {
            let age = |ns: Option<u64>| ns.map(short).unwrap_or_default();
            table.row([
                line.of.requests.to_string(),
                short_name(line.group),
                age(line.p50_ns()),
                age(line.max_ns()),
                short(line.of.last_ns),
                line.waited_at.clone(),
                line.dropped_by.clone(),
            ]);
        }
        let mut rendered = table.render(Style::new());
        let rows = rendered.split_off(rendered.find('\n').map_or(0, |end| end + 1));
        text.push_str(&cut(&rendered, width, HEAD));
        text.push_str(&cut(&rows, width, Style::new()));
        let more = self.lines.len().saturating_sub(MOST_LINES);
        if more > 0 {
            let _ = writeln!(text, "and {}", count(more as u64, "more row"));
        }
        if self.no_room > 0 {
            let _ = writeln!(text, "{} are missing: there was no room", count(self.no_room, "request"));
        }
        text
    }

    pub(super) fn document(&self) -> CancelledDocument<'_> {
        CancelledDocument {
            for_ns: self.for_ns,
            requests: self.requests(),
            no_room: self.no_room,
            rows: self.lines.iter().map(CancelledLine::document).collect(),
        }
    }
}

impl<'a> CancelledLine<'a> {
    fn new(group: &'a str, of: CancelledRow, names: &PlaceNames) -> Self {
        let dropped = Dropper::new(&of, names);
        let (waited_at, dropped_by) = (waited_at(&of, names), dropped.text());
        Self { group, ages: Histogram::from(&of.ages), of, waited_at, dropped, dropped_by }
    }

    /// Adds another one of the same words.
    fn add(&mut self, other: Self) {
        let (own, of) = (&mut self.of, other.of);
        own.requests = own.requests.saturating_add(of.requests);
        own.last_ns = own.last_ns.min(of.last_ns);
        for (sum, more) in self.ages.buckets.iter_mut().zip(other.ages.buckets) {
            *sum = sum.saturating_add(more);
        }
        self.ages.scale = self.ages.scale.min(other.ages.scale);
        if other.ages.max_ns > self.ages.max_ns {
            (self.ages.max_ns, self.ages.max_task) = (other.ages.max_ns, other.ages.max_task);
            own.trace_id = of.trace_id;
        }
    }

    fn p50_ns(&self) -> Option<u64> {
        self.ages.quantile_ns(0.5)
    }

    fn max_ns(&self) -> Option<u64> {
        (self.ages.count() > 0).then_some(self.ages.max_ns)
    }

    fn document(&self) -> CancelledLineDocument<'_> {
        let Self { of, dropped, .. } = self;
        CancelledLineDocument {
            group: self.group,
            requests: of.requests,
            waited: match of.waited {
                WireWaited::Awaiting => "awaiting",
                WireWaited::Runnable => "runnable",
                WireWaited::NotBegun => "not_begun",
                WireWaited::Unknown => "unknown",
            },
            place: of.place,
            more_places: of.more_places,
            dropped_by: dropped.by,
            dropped_at: dropped.at.as_ref(),
            stack: of.stack,
            age_p50_ns: self.p50_ns(),
            age_max_ns: self.max_ns(),
            max_task: Some(self.ages.max_task).filter(|task| *task != 0),
            max_trace_id: of.trace_id.as_deref(),
            last_ns: of.last_ns,
            set: self.waited_at.contains(crate::waiting::place::IN_A_SET),
        }
    }
}

#[cfg(test)]
mod tests {
    use dormouse_protocol::HistogramRow;
    use dormouse_statistics::buckets::place;

    use super::*;
    use crate::waiting::place::tests::frame;

    fn row(group: u32, stack: u32, requests: u64, ages_ms: &[u64]) -> CancelledRow {
        let mut ages = Histogram::default();
        for ms in ages_ms {
            ages.buckets[place(ms * 1_000_000)] += 1;
            (ages.max_ns, ages.max_task) = (ages.max_ns.max(ms * 1_000_000), 17);
        }
        CancelledRow {
            group,
            waited: WireWaited::Awaiting,
            place: Some(4),
            stack: Some(stack),
            requests,
            last_ns: 2_000_000_000,
            ages: HistogramRow::without_tasks(&ages),
            ..CancelledRow::default()
        }
    }

    fn names() -> PlaceNames {
        let ours = || frame("dormouse::core::task::Task::drop_future", "/r/dormouse-1.0/src/core/task.rs", 1);
        let timeout = frame("core::ptr::drop_in_place<tokio::time::timeout::Timeout<X>>", "", 0);
        let worker =
            frame("tokio::runtime::scheduler::run", "/root/.cargo/registry/src/i/tokio-1/src/a.rs", 9);
        let connection = frame("core::ptr::drop_in_place<hyper::proto::h1::dispatch::Dispatcher<X>>", "", 0);
        let serve = frame("shop::serve", "/src/serve.rs", 12);
        let stacks = [
            (4, vec![frame("shop::brew", "/src/brew.rs", 7), serve.clone()]),
            (7, vec![ours(), timeout.clone(), serve.clone(), worker.clone()]),
            // As 7, from another thread.
            (8, vec![ours(), timeout, serve.clone(), frame("tokio::main", "", 0)]),
            (9, vec![ours(), connection, serve.clone(), worker]),
            (10, vec![ours(), serve]),
        ];
        PlaceNames(stacks.into())
    }

    fn listing(rows: Vec<CancelledRow>) -> CancelledListing<'static> {
        let rows = CancelledRows { for_ns: Some(400_000_000_000), rows, no_room: 0 };
        let group = |group| match group {
            1 => Some("GET /tea"),
            2 => Some("GET /menu"),
            _ => None,
        };
        CancelledListing::new(rows, &names(), group).unwrap()
    }

    #[test]
    fn stacks_that_read_the_same_share_a_line() {
        let answer =
            CancelledRow { place: None, stack: None, ages: HistogramRow::default(), ..row(2, 0, 1, &[]) };
        let not_begun = CancelledRow { place: None, waited: WireWaited::NotBegun, ..row(2, 10, 2, &[2]) };
        let listing = listing(vec![
            row(1, 7, 3, &[100, 110, 120]),
            row(1, 8, 2, &[900, 90]),
            row(1, 9, 1, &[4_000]),
            row(9, 9, 1, &[4_000]),
            CancelledRow { panicking: true, ..row(1, 10, 1, &[1]) },
            row(1, 2, 1, &[1]),
            not_begun,
            answer,
        ]);
        let text = anstream::adapter::strip_str(&listing.report(None)).to_string();
        insta::assert_snapshot!("cancelled", text);
        let json = serde_json::to_value(listing.document()).unwrap();
        let first = &json["rows"][0];
        assert_eq!((&json["requests"], &first["requests"]), (&11.into(), &5.into()), "{json}");
        assert_eq!((&first["dropped_by"], &first["dropped_at"]["line"]), (&"timeout".into(), &12.into()));
        assert_eq!((&first["age_max_ns"], &first["max_task"]), (&900_000_000.into(), &17.into()));
    }

    #[test]
    fn no_section_without_cancelled_requests() {
        assert_eq!(listing(vec![]).report(None), "");
        let none = CancelledRows { rows: vec![row(1, 7, 1, &[1])], ..CancelledRows::default() };
        assert!(CancelledListing::new(none, &names(), |_| Some("")).is_none(), "places are not recorded");
    }
}
