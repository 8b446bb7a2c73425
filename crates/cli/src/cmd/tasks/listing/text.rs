//! Tasks as a table.

use std::fmt::Write as _;

use clap::builder::styling::Style;
use dormouse_protocol::{TaskRow, WireTaskState};

use super::{Listing, is_unplaced, state, without_waker};
use crate::duration::short;
use crate::output::{DIM, HEAD};
use crate::render::table::Table;
use crate::text::{clean, count};

/// The longest name of a group in a table, in characters.
const MOST_NAME: usize = 40;

/// The tasks, a line each; lines are cut off at `width`.
pub(crate) fn report(listing: &Listing<'_>, width: Option<usize>) -> String {
    let mut text = cut(&listing.head(), width, HEAD);
    if !listing.tasks.is_empty() {
        let mut rendered = table(listing).render(Style::new());
        let rows = rendered.split_off(rendered.find('\n').map_or(0, |end| end + 1));
        text.push_str(&cut(&rendered, width, HEAD));
        text.push_str(&cut(&rows, width, Style::new()));
    }
    if listing.more > 0 {
        let _ = writeln!(text, "{DIM}and {}{DIM:#}", count(listing.more as u64, "more task"));
    }
    text.push_str(&cut(&listing.foot(), width, Style::new()));
    let cancelled = listing.cancelled.as_ref().map(|cancelled| cancelled.report(width)).unwrap_or_default();
    if cancelled.is_empty() { text } else { text + "\n" + &cancelled }
}

fn table(listing: &Listing<'_>) -> Table {
    // These columns only if they contain something.
    let has_cpu = listing.tasks.iter().any(|task| task.cpu_ns.is_some());
    let has_traces = listing.tasks.iter().any(|task| task.trace_id.is_some());
    let titles = [">TASK", "GROUP", ">AGE", "STATE", ">FOR", ">POLLS", ">WAKES", ">BUSY"];
    let more = [(has_cpu, ">CPU"), (has_traces, "TRACE"), (true, "PLACE")];
    let more = more.into_iter().filter_map(|(has, title)| has.then_some(title));
    let mut table = Table::new(titles.into_iter().chain(more));
    for task in &listing.tasks {
        let age = match task.age_ns {
            Some(age) => short(age),
            None => format!(">{}", short(listing.taken.times_ns.max(task.for_ns))),
        };
        // Empty: its poll goes on since before.
        let cpu = has_cpu.then(|| task.cpu_ns.map(short).unwrap_or_default());
        let cells = [
            task.task.to_string(),
            short_name(listing.group(task)),
            age,
            state(task.state).to_owned(),
            short(task.for_ns),
            task.polls.to_string(),
            task.wakes.to_string(),
            short(task.poll_ns),
        ];
        let trace = has_traces.then(|| clean(task.trace_id.as_deref().unwrap_or_default()));
        table
            .row(cells.into_iter().chain(cpu).chain(trace).chain([place(listing, task)]).collect::<Vec<_>>());
    }
    table
}

/// Where a task waits. One that is being polled does not.
fn place(listing: &Listing<'_>, task: &TaskRow) -> String {
    match without_waker(task) {
        Some(why) => format!("({why})"),
        None if task.state == WireTaskState::Polled => String::new(),
        None if is_unplaced(task) => "(not noted)".to_owned(),
        None => listing.places.line(task),
    }
}

/// A group's name as far as there is room for it.
pub(crate) fn short_name(group: &str) -> String {
    let group = clean(group);
    if group.chars().count() <= MOST_NAME {
        return group;
    }
    group.chars().take(MOST_NAME - 1).chain(['…']).collect()
}

/// Plain lines in a style, cut off at the edge of a terminal of this width.
pub(crate) fn cut(text: &str, width: Option<usize>, style: Style) -> String {
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        let end = width.and_then(|width| Some((width, line.char_indices().nth(width)?.0)));
        let shown = match end {
            // The last column has the sign that there was more.
            Some((width, _)) => line.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
            None => line.to_owned(),
        };
        let _ = writeln!(all, "{style}{shown}{style:#}");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::listing;
    use super::*;
    use crate::waiting::place::PlaceNames;
    use crate::waiting::place::tests::frame;
    use crate::waiting::tests::{list, task};

    #[test]
    fn each_task_has_a_line() {
        let mut waits = task(11, 1, WireTaskState::Awaiting, 3_000_000_000);
        (waits.age_ns, waits.places) = (None, vec![4]);
        let mut polled = task(12, 1, WireTaskState::Polled, 5_000);
        polled.places = vec![4];
        polled.trace_id = Some("4bf92f3577b34da6a3ce929d0e0e4736".to_owned());
        let list = list(vec![waits, polled]);
        let places = PlaceNames([(4, vec![frame("shop::brew", "/a/brew.rs", 7)])].into());
        let mut listing = listing(&list, places);
        listing.more = 1;
        let text = anstream::adapter::strip_str(&report(&listing, None)).to_string();
        insta::assert_snapshot!("tasks", text);
    }

    #[test]
    fn tasks_without_wakers_are_told_apart() {
        let of = |by_hand, state| TaskRow { has_waker: false, by_hand, ..task(1, 1, state, 1) };
        let list = list(Vec::new());
        let listing = listing(&list, PlaceNames::default());
        let awaiting = |by_hand| place(&listing, &of(by_hand, WireTaskState::Awaiting));
        assert_eq!([awaiting(false), awaiting(true)], ["(nothing has its waker)", "(entered by hand)"]);
        assert_eq!(place(&listing, &of(true, WireTaskState::Polled)), "");
    }

    #[test]
    fn lines_end_at_the_edge_of_a_terminal() {
        assert_eq!(cut("abcdef\nab\nabc\n", Some(3), Style::new()), "ab…\nab\nabc\n");
        assert_eq!(cut("äöü\n", Some(2), Style::new()), "ä…\n");
        assert_eq!(short_name(&"x".repeat(50)).chars().count(), 40);
        let list = list(vec![task(1, 1, WireTaskState::Awaiting, 1)]);
        for line in report(&listing(&list, PlaceNames::default()), Some(30)).lines() {
            assert!(anstream::adapter::strip_str(line).to_string().chars().count() <= 30, "{line}");
        }
    }
}
