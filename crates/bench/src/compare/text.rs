//! A comparison as text: a table for each workload, and below all of them the findings.

use std::fmt::Write as _;

use crate::row::Better;
use crate::table::{Table, value, wrapped};

use super::{Cell, Change, Compared, ComparedRow, Comparison, Family, Finding};

/// The explanation below the tables.
pub(super) fn legend(comparison: &Comparison) -> String {
    let mut changes =
        comparison.workloads.iter().flat_map(|it| &it.rows).flat_map(|row| &row.changes).flatten();
    let pace = if changes.any(|change| change.pace_slope.is_some()) {
        "of times as they were at one pace of the machine"
    } else {
        "at whatever pace the machine had"
    };
    format!(
        "A value is the median of its processes, ± its interval. A change is the shift of Hodges and Lehmann, \
         {pace}, p that of Mann and Whitney's test, corrected for all rows. ~: nothing is shown. small: shown, \
         below the threshold. ?: too few processes to show anything.",
    )
}

/// The letter of a side.
pub(super) fn letter(side: usize) -> String {
    char::from_digit(side as u32 + 10, 36).map_or_else(|| side.to_string(), |c| c.to_uppercase().to_string())
}

pub(super) fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    for (number, side) in comparison.sides.iter().enumerate() {
        _ = writeln!(text, "{}  {}", letter(number), side.path);
        if number == 0 || side.machine != comparison.sides[0].machine {
            _ = writeln!(text, "   {}", side.machine.line());
        }
    }
    for compared in &comparison.workloads {
        _ = writeln!(text);
        text += &table(compared, comparison.sides.len());
    }
    let mut paragraphs = vec![legend(comparison)];
    paragraphs.extend(comparison.notes.iter().cloned());
    paragraphs.extend(summary(comparison));
    for paragraph in paragraphs {
        _ = writeln!(text, "\n{}", wrapped(&paragraph, 98).join("\n"));
    }
    text
}

/// The findings, in sentences.
pub(super) fn summary(comparison: &Comparison) -> Vec<String> {
    let changes = comparison.workloads.iter().flat_map(|it| &it.rows).flat_map(|row| &row.changes);
    let mut summary = Vec::new();
    if let Some(needed) = comparison.processes_needed {
        summary.push(format!(
            "Undecided: {}. Processes differ more than the rounds of one do, and too few of them ran. \
             {needed} a side are the least: dormouse-bench NAME --runs {needed} -o PATH.",
            comparison.undecided,
        ));
    }
    for (finding, word) in [(Finding::Worse, "worse"), (Finding::Better, "better")] {
        summary.extend(found(comparison, finding).map(|row| format!("{word}: {row}")));
    }
    summary.extend(comparison.wrong.iter().cloned());
    summary.extend(comparison.lost.iter().map(|lost| format!("lost: {lost}")));
    summary.push(format!(
        "{} worse and {} better by {} % or more, of {} rows. Chance finds anything in {} % of comparisons.",
        comparison.worse,
        comparison.better,
        comparison.threshold_percent,
        changes.flatten().count(),
        comparison.risk * 100.0,
    ));
    summary
}

/// The workloads and rows that sides lack, with the reason.
pub(super) fn lost(workloads: &[Compared]) -> Vec<String> {
    let all =
        workloads.iter().flat_map(|compared| compared.lost().into_iter().map(move |lost| (compared, lost)));
    let words = |(compared, (side, row)): (&Compared, (usize, Option<&ComparedRow>))| match row {
        None => format!("{}, all of it, in {}", compared.bench, letter(side)),
        Some(row) => {
            let cell = &row.cells[side];
            let reason = cell.unavailable.clone().unwrap_or_else(|| {
                format!("measured by {} of {} processes", cell.processes, compared.processes[side])
            });
            format!("{} {} in {}: {reason}", compared.bench, row.name, letter(side))
        }
    };
    all.map(words).collect()
}

/// The rows with this finding: workload, row, side, change and its interval.
pub(super) fn found(comparison: &Comparison, finding: Finding) -> impl Iterator<Item = String> {
    let rows = comparison.workloads.iter().flat_map(|it| it.rows.iter().map(move |row| (&it.bench, row)));
    rows.flat_map(move |(bench, row)| {
        let changes = row.changes.iter().enumerate();
        let changes = changes.filter_map(|(other, change)| Some((other, change.as_ref()?)));
        changes.filter(move |(_, change)| change.finding == finding).map(move |(other, change)| {
            format!(
                "{bench} {} {} in {}{}",
                row.name,
                moved(change, row),
                letter(other + 1),
                interval(change)
            )
        })
    })
}

fn table(compared: &Compared, sides: usize) -> String {
    let letters: Vec<String> = (0..sides).map(letter).collect();
    let mut heading = vec!["row", "unit", "better"];
    for (number, letter) in letters.iter().enumerate() {
        heading.push(letter);
        if number > 0 {
            heading.extend(["change", "p", ""]);
        }
    }
    let mut table = Table::new(title(compared), &heading);
    for row in &compared.rows {
        let mut cells = vec![row.name.clone(), row.unit.clone(), better(row.better).to_owned()];
        for (number, cell) in row.cells.iter().enumerate() {
            cells.push(median(cell));
            if number > 0 {
                let change = row.changes.get(number - 1).and_then(Option::as_ref);
                cells.extend(change.map_or_else(<[String; 3]>::default, |change| {
                    [shown(change, row), p(change), word(change.finding).to_owned()]
                }));
            }
        }
        table.row(cells);
    }
    for family in &compared.families {
        let mut cells =
            vec![format!("geomean {}/", family.kind), family.unit.clone(), String::new(), String::new()];
        for percent in &family.percents {
            cells.extend([String::new(), mean(*percent), String::new(), String::new()]);
        }
        table.row(cells);
    }
    let mut out = Vec::new();
    // A vector takes every byte.
    _ = table.write(&mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// The workload, and how many processes of it each side has.
pub(super) fn title(compared: &Compared) -> String {
    let sides = compared.processes.iter().enumerate();
    let processes: Vec<String> = sides.map(|(side, n)| format!("{n} in {}", letter(side))).collect();
    format!("{}: processes: {}", compared.bench, processes.join(", "))
}

pub(super) fn better(better: Option<Better>) -> &'static str {
    match better {
        Some(Better::Lower) => "lower",
        Some(Better::Higher) => "higher",
        None => "-",
    }
}

/// The median, and how far its interval reaches.
pub(super) fn median(cell: &Cell) -> String {
    let Some(median) = cell.median else {
        return "unavailable".to_owned();
    };
    let reach =
        cell.low.zip(cell.high).map(|(low, high)| 100.0 * (median - low).max(high - median) / median.abs());
    match reach.filter(|reach| reach.is_finite()) {
        Some(reach) if reach < 10.0 => format!("{} ±{reach:.1}%", value(Some(median))),
        Some(reach) => format!("{} ±{reach:.0}%", value(Some(median))),
        None => value(Some(median)),
    }
}

/// The change as the table has it: as far as something is shown.
pub(super) fn shown(change: &Change, row: &ComparedRow) -> String {
    match change.finding {
        Finding::Nothing => "~".to_owned(),
        Finding::Few => format!("{} ?", moved(change, row)),
        _ => moved(change, row),
    }
}

fn moved(change: &Change, row: &ComparedRow) -> String {
    match change.percent {
        Some(_) => mean(change.percent),
        None if change.moved > 0.0 => format!("+{} {}", value(Some(change.moved)), row.unit),
        None => format!("{} {}", value(Some(change.moved)), row.unit),
    }
}

pub(super) fn mean(percent: Option<f64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:+.1}%"))
}

pub(super) fn interval(change: &Change) -> String {
    change
        .low_percent
        .zip(change.high_percent)
        .map_or_else(String::new, |(low, high)| format!(" ({low:+.1} .. {high:+.1})"))
}

pub(super) fn p(change: &Change) -> String {
    match change.p_corrected {
        Some(p) if p < 0.0005 => "<0.001".to_owned(),
        Some(p) => format!("{p:.3}"),
        None => "-".to_owned(),
    }
}

pub(super) fn word(finding: Finding) -> &'static str {
    match finding {
        Finding::Worse => "worse",
        Finding::Better => "better",
        Finding::Changed => "changed",
        Finding::Small => "small",
        Finding::Nothing | Finding::Few => "",
    }
}

/// A family as the page has it.
pub(super) fn family(family: &Family) -> String {
    format!("geomean {}/ ({} rows)", family.kind, family.rows)
}
