//! Whether sides can be compared: what differs beside the code that is compared.
//!
//! Every report is compared with the first one, including those of the same side. Another machine
//! can be allowed; other parameters or another build profile cannot, because they change the
//! meaning of rows. The seed only determines the order of rows.

use anyhow::bail;
use dormouse_statistics::median;

use crate::machine::Machine;
use crate::report::BenchReport;

use super::side::{Found, Side};

/// Paces of sides that run in turn differ by less.
const NOTED_PERCENT: f64 = 5.0;

/// Refuses reports that cannot be compared. Returns notes on other differences.
pub(super) fn check(sides: &[Side], across_machines: bool) -> anyhow::Result<Vec<String>> {
    let all = || sides.iter().flat_map(|side| &side.reports);
    let Some(first) = all().next() else { return Ok(Vec::new()) };
    let mut notes = Vec::new();
    for found in all().skip(1) {
        let machines = differences(&machine(&first.report.machine), &machine(&found.report.machine));
        if !machines.is_empty() && !across_machines {
            bail!(
                "{} and {} are of different machines: {machines}; say --across-machines to compare them \
                 nevertheless",
                first.place,
                found.place
            );
        }
        add(&mut notes, "different machines", &machines);
        add(&mut notes, "different builds", &differences(&build(first), &build(found)));
        let alike = all().find(|other| other.report.bench == found.report.bench).unwrap_or(found);
        let parameters = differences(&params(&alike.report), &params(&found.report));
        if !parameters.is_empty() {
            bail!(
                "{} and {} ran {} with other parameters: {parameters}",
                alike.place,
                found.place,
                plain(&found.report.bench),
            );
        }
    }
    for side in sides {
        let is_there = |other: &&Found| side.reports.iter().any(|it| it.report.bench == other.report.bench);
        let mut missing: Vec<String> =
            all().filter(|other| !is_there(other)).map(|other| plain(&other.report.bench)).collect();
        missing.dedup();
        if !missing.is_empty() {
            notes.push(format!("{} has no {}", side.name, missing.join(", ")));
        }
    }
    let has_all = |bench: &str| {
        sides.iter().filter(|side| side.reports.iter().any(|it| it.report.bench == bench)).count() > 1
    };
    if !all().any(|found| has_all(&found.report.bench)) {
        bail!("no workload is in two of these: {}", notes.join("; "));
    }
    Ok(notes)
}

/// Whether all reports are of the first one's machine.
pub(super) fn is_one_machine(sides: &[Side]) -> bool {
    let mut machines =
        sides.iter().flat_map(|side| &side.reports).map(|found| machine(&found.report.machine));
    let first = machines.next();
    machines.all(|other| Some(other) == first)
}

/// How much slower the machine was for a side than for the first, where that is much.
pub(super) fn paces(sides: &[Side]) -> Vec<String> {
    let pace = |side: &Side| {
        let rows = side.reports.iter().flat_map(|found| &found.report.rows);
        median(&rows.flat_map(|row| row.pace.iter().copied()).collect::<Vec<_>>(), 0.0).map(|it| it.value)
    };
    let Some((first, usual)) = sides.first().and_then(|side| Some((side, pace(side)?))) else {
        return Vec::new();
    };
    let slower = |side: &Side| {
        let percent = 100.0 * (pace(side)? / usual - 1.0);
        let word = if percent > 0.0 { "slower" } else { "faster" };
        (percent.abs() >= NOTED_PERCENT).then(|| {
            format!(
                "{}: the machine was {:.0} % {word} than for {}: that is taken out of times, and hides \
                 changes; run the sides in turn",
                side.name,
                percent.abs(),
                first.name
            )
        })
    };
    sides.iter().skip(1).filter_map(slower).collect()
}

fn add(notes: &mut Vec<String>, what: &str, differences: &str) {
    let note = format!("{what}: {differences}");
    if !differences.is_empty() && !notes.contains(&note) {
        notes.push(note);
    }
}

type Facts = Vec<(String, String)>;

/// The facts that must be the same on both sides, unless different machines are allowed.
fn machine(machine: &Machine) -> Facts {
    let Machine { cpu, cpus, arch, hypervisor, governor, clocksource, kernel, clock_tier, .. } = machine;
    let facts = [
        ("cpu", shown(cpu.as_ref())),
        ("cpus", cpus.to_string()),
        ("arch", plain(arch)),
        ("hypervisor", shown(hypervisor.as_ref())),
        ("governor", shown(governor.as_ref())),
        ("clocksource", shown(clocksource.as_ref())),
        ("kernel", plain(kernel)),
        ("clock_tier", plain(clock_tier)),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The facts in which two builds may differ.
fn build(found: &Found) -> Facts {
    let Machine { rustc, dormouse, .. } = &found.report.machine;
    vec![("rustc".to_owned(), plain(rustc)), ("dormouse".to_owned(), plain(dormouse))]
}

fn params(report: &BenchReport) -> Facts {
    let profile = ("profile".to_owned(), plain(&report.machine.profile));
    let params = report.params.iter().filter(|(name, _)| *name != "seed");
    params.map(|(name, value)| (plain(name), plain(&value.to_string()))).chain([profile]).collect()
}

fn shown(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| plain(&value.to_string()))
}

/// The text without anything that a terminal obeys, and not longer than a line.
fn plain(text: &str) -> String {
    text.chars().take(80).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `name a, not b` for each fact that differs or is missing on one side.
fn differences(a: &Facts, b: &Facts) -> String {
    let find = |facts: &Facts, name: &str| {
        facts.iter().find(|fact| fact.0 == name).map_or_else(|| "none".to_owned(), |fact| fact.1.clone())
    };
    let mut names: Vec<&String> = a.iter().chain(b).map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    let differs = names.into_iter().filter_map(|name| {
        let (a, b) = (find(a, name), find(b, name));
        (a != b).then(|| format!("{name} {a}, not {b}"))
    });
    differs.collect::<Vec<_>>().join("; ")
}
