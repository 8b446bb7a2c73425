//! Compares runs of the bench: what got worse, what got better, and what is uncertain.
//!
//! - `side`: reports from files; `fit`: whether they can be compared; `judge`: the statistics;
//! - `text`, `page`: the comparison for people; `command`: what it takes, and how it ends.

mod command;
mod fit;
mod judge;
mod page;
mod side;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use anyhow::ensure;
use serde::Serialize;

pub(crate) use command::{CompareArgs, compare};
pub(crate) use judge::{Cell, Change, Compared, ComparedRow, Family, Finding};
use side::is_read;

use crate::machine::Machine;
use crate::report::WRONG;
use side::Side;

/// Runs side by side.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Comparison {
    /// The sides; the others are compared with the first.
    pub(crate) sides: Vec<ComparedSide>,
    /// Smaller changes count as small.
    pub(crate) threshold_percent: f64,
    /// The probability of finding anything where nothing differs.
    pub(crate) risk: f64,
    /// The workloads of all sides.
    pub(crate) workloads: Vec<Compared>,
    /// Rows that got worse, once for each side where they did.
    pub(crate) worse: usize,
    /// Rows that got better.
    pub(crate) better: usize,
    /// Workloads and rows of the first side that another one lacks, and why.
    pub(crate) lost: Vec<String>,
    /// Wrong answers on the sides but the first.
    pub(crate) wrong: Vec<String>,
    /// Changes that could not be decided, because there are too few processes.
    pub(crate) undecided: usize,
    /// How many processes for each side would decide them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) processes_needed: Option<usize>,
    /// Differences of machines and builds, warnings.
    pub(crate) notes: Vec<String>,
}

/// One side of a comparison.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ComparedSide {
    /// The file or directory, as it was given.
    pub(crate) path: String,
    /// The number of its reports: processes of all workloads.
    pub(crate) reports: usize,
    /// The machine of the first report.
    pub(crate) machine: Machine,
}

impl Comparison {
    /// Reads the reports at each of `paths`, and compares the first with all others.
    ///
    /// # Errors
    ///
    /// If a file at these paths is not a report (with file, line and reason), or if reports cannot
    /// be compared (with the fact that differs).
    pub(crate) fn of(
        paths: &[PathBuf],
        threshold_percent: f64,
        across_machines: bool,
    ) -> anyhow::Result<Self> {
        ensure!(paths.len() > 1, "name two files or directories of reports at least");
        let mut sides: Vec<Side> = paths.iter().map(|path| Side::read(path)).collect::<Result<_, _>>()?;
        side::check_once(&sides)?;
        let mut notes = fit::check(&sides, across_machines)?;
        if fit::is_one_machine(&sides) {
            notes.extend(fit::paces(&sides));
        } else {
            // Another kernel has another pace at all times.
            let reports = sides.iter_mut().flat_map(|side| &mut side.reports);
            reports.flat_map(|found| &mut found.report.rows).for_each(|row| row.pace.clear());
        }
        for side in &sides {
            let mut injected: Vec<String> = side.notes("INJECTED").map(|(_, note)| note.clone()).collect();
            injected.sort();
            injected.dedup();
            notes.extend(injected.iter().map(|note| format!("{}: {note}", side.name)));
        }
        Ok(Self::between(&sides, threshold_percent, notes))
    }

    fn between(sides: &[Side], threshold_percent: f64, notes: Vec<String>) -> Self {
        let workloads = judge::judge(sides, threshold_percent);
        let changes = || workloads.iter().flat_map(|it| &it.rows).flat_map(|row| &row.changes).flatten();
        let count = |finding| changes().filter(|change| change.finding == finding).count();
        let rows = workloads.iter().map(|it| it.rows.len()).sum();
        let undecided = workloads.iter().map(|it| it.undecided(rows)).sum();
        let wrong = sides.iter().skip(1).flat_map(|side| side.notes(WRONG));
        let wrong = wrong.map(|(place, note)| format!("{place}: {note}")).collect();
        let side = |side: &Side| {
            let machine = side.reports.first()?.report.machine.clone();
            Some(ComparedSide { path: side.name.clone(), reports: side.reports.len(), machine })
        };
        Self {
            sides: sides.iter().filter_map(side).collect(),
            threshold_percent,
            risk: judge::RISK,
            worse: count(Finding::Worse),
            better: count(Finding::Better),
            lost: text::lost(&workloads),
            wrong,
            undecided,
            processes_needed: (undecided > 0).then(|| judge::needed(rows)),
            notes,
            workloads,
        }
    }

    /// The comparison as text.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        text::text(self)
    }

    /// The comparison as one self-contained page of HTML.
    #[must_use]
    pub(crate) fn html(&self) -> String {
        page::html(self)
    }

    /// Why a gate should fail, in a few words: something got worse, is lost or wrong, or is
    /// undecided. `None` if it should pass.
    #[must_use]
    pub(crate) fn gate_failure(&self) -> Option<String> {
        let number = |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}"));
        let changes = self.workloads.iter().flat_map(|it| &it.rows).flat_map(|row| &row.changes);
        let reasons = [
            number(self.worse, "worse"),
            number(self.lost.len(), "lost"),
            number(self.wrong.len(), "wrong"),
            number(self.undecided, "undecided for want of processes"),
        ];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        let none = (changes.flatten().count() == 0).then(|| "no row could be compared".to_owned());
        if reasons.is_empty() { none } else { Some(reasons.join(", ")) }
    }
}
