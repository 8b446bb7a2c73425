//! The chapters of the page, from top to bottom.

use std::collections::BTreeMap;

use super::Outcome;
use super::picture::{curves, dots};
use super::sections::{NEEDS, SECTIONS, Section};
use super::write::Html;
use crate::figures;
use crate::report::BenchReport;
use crate::row::{Params, Row};
use crate::table::{Line, Table, value};

/// All of it.
pub(super) fn body(html: &mut Html, outcomes: &[Outcome]) {
    let reports: Vec<&BenchReport> = outcomes.iter().filter_map(|outcome| outcome.report.as_ref()).collect();
    html.raw("<header><h1>dormouse bench</h1>");
    if let Some(report) = reports.first() {
        html.raw("<p class=\"quiet\">").text(report.machine.line()).raw("</p>");
    }
    summary(html, outcomes);
    html.raw("<nav aria-label=\"Sections\">");
    for (id, title) in links() {
        html.raw("<a href=\"#").text(id).raw("\">").text(title).raw("</a> ");
    }
    html.raw("</nav></header>\n<main>");
    machine(html, outcomes);
    html.raw(
        "<p class=\"quiet story\">In the pictures, a pale band behind a mark is the middle half of the ",
    );
    html.raw("values of a row, one a round.</p>");
    for section in &SECTIONS {
        let outcome = outcomes.iter().find(|outcome| outcome.name == section.workload);
        self::section(html, section, outcome);
    }
    goals(html, &reports);
    repeat(html, &reports);
    rows(html, &reports);
    html.raw("</main>\n");
}

fn links() -> impl Iterator<Item = (&'static str, &'static str)> {
    let sections = SECTIONS.iter().map(|section| (section.id, section.title));
    let last = [("goals", "Goals"), ("repeat", "How to repeat it"), ("rows", "All rows")];
    [("machine", "The machine")].into_iter().chain(sections).chain(last)
}

fn summary(html: &mut Html, outcomes: &[Outcome]) {
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let (over, failed) = (count(|outcome| outcome.is_over), count(|outcome| outcome.failure.is_some()));
    html.raw("<p>")
        .text(over)
        .raw(" of ")
        .text(outcomes.len())
        .raw(" workloads have run, each in a process ");
    html.raw("of its own");
    if failed == 0 {
        html.raw(". None failed.</p>");
    } else {
        html.raw("; ").text(failed).raw(" failed:</p><ul class=\"failures\">");
        for (outcome, reason) in
            outcomes.iter().filter_map(|outcome| Some((outcome, outcome.failure.as_ref()?)))
        {
            html.raw("<li><b>").text(outcome.name).raw("</b>: ").text(reason).raw("</li>");
        }
        html.raw("</ul>");
    }
}

/// The machine, and what works on it.
fn machine(html: &mut Html, outcomes: &[Outcome]) {
    html.raw("<section id=\"machine\"><h2>The machine, and what works on it</h2>");
    let Some(report) = outcomes.iter().find_map(|outcome| outcome.report.as_ref()) else {
        html.raw("<p>No workload has said anything.</p></section>");
        return;
    };
    let machine = &report.machine;
    let unknown = || "unknown".to_owned();
    let guest = match machine.hypervisor {
        Some(true) => "yes: interrupts between processors cost more, and other guests take time",
        Some(false) => "no",
        None => "unknown",
    };
    html.raw("<dl>");
    for (name, said) in [
        ("Processor", machine.cpu.clone().unwrap_or_else(unknown)),
        ("Processors to use", machine.cpus.to_string()),
        ("Virtual machine", guest.to_owned()),
        ("Kernel", format!("Linux {}, {}", machine.kernel, machine.arch)),
        ("Clock source", machine.clocksource.clone().unwrap_or_else(unknown)),
        ("Governor", machine.governor.clone().unwrap_or_else(unknown)),
        ("Load before the run", machine.load_1m.map_or_else(unknown, |load| format!("{load:.2}"))),
        ("Built by", format!("{}, profile {}", machine.rustc, machine.profile)),
        ("Thread clock", format!("tier {}", machine.clock_tier)),
        ("dormouse", machine.dormouse.clone()),
    ] {
        html.raw("<dt>").text(name).raw("</dt><dd>").text(said).raw("</dd>");
    }
    html.raw("</dl><table class=\"works\"><caption>What works here</caption><tbody>");
    for [name, workload, row] in NEEDS {
        let report = outcomes.iter().find(|of| of.name == workload).and_then(|of| of.report.as_ref());
        let row = report.and_then(|report| report.rows.iter().find(|of| of.name == row));
        let (class, mark, said) = match row {
            Some(Row { unavailable: Some(reason), .. }) => ("no", "no", reason.as_str()),
            Some(row) if row.n > 0 => ("yes", "yes", ""),
            _ => ("", "–", "not tried"),
        };
        html.raw("<tr><th scope=\"row\">").text(name).raw("</th><td class=\"").text(class).raw("\">");
        html.text(mark).raw("</td><td class=\"reason\">").text(said).raw("</td></tr>");
    }
    html.raw("</tbody></table></section>\n");
}

fn section(html: &mut Html, section: &Section, outcome: Option<&Outcome>) {
    html.raw("<section id=\"").text(section.id).raw("\"><h2>").text(section.title).raw("</h2>");
    if !section.origin.is_empty() {
        html.raw("<p class=\"quiet\">").text(section.origin).raw("</p>");
    }
    html.raw("<p class=\"story\">").text(section.problem).raw("</p>");
    if !section.here.is_empty() {
        html.raw("<p class=\"story\">").text(section.here).raw("</p>");
    }
    match outcome {
        Some(Outcome { report: Some(report), failure, origin, .. }) => {
            if let Some(reason) = failure {
                html.raw("<p class=\"failure\">The workload failed: ").text(reason).raw("</p>");
            }
            let id = |number: usize| format!("{}-{number}", section.id);
            for (number, picture) in section.dots.iter().enumerate() {
                dots(html, &id(number + 1), picture, &report.rows);
            }
            for (number, picture) in section.curves.iter().enumerate() {
                curves(html, &id(section.dots.len() + number + 1), picture, &report.rows);
            }
            // Several sections may show rows of one workload; the origin's has its tables.
            if !section.origin.is_empty() && !origin.is_empty() {
                tables(html, &figures::tables(origin, &report.rows, &report.params));
            }
        }
        Some(Outcome { failure: Some(reason), .. }) => {
            html.raw("<p class=\"failure\">No report: ").text(reason).raw("</p>");
        }
        _ => {
            html.raw("<p class=\"failure\">The workload ").text(section.workload).raw(" did not run.</p>");
        }
    }
    html.raw("</section>\n");
}

/// The first table, and the others behind it.
fn tables(html: &mut Html, tables: &[Table]) {
    let Some((first, others)) = tables.split_first() else { return };
    table(html, first);
    if !others.is_empty() {
        html.raw("<details><summary>").text(others.len()).raw(" more of its tables</summary>");
        for other in others {
            table(html, other);
        }
        html.raw("</details>");
    }
}

fn table(html: &mut Html, table: &Table) {
    // Its title is wrapped for terminals.
    let title = table.title.split_whitespace().collect::<Vec<_>>().join(" ");
    html.raw("<p class=\"quiet caption\">").text(&title);
    html.raw("</p><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"").text(&title);
    html.raw("\"><table>");
    let mut lines = table.lines.iter();
    if let Some(Line::Cells(cells)) = lines.next() {
        html.raw("<thead><tr>");
        for cell in cells {
            html.raw("<th scope=\"col\">").text(cell).raw("</th>");
        }
        html.raw("</tr></thead>");
    }
    html.raw("<tbody>");
    for line in lines {
        let (name, cells) = match line {
            Line::Cells(cells) => (cells.first().map_or("", String::as_str), cells.get(1..).unwrap_or(&[])),
            Line::Remark(name, sentence) => (name.as_str(), std::slice::from_ref(sentence)),
        };
        let is_origins = name.trim_start_matches("- ").starts_with("origin");
        html.raw(if is_origins { "<tr class=\"origins\">" } else { "<tr>" });
        html.raw("<th scope=\"row\">").text(name).raw("</th>");
        for cell in cells {
            html.raw("<td>").text(cell);
        }
        html.raw("</tr>");
    }
    html.raw("</tbody></table></div>");
}

/// The verdicts of goals, as notes have them, and their marks.
const VERDICTS: [(&str, &str, &str); 4] = [
    (": met", "met", "yes"),
    (": missed", "missed", "no"),
    (": not decided", "not decided", ""),
    (": not judged", "not judged", ""),
];

/// A goal: its text, its verdict and the class of that, and the figures that it was judged by.
type Goal<'n> = (&'n str, &'static str, &'static str, &'n str);

/// The goal of a note.
fn goal(note: &str) -> Option<Goal<'_>> {
    let note = note.strip_prefix("goal, ")?;
    let found = VERDICTS.iter().filter_map(|verdict| Some((note.find(verdict.0)?, verdict)));
    let (at, (said, word, class)) = found.min_by_key(|(at, _)| *at)?;
    let rest = note[at + said.len()..].trim_start_matches([';', ',', ' ']);
    Some((&note[..at], word, class, rest))
}

fn goals(html: &mut Html, reports: &[&BenchReport]) {
    let goals: Vec<_> = reports
        .iter()
        .flat_map(|report| report.notes.iter().filter_map(|note| Some((&report.bench, goal(note)?))))
        .collect();
    html.raw(
        "<section id=\"goals\"><h2>Goals</h2><p class=\"story\">Goals are judged by this run's numbers, ",
    );
    html.raw("which are noisy; a missed one does not fail a run. ");
    let counts: Vec<String> = VERDICTS
        .iter()
        .map(|(_, word, _)| (goals.iter().filter(|(_, goal)| goal.1 == *word).count(), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    html.text(counts.join(", ")).raw(".</p>");
    // A reader looks for these.
    let (open, others): (Vec<_>, Vec<_>) =
        goals.into_iter().partition(|(_, goal)| matches!(goal.1, "missed" | "not decided"));
    goal_table(html, &open);
    html.raw("<details><summary>The ").text(others.len()).raw(" others</summary>");
    goal_table(html, &others);
    html.raw("</details></section>\n");
}

fn goal_table(html: &mut Html, goals: &[(&String, Goal<'_>)]) {
    html.raw("<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Goals\">");
    html.raw("<table class=\"goals\"><tbody>");
    for (bench, (text, word, class, rest)) in goals {
        html.raw("<tr><th scope=\"row\">")
            .text(bench)
            .raw("</th><td class=\"")
            .text(class)
            .raw("\">")
            .text(word);
        html.raw("</td><td class=\"reason\">").text(text).raw("<small>").text(rest).raw("</small></td></tr>");
    }
    html.raw("</tbody></table></div>");
}

fn repeat(html: &mut Html, reports: &[&BenchReport]) {
    html.raw("<section id=\"repeat\"><h2>How to repeat it</h2><p class=\"story\">From a clone of dormouse ");
    if let Some(report) = reports.first() {
        html.text(&report.machine.dormouse).raw(", with ").text(&report.machine.rustc).raw(", ");
    }
    html.raw("on an idle machine:</p><pre>cargo build --release\ntarget/release/dormouse bench all");
    let flags = reports.first().map_or_else(String::new, |report| flags(&report.params));
    html.text(&flags).raw(" -o report</pre><p class=\"story\">One workload alone, with the same rows: ");
    html.raw("<code>dormouse bench keys")
        .text(&flags)
        .raw("</code>. Rows of a workload are sampled in turn, ");
    html.raw("in an order drawn anew each round from the seed; rows that compare two others compare values ");
    html.raw("of the same round. The JSON file of each workload lies beside this page and has every value, ");
    html.raw(
        "round by round.</p><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Settings\">",
    );
    html.raw("<table class=\"goals\"><tbody>");
    for report in reports {
        let plain =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let params: Vec<String> =
            report.params.iter().map(|(name, value)| format!("{name}: {}", plain(value))).collect();
        html.raw("<tr><th scope=\"row\">").text(&report.bench).raw("</th><td class=\"reason\">");
        html.text(params.join(", ")).raw("</td></tr>");
    }
    html.raw("</tbody></table></div></section>\n");
}

fn flags(params: &Params) -> String {
    let quick = params.get("quick").and_then(serde_json::Value::as_bool).unwrap_or_default();
    let seed = params.get("seed").and_then(serde_json::Value::as_u64).unwrap_or(1);
    let seed = if seed == 1 { String::new() } else { format!(" --seed {seed}") };
    format!("{}{seed}", if quick { " --quick" } else { "" })
}

/// Every row, and the notes that are no goals.
fn rows(html: &mut Html, reports: &[&BenchReport]) {
    html.raw("<section id=\"rows\"><h2>All rows</h2>");
    for report in reports {
        let absent = report.rows.iter().filter(|row| row.unavailable.is_some()).count();
        html.raw("<details><summary>").text(&report.bench).raw(": ").text(report.rows.len()).raw(" rows");
        if absent > 0 {
            html.raw(", ").text(absent).raw(" of them not available here");
        }
        html.raw("</summary><div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"Rows of ");
        html.text(&report.bench).raw("\"><table><thead><tr><th scope=\"col\">row</th>");
        for heading in ["unit", "median", "95 % of median", "min", "max"] {
            html.raw("<th scope=\"col\">").text(heading).raw("</th>");
        }
        html.raw("</tr></thead><tbody>");
        for row in report.rows.iter().filter(|row| row.unavailable.is_none()) {
            html.raw("<tr><th>").text(&row.name).raw("<td>").text(&row.unit).raw("<td>");
            html.text(value(row.median)).raw("<td>");
            if let Some(interval) = &row.ci95_median {
                html.text(value(Some(interval.low))).raw(" to ").text(value(Some(interval.high)));
            }

            html.raw("<td>").text(value(row.min)).raw("<td>").text(value(row.max));
        }
        html.raw("</tbody></table></div>");
        reasons(html, &report.rows);
        let notes: Vec<&String> = report.notes.iter().filter(|note| goal(note).is_none()).collect();
        if !notes.is_empty() {
            html.raw("<ul class=\"notes\">");
            for note in notes {
                html.raw("<li>").text(note).raw("</li>");
            }
            html.raw("</ul>");
        }
        html.raw("</details>");
    }
    html.raw("</section>\n");
}

/// The rows that are not available, by their reason.
fn reasons(html: &mut Html, rows: &[Row]) {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in rows {
        if let Some(reason) = row.unavailable.as_deref() {
            by_reason.entry(reason).or_default().push(&row.name);
        }
    }
    if by_reason.is_empty() {
        return;
    }
    html.raw("<dl class=\"absent\">");
    for (reason, names) in by_reason {
        html.raw("<dt>").text(names.join(", ")).raw("</dt><dd>").text(reason).raw("</dd>");
    }
    html.raw("</dl>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_found_in_notes() {
        let judged = goal("goal, 56 sites: at most 1 ms: met; update/x: median 0.5 ms");
        assert_eq!(judged, Some(("56 sites: at most 1 ms", "met", "yes", "update/x: median 0.5 ms")));
        let undecided = goal("goal, a: not decided, x is unavailable: met by nobody");
        assert_eq!(undecided.map(|goal| goal.1), Some("not decided"));
        assert_eq!(goal("goal of a kind"), None);
    }

    #[test]
    fn flags_say_how_it_ran() {
        let params = |quick: bool, seed: u64| {
            let mut params = Params::new();
            params.insert("quick".to_owned(), quick.into());
            params.insert("seed".to_owned(), seed.into());
            params
        };
        assert_eq!(flags(&params(true, 1)), " --quick");
        assert_eq!(flags(&params(false, 7)), " --seed 7");
        assert_eq!(flags(&Params::new()), "");
    }
}
