//! The statistics of a comparison: for each row the medians, the change, and the finding.
//!
//! # Method
//!
//! 1. A process gives one value for each row: the median of its rounds. Layout, neighbours and
//!    frequency differ between processes by more than the rounds of one differ, and affect all of
//!    them; so rounds are not independent. A side with a single process shows its rounds, and
//!    nothing can be found.
//! 2. On a shared machine all code takes more CPU time for a while. How much a row depends on the
//!    pace of the machine ([`crate::pace`]) is estimated from the processes of both sides as if
//!    they were one, and removed from their values (Quade's analysis of covariance by ranks). If
//!    only chance differs, the assignment of processes to sides is still random, so the test keeps
//!    its risk. If the sides met different paces, a change may be attributed to the pace, and is
//!    not found. Only rows in units of time are treated so.
//! 3. The change is the shift of Hodges and Lehmann between the values of the sides, in percent of
//!    the first side's median, with its interval.
//! 4. Mann and Whitney's test decides whether there is a change at all. There are many rows, so its
//!    p is corrected for all of them, after Benjamini and Hochberg. Rows whose values are all equal
//!    are not tested.
//! 5. A row got worse or better if the corrected p is at most [`RISK`], the interval excludes zero,
//!    and the change exceeds the threshold.

use std::cmp::Ordering;
use std::collections::HashMap;

use dormouse_statistics::{benjamini_hochberg, geometric_mean, mann_whitney, median, shift, slope};
use serde::Serialize;

use crate::row::{Better, Row};

use super::side::Side;

/// The chance to find anything where nothing differs; intervals leave out as much.
pub(super) const RISK: f64 = 0.01;

/// Units of rows that follow the pace of the machine.
const TIMES: [&str; 4] = ["ns", "us", "ms", "s"];

/// No row follows it further: what is more is chance.
const STEEPEST: f64 = 2.0;

/// The verdict on a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Finding {
    /// It got worse, past the threshold.
    Worse,
    /// It got better, past the threshold.
    Better,
    /// It changed past the threshold, but no direction is better.
    Changed,
    /// It changed, within the threshold.
    Small,
    /// No change was found.
    Nothing,
    /// There are too few processes to find anything.
    Few,
}

/// The values of a row on one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Cell {
    /// Number of processes that gave a value.
    pub(crate) processes: usize,
    /// Median of the processes; of the rounds, if there is one process.
    pub(crate) median: Option<f64>,
    /// Lower end of its interval.
    pub(crate) low: Option<f64>,
    /// Upper end of its interval.
    pub(crate) high: Option<f64>,
    /// Why there is no median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unavailable: Option<String>,
    #[serde(skip)]
    values: Vec<f64>,
    /// The values and paces of each process, in the order of `values`, where all have paces.
    #[serde(skip)]
    rounds: Vec<Vec<(f64, f64)>>,
}

/// A row of another side compared with the first side's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Change {
    /// How much the row's time grows with the pace of the machine (1: in proportion), if that was
    /// removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pace_slope: Option<f64>,
    /// The change in percent of the first side's median; `None` if that is zero.
    pub(crate) percent: Option<f64>,
    /// Lower end of its interval.
    pub(crate) low_percent: Option<f64>,
    /// Upper end of its interval.
    pub(crate) high_percent: Option<f64>,
    /// The probability of such a change if there is no difference.
    pub(crate) p: Option<f64>,
    /// `p`, corrected for all rows.
    pub(crate) p_corrected: Option<f64>,
    /// The verdict.
    pub(crate) finding: Finding,
    /// The change in the unit of the row.
    pub(crate) moved: f64,
    #[serde(skip)]
    leaves_out_zero: bool,
}

/// A row on all sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ComparedRow {
    /// Name, `kind/variant`.
    pub(crate) name: String,
    /// Unit of the medians.
    pub(crate) unit: String,
    /// In which direction it gets better.
    pub(crate) better: Option<Better>,
    /// One for each side.
    pub(crate) cells: Vec<Cell>,
    /// One for each side but the first; `None` if one of both has no value.
    pub(crate) changes: Vec<Option<Change>>,
}

/// The geometric mean of the changes of rows of one kind and unit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Family {
    /// The kind, with which the names of its rows begin.
    pub(crate) kind: String,
    /// Unit of its rows.
    pub(crate) unit: String,
    /// Rows that have a median above zero on all sides.
    pub(crate) rows: usize,
    /// One for each side but the first.
    pub(crate) percents: Vec<Option<f64>>,
}

/// A workload on all sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Compared {
    /// Name of the workload.
    pub(crate) bench: String,
    /// Its number of processes on each side.
    pub(crate) processes: Vec<usize>,
    /// The measured rows; those computed from others are left out.
    pub(crate) rows: Vec<ComparedRow>,
    /// Kinds with at least two rows.
    pub(crate) families: Vec<Family>,
}

/// Puts the sides beside each other, in the order of the first report that has a row.
pub(super) fn judge(sides: &[Side], threshold_percent: f64) -> Vec<Compared> {
    let mut benches: Vec<&str> = Vec::new();
    for found in sides.iter().flat_map(|side| &side.reports) {
        if !benches.contains(&&*found.report.bench) {
            benches.push(&found.report.bench);
        }
    }
    let mut compared: Vec<Compared> = benches.into_iter().map(|bench| beside(sides, bench)).collect();
    for other in 0..sides.len().saturating_sub(1) {
        let changes = compared.iter_mut().flat_map(|it| &mut it.rows).filter_map(|row| {
            let better = row.better;
            let few = few(row.cells[0].processes, row.cells[other + 1].processes);
            row.changes[other].as_mut().map(|change| (change, better, few))
        });
        decide(changes.collect(), threshold_percent);
    }
    compared
}

impl Compared {
    /// The sides but the first that lack what the first one has: all of the workload (`None`), or a
    /// row. A side lacks a row that fewer than half of its processes could measure.
    pub(super) fn lost(&self) -> Vec<(usize, Option<&ComparedRow>)> {
        let has =
            |row: &ComparedRow, side: usize| row.cells[side].processes * 2 >= self.processes[side].max(1);
        let of_side = |side: usize| {
            let is_whole = self.processes[0] > 0 && self.processes[side] == 0;
            let rows = self.rows.iter().filter(move |row| !is_whole && has(row, 0) && !has(row, side));
            is_whole.then_some((side, None)).into_iter().chain(rows.map(move |row| (side, Some(row))))
        };
        (1..self.processes.len()).flat_map(of_side).collect()
    }

    /// Whether a change is open because the side has too few processes, not the row alone.
    pub(super) fn undecided(&self, rows: usize) -> usize {
        let of_side = |side: usize| {
            let is_few = few(self.processes[0], self.processes[side])(rows);
            let changes = self.rows.iter().filter_map(move |row| row.changes[side - 1].as_ref());
            changes.filter(|change| is_few && change.finding == Finding::Few).count()
        };
        (1..self.processes.len()).map(of_side).sum()
    }
}

/// Whether even sides without a common value would not be a finding among this many rows.
fn few(a: usize, b: usize) -> impl Fn(usize) -> bool {
    move |rows| a < 2 || b < 2 || smallest_p(a, b) * rows as f64 > RISK
}

/// The p of sides of which one lies above the other: two of all ways to choose.
fn smallest_p(a: usize, b: usize) -> f64 {
    let ways = (1..=a.min(b)).fold(1.0, |ways, k| ways * (a.max(b) + k) as f64 / k as f64);
    2.0 / ways
}

/// How many processes a side must have to find one change among this many rows.
pub(super) fn needed(rows: usize) -> usize {
    (2..100).find(|&n| smallest_p(n, n) * rows as f64 <= RISK).unwrap_or(100)
}

fn decide(changes: Vec<(&mut Change, Option<Better>, impl Fn(usize) -> bool)>, threshold_percent: f64) {
    let tested: Vec<f64> = changes.iter().filter_map(|(change, ..)| change.p).collect();
    let mut corrected = benjamini_hochberg(&tested).into_iter();
    for (change, better, few) in changes {
        change.p_corrected = change.p.and_then(|_| corrected.next());
        let is_shown = change.p_corrected.is_some_and(|p| p <= RISK) && change.leaves_out_zero;
        let is_past = change.percent.is_none_or(|percent| percent.abs() >= threshold_percent);
        change.finding = match (is_shown, is_past, better) {
            (true, false, _) => Finding::Small,
            (true, true, None) => Finding::Changed,
            (true, true, Some(better)) if (better == Better::Lower) == (change.moved < 0.0) => {
                Finding::Better
            }
            (true, true, Some(_)) => Finding::Worse,
            (false, ..) if change.p.is_some() && !few(tested.len()) => Finding::Nothing,
            (false, ..) if change.moved == 0.0 => Finding::Nothing,
            (false, ..) => Finding::Few,
        };
    }
}

/// One workload, not yet decided.
fn beside(sides: &[Side], bench: &str) -> Compared {
    // The rows of each side by name, one a process, and the names in their order.
    let mut names: Vec<&str> = Vec::new();
    let mut by_name: HashMap<&str, Vec<Vec<&Row>>> = HashMap::new();
    for (number, side) in sides.iter().enumerate() {
        for found in side.reports.iter().filter(|found| found.report.bench == bench) {
            for row in found.report.rows.iter().filter(|row| !row.is_computed()) {
                let rows = by_name.entry(&row.name).or_insert_with(|| {
                    names.push(&row.name);
                    vec![Vec::new(); sides.len()]
                });
                rows[number].push(row);
            }
        }
    }
    let rows: Vec<ComparedRow> = names.into_iter().map(|name| compare(name, &by_name[name])).collect();
    let of_bench = |side: &Side| side.reports.iter().filter(|found| found.report.bench == bench).count();
    let processes = sides.iter().map(of_bench).collect();
    Compared { bench: bench.to_owned(), processes, families: families(&rows), rows }
}

fn compare(name: &str, sides: &[Vec<&Row>]) -> ComparedRow {
    let all = || sides.iter().flatten();
    let unit = all().find(|row| !row.values.is_empty()).map(|row| row.unit.clone()).unwrap_or_default();
    let cells: Vec<Cell> = sides.iter().map(|rows| Cell::of(rows, &unit)).collect();
    let changes = cells.iter().skip(1).map(|cell| Change::between(&cells[0], cell)).collect();
    ComparedRow { name: name.to_owned(), unit, better: all().find_map(|row| row.better), cells, changes }
}

impl Cell {
    fn of(rows: &[&Row], unit: &str) -> Self {
        let measured: Vec<&Row> =
            rows.iter().copied().filter(|row| row.unit == unit && !row.values.is_empty()).collect();
        let values = match measured[..] {
            [alone] => alone.values.clone(),
            _ => measured.iter().filter_map(|row| median(&row.values, 0.0)).map(|it| it.value).collect(),
        };
        let estimate = median(&values, 1.0 - RISK);
        let interval = estimate.as_ref().and_then(|estimate| estimate.interval.as_ref());
        let reason = || match rows {
            [] => "no such row".to_owned(),
            [row, ..] if row.unit != unit => format!("in {:?} there", row.unit),
            [row, ..] => row.unavailable.clone().unwrap_or_else(|| "it has no values".to_owned()),
        };
        Self {
            processes: measured.len(),
            median: estimate.as_ref().map(|estimate| estimate.value),
            low: interval.map(|interval| interval.low),
            high: interval.map(|interval| interval.high),
            unavailable: estimate.is_none().then(reason),
            rounds: rounds(&measured),
            values,
        }
    }
}

/// The values and paces of each process; none where one has no paces, or is the only one.
fn rounds(rows: &[&Row]) -> Vec<Vec<(f64, f64)>> {
    let has_pace = |row: &&Row| !row.pace.is_empty() && row.values.iter().all(|value| *value > 0.0);
    let of = |row: &&Row| row.values.iter().copied().zip(row.pace.iter().copied()).collect();
    let is_paced = rows.len() > 1 && TIMES.contains(&&*rows[0].unit) && rows.iter().all(has_pace);
    if is_paced { rows.iter().map(of).collect() } else { Vec::new() }
}

/// The values of two sides as they were at one pace of the machine, and the slope of that.
fn at_one_pace(sides: [&Cell; 2]) -> Option<([Vec<f64>; 2], f64)> {
    let middle =
        |values: &mut dyn Iterator<Item = f64>| Some(median(&values.collect::<Vec<_>>(), 0.0)?.value);
    let point = |rounds: &Vec<(f64, f64)>| {
        let pace = middle(&mut rounds.iter().map(|(_, pace)| pace.ln()))?;
        Some((pace, middle(&mut rounds.iter().map(|(value, _)| value.ln()))?))
    };
    let points: Vec<(f64, f64)> = sides.iter().flat_map(|side| &side.rounds).filter_map(point).collect();
    let slope = slope(&points)?.clamp(0.0, STEEPEST);
    let usual = middle(&mut points.iter().map(|(pace, _)| *pace))?;
    let settled = |rounds: &Vec<(f64, f64)>| {
        middle(&mut rounds.iter().map(|(value, pace)| value * (slope * (usual - pace.ln())).exp()))
    };
    let values = sides.map(|side| side.rounds.iter().filter_map(settled).collect::<Vec<_>>());
    let is_whole = values.iter().zip(sides).all(|(values, side)| values.len() == side.values.len());
    is_whole.then_some((values, slope))
}

impl Change {
    fn between(a: &Cell, b: &Cell) -> Option<Self> {
        let (pace_slope, first, second, middle) = match at_one_pace([a, b]) {
            Some(([first, second], slope)) => {
                let middle = median(&first, 0.0).map(|it| it.value);
                (Some(slope), first, second, middle)
            }
            None => (None, a.values.clone(), b.values.clone(), a.median),
        };
        let moved = shift(&first, &second, 1.0 - RISK)?;
        let base = middle.map(f64::abs).filter(|&base| base > 0.0);
        let percent = |moved: f64| base.map(|base| 100.0 * moved / base).filter(|it| it.is_finite());
        let interval = moved.interval.as_ref();
        let any = *first.first()?;
        let varies =
            first.iter().chain(&second).any(|value| value.partial_cmp(&any) != Some(Ordering::Equal));
        let is_tested = a.processes > 1 && b.processes > 1 && varies;
        Some(Self {
            pace_slope,
            percent: percent(moved.value).or((!varies).then_some(0.0)),
            low_percent: interval.and_then(|interval| percent(interval.low)),
            high_percent: interval.and_then(|interval| percent(interval.high)),
            p: is_tested.then(|| mann_whitney(&first, &second)).flatten().map(|test| test.p),
            p_corrected: None,
            finding: Finding::Nothing,
            moved: moved.value,
            leaves_out_zero: interval.is_some_and(|interval| !interval.contains(0.0)),
        })
    }
}

fn families(rows: &[ComparedRow]) -> Vec<Family> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        let kind = row.name.split_once('/').map(|(kind, _)| (kind, &*row.unit));
        kinds.extend(kind.filter(|kind| !kinds.contains(kind)));
    }
    let family = |(kind, unit): (&str, &str)| {
        let is_in = |row: &&ComparedRow| {
            row.unit == unit && row.name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('/'))
        };
        let is_above_zero =
            |row: &&ComparedRow| row.cells.iter().all(|cell| cell.median.is_some_and(|median| median > 0.0));
        let rows: Vec<&ComparedRow> = rows.iter().filter(is_in).filter(is_above_zero).collect();
        let percents = (0..rows.first()?.changes.len()).map(|other| {
            let percent = |row: &&ComparedRow| row.changes[other].as_ref()?.percent;
            let ratios: Vec<f64> = rows.iter().filter_map(percent).map(|it| 1.0 + it / 100.0).collect();
            geometric_mean(&ratios).map(|mean| 100.0 * (mean - 1.0))
        });
        let (percents, kind, unit) = (percents.collect(), kind.to_owned(), unit.to_owned());
        (rows.len() > 1).then_some(Family { kind, unit, rows: rows.len(), percents })
    };
    kinds.into_iter().filter_map(family).collect()
}
