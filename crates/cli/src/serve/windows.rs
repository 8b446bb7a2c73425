//! The last seconds of a service, for the page: the readings that windows begin with, and the
//! figures of each group in each window.
//!
//! A window goes from a reading that is kept to the last one. All readings of the last 11 seconds
//! are kept, of the minute one in 6 seconds, of ten minutes one in 60: so a window is up to a tenth
//! longer than its name says, and its rates are over the time that it has. Until then it begins
//! with the first reading. Where groups are many, fewer readings are kept, and the longest windows
//! are shorter.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use dormouse_protocol::figures::{
    CALL_FIGURES, CallFigure, CallSpan, Figure, FigureColumn, FigurePart, FigureUnit, FigureValue,
    FigureView, GROUP_FIGURES, GroupFigure, GroupSpan, RUNTIME_FIGURES, RuntimeSpan, percent,
};
use dormouse_protocol::{CallRow, GroupRow, OwnCost, RuntimeRow, Stat};
use serde::Serialize;

use super::hub::Snapshot;
use crate::client::room::AnswerRoom;

/// The windows, in seconds.
pub(super) const WINDOWS: [u64; 4] = [1, 10, 60, 600];

/// The numbers of a histogram that the page shows.
const PARTS: [FigurePart; 4] = [FigurePart::Count, FigurePart::P50, FigurePart::P90, FigurePart::P99];

const SECOND_NS: u64 = 1_000_000_000;

/// The readings of a service that windows begin with, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    readings: VecDeque<Arc<Snapshot>>,
    /// The last reading in which each group had other totals than in the one before, in
    /// nanoseconds. (Groups stay where they are for ever.)
    changed_ns: Vec<u64>,
}

/// The use of a service in each window.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) each: [Stat; 4],
    /// The first reading of the longest window, in nanoseconds.
    pub(super) oldest_ns: u64,
    changed_ns: Vec<u64>,
}

/// The use of a service in one window.
#[derive(Debug, Serialize)]
pub(super) struct ProcessWindow {
    elapsed_ns: u64,
    cpu_percent: f64,
    /// The part of it that groups have; null where CPU time is refused or none was used.
    in_groups_percent: Option<f64>,
    /// CPU time of dormouse itself, in percent of a CPU; null where the service reports none.
    own_percent: Option<f64>,
    /// Whether that is all: not if a part of it is not known.
    own_is_whole: bool,
    /// A sentence about the CPU limit that throttled it notably; null if none did.
    throttled: Option<String>,
    /// The runtimes that the service has shown, by the keys of figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runtimes: Vec<BTreeMap<&'static str, FigureValue>>,
}

/// The use of a group in one window.
#[derive(Debug, Serialize)]
pub(super) struct GroupWindow {
    /// In the order of [`columns`].
    cells: Vec<FigureValue>,
    /// In the order of [`histograms`]: the numbers of [`PARTS`].
    times: Vec<[FigureValue; 4]>,
    /// A row for each peer, its cells in the order of [`call_columns`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    calls: Vec<Vec<FigureValue>>,
}

/// The outgoing calls of a window, by group; those that took the most time first.
#[derive(Debug)]
pub(super) struct WindowCalls<'a>(HashMap<u32, Vec<&'a CallRow>>);

impl<'a> WindowCalls<'a> {
    pub(super) fn of(window: &'a Stat) -> WindowCalls<'a> {
        let mut by_group: HashMap<u32, Vec<&CallRow>> = HashMap::new();
        for row in &window.calls {
            by_group.entry(row.group).or_default().push(row);
        }
        for rows in by_group.values_mut() {
            rows.sort_by_key(|row| Reverse(row.times.sum_ns));
        }
        WindowCalls(by_group)
    }

    fn cells(&self, group: u32) -> Vec<Vec<FigureValue>> {
        let rows = self.0.get(&group).into_iter().flatten();
        rows.map(|row| {
            let span = CallSpan { row, group: None };
            call_columns().map(|(figure, column)| (figure.of)(&span).part(column.part)).collect()
        })
        .collect()
    }
}

/// The figures that are columns of a group's calls, from left to right.
pub(super) fn call_columns() -> impl Iterator<Item = (&'static Figure<CallFigure>, &'static FigureColumn)> {
    // As they stand in the table.
    let all =
        CALL_FIGURES.iter().flat_map(|figure| figure.columns.iter().map(move |column| (figure, column)));
    all.filter(|(_, column)| column.view == FigureView::Page)
}

impl History {
    /// Adds a reading, unless it is known, and drops those that no window needs, for whose rows
    /// there is no room, or that take the memory which the next answers of their user need.
    pub(super) fn add(&mut self, snapshot: &Arc<Snapshot>, most_rows: usize) {
        if let Some(last) = self.readings.back() {
            if last.at >= snapshot.at {
                return;
            }
            // Differences are of one conversation: another program may run in the process now, and
            // its CPU clock goes on.
            if !Arc::ptr_eq(&last.hello, &snapshot.hello) {
                *self = History::default();
            }
        }
        let now_ns = snapshot.stat.mono_ns;
        let before = self.readings.back().map_or(&[][..], |last| &last.stat.groups);
        self.changed_ns.resize(snapshot.stat.groups.len(), now_ns);
        for ((at, group), changed_ns) in snapshot.stat.groups.iter().enumerate().zip(&mut self.changed_ns) {
            if before.get(at) != Some(group) {
                *changed_ns = now_ns;
            }
        }
        self.readings.push_back(Arc::clone(snapshot));
        let mut at = 1;
        while at + 1 < self.readings.len() {
            let mono_ns = |at: usize| self.readings[at].stat.mono_ns;
            if mono_ns(at + 1).saturating_sub(mono_ns(at - 1)) <= gap_ns(now_ns.saturating_sub(mono_ns(at))) {
                self.readings.remove(at);
            } else {
                at += 1;
            }
        }
        let rows = (snapshot.stat.groups.len() + snapshot.stat.calls.len()).max(1);
        let is_old = |of: &Snapshot| now_ns.saturating_sub(of.stat.mono_ns) >= age_ns(WINDOWS[3]);
        let is_scarce = || snapshot.room.as_ref().is_some_and(AnswerRoom::is_scarce);
        while self.readings.len() > 2
            && (is_old(&self.readings[1]) || self.readings.len() * rows > most_rows || is_scarce())
        {
            self.readings.pop_front();
        }
    }

    /// The use of the service from the beginning of each window to `now`.
    pub(super) fn windows(&self, now: &Stat) -> Windows {
        let each = WINDOWS.map(|seconds| {
            let is_past =
                |of: &&Arc<Snapshot>| now.mono_ns.saturating_sub(of.stat.mono_ns) >= age_ns(seconds);
            let begin = self.readings.iter().rev().find(is_past).or(self.readings.front());
            now.since(begin.map_or(now, |begin| &begin.stat))
        });
        let oldest_ns = self.readings.front().map_or(0, |oldest| oldest.stat.mono_ns);
        Windows { each, oldest_ns, changed_ns: self.changed_ns.clone() }
    }
}

impl Windows {
    /// Whether a group may have other figures than in a sample whose windows began at `oldest_ns`.
    /// If its totals have not changed since then, all its windows were empty, and still are.
    pub(super) fn may_have_changed(&self, group: usize, oldest_ns: u64) -> bool {
        self.changed_ns.get(group).is_none_or(|&changed_ns| changed_ns > oldest_ns)
    }
}

/// The age from which a reading begins a window: readings are not a second apart to the
/// nanosecond.
fn age_ns(seconds: u64) -> u64 {
    seconds * SECOND_NS - SECOND_NS / 2
}

/// The longest time between two readings that is left around one of that age.
fn gap_ns(age_ns: u64) -> u64 {
    match age_ns / SECOND_NS {
        0..=10 => 0,
        11..=65 => 6 * SECOND_NS,
        _ => 60 * SECOND_NS,
    }
}

impl ProcessWindow {
    pub(super) fn of(window: &Stat) -> ProcessWindow {
        ProcessWindow {
            elapsed_ns: window.mono_ns,
            cpu_percent: percent(window.process_cpu_ns, window.mono_ns),
            in_groups_percent: window.coverage_percent(),
            own_percent: window.own.map(|own| percent(own.cpu_ns(), window.mono_ns)),
            own_is_whole: window.own.is_none_or(OwnCost::is_whole),
            throttled: window.cpu_limits.as_ref().and_then(|limits| limits.notices().next()),
            runtimes: window.runtimes.iter().map(|row| runtime(row, window.mono_ns)).collect(),
        }
    }
}

impl GroupWindow {
    /// The figures of a group whose totals are `now`.
    pub(super) fn of(
        now: &GroupRow,
        recent: &GroupRow,
        calls: &WindowCalls<'_>,
        interval_ns: u64,
        is_refused: bool,
    ) -> GroupWindow {
        let span = GroupSpan { now, counted: recent, recent, interval_ns, is_refused };
        let (mut cells, mut times) = (Vec::new(), Vec::new());
        for figure in GROUP_FIGURES {
            let mut shown = shown(figure).peekable();
            let is_histogram = matches!(figure.of, GroupFigure::Histogram(_));
            if shown.peek().is_some() || is_histogram {
                let value = figure.value(&span);
                cells.extend(shown.map(|column| (column.place, value.part(column.part))));
                if is_histogram {
                    times.push(PARTS.map(|part| value.part(part)));
                }
            }
        }
        cells.sort_by_key(|(place, _)| *place);
        let cells = cells.into_iter().map(|(_, cell)| cell).collect();
        GroupWindow { cells, times, calls: calls.cells(now.id) }
    }
}

fn runtime(row: &RuntimeRow, interval_ns: u64) -> BTreeMap<&'static str, FigureValue> {
    let span = RuntimeSpan { row, interval_ns };
    let all = RUNTIME_FIGURES.iter().map(|figure| (figure.key, (figure.of)(&span)));
    all.filter(|(_, value)| *value != FigureValue::Absent).collect()
}

/// The columns of a figure on the page, which shows names by itself.
fn shown(figure: &'static Figure<GroupFigure>) -> impl Iterator<Item = &'static FigureColumn> {
    let columns = figure.columns.iter();
    columns.filter(|column| column.view == FigureView::Page && column.unit != FigureUnit::Name)
}

/// The figures that are columns of the page, from left to right.
pub(super) fn columns() -> Vec<(&'static Figure<GroupFigure>, &'static FigureColumn)> {
    let all = GROUP_FIGURES.iter().flat_map(|figure| shown(figure).map(move |column| (figure, column)));
    let mut columns: Vec<_> = all.collect();
    columns.sort_by_key(|(_, column)| column.place);
    columns
}

/// The figures that are histograms.
pub(super) fn histograms() -> impl Iterator<Item = &'static Figure<GroupFigure>> {
    GROUP_FIGURES.iter().filter(|figure| matches!(figure.of, GroupFigure::Histogram(_)))
}

#[cfg(test)]
mod tests {
    use std::sync::{LazyLock, OnceLock};
    use std::time::{Duration, Instant};

    use dormouse_protocol::{Hello, StatPart};

    use super::*;

    const MOST_ROWS: usize = 12_000;

    static HELLO: LazyLock<Arc<Hello>> = LazyLock::new(Arc::default);

    fn at(begun: Instant, seconds: u64, groups: usize) -> Arc<Snapshot> {
        let stat = Stat {
            mono_ns: (1_000 + seconds) * SECOND_NS,
            process_cpu_ns: seconds * SECOND_NS / 2,
            groups: vec![GroupRow::default(); groups],
            ..Stat::default()
        };
        let at = begun + Duration::from_secs(seconds);
        let (whole, news) = (OnceLock::new(), OnceLock::new());
        Arc::new(Snapshot {
            hello: Arc::clone(&HELLO),
            stat,
            groups_left_out: 0,
            room: None,
            part: StatPart::Groups,
            at,
            unix_ms: 0,
            whole,
            news,
        })
    }

    fn after(seconds: u64, groups: usize) -> (usize, [u64; 4]) {
        let (begun, mut history) = (Instant::now(), History::default());
        for second in 0..=seconds {
            history.add(&at(begun, second, groups), MOST_ROWS);
        }
        let now = at(begun, seconds, groups);
        (history.readings.len(), history.windows(&now.stat).each.map(|window| window.mono_ns / SECOND_NS))
    }

    #[test]
    fn windows_are_as_long_as_their_names() {
        assert_eq!(after(0, 1).1, [0; 4]);
        assert_eq!(after(7, 1).1, [1, 7, 7, 7]);
        for seconds in [700, 701, 730, 2_000] {
            let (kept, [second, ten, minute, most]) = after(seconds, 1);
            assert!(kept < 40, "{kept}");
            assert_eq!((second, ten), (1, 10));
            assert!((60..=66).contains(&minute) && (600..=660).contains(&most), "{minute} {most}");
        }
    }

    #[test]
    fn many_groups_have_shorter_windows() {
        let (kept, [second, ten, ..]) = after(100, 1_000);
        assert_eq!((kept, second, ten), (12, 1, 10));
    }

    #[test]
    fn another_program_begins_anew() {
        let (begun, mut history) = (Instant::now(), History::default());
        history.add(&at(begun, 50, 1), MOST_ROWS);
        let mut next = Arc::into_inner(at(begun, 51, 1)).unwrap();
        next.hello = Arc::default();
        history.add(&Arc::new(next), MOST_ROWS);
        assert_eq!(history.readings.len(), 1);
    }

    #[test]
    fn readers_that_stopped_see_what_changed() {
        let (begun, mut history) = (Instant::now(), History::default());
        let mut add = |second| {
            let mut reading = Arc::into_inner(at(begun, second, 2)).unwrap();
            // The first group works in the fifth second, the other one never.
            reading.stat.groups[0].cpu_ns = if second < 5 { 0 } else { 7 };
            let reading = Arc::new(reading);
            history.add(&reading, MOST_ROWS);
            history.windows(&reading.stat)
        };
        let changed = |windows: &Windows, seen: &Windows| {
            [0, 1].map(|group| windows.may_have_changed(group, seen.oldest_ns))
        };
        let first = add(1);
        let samples: Vec<Windows> = (2..=1_400).map(&mut add).collect();
        let at = |second: usize| &samples[second - 2];
        assert_eq!(changed(at(4), &first), [false, false]);
        assert_eq!(changed(at(5), at(4)), [true, false]);
        assert_eq!(changed(at(300), at(299)), [true, false], "it is in a window");
        // A reader that takes no sample for long, while the group leaves all windows.
        for seen in [&first, at(4), at(6), at(300)] {
            assert_eq!(changed(at(1_400), seen), [true, false]);
        }
        assert_eq!(changed(at(1_400), at(1_300)), [false, false], "it had left them before");
    }
}
