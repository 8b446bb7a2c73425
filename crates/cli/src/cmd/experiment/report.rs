//! The findings of an experiment, as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::judge::{ERROR, Finding, Verdict};
use super::metric::Metric;
use super::pairs::{Statistic, Whose};
use super::trial::{End, Trial};
use crate::duration::{short, short_of};
use crate::output::{BAD, DIM, FAIR, GOOD, HEAD};
use crate::render::table::Table;
use crate::text::{clean, count, list};

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Document<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    keys: &'a [String],
    metric: &'a str,
    /// `ns`, `bytes`, or `1` for occurrences.
    unit: &'a str,
    elapsed_ns: u64,
    /// `time`, `clear`, `asked` or `failure`.
    ended: &'static str,
    pairs: usize,
    switches: u64,
    /// Nanoseconds of one switch, on average.
    switch_ns: u64,
    /// CPU time of dormouse's own threads, of one processor; null where nothing was measured.
    looking_percent: Option<f64>,
    /// The confidence of all intervals together.
    confidence_percent: f64,
    rows: Vec<RowDocument<'a>>,
}

#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RowDocument<'a> {
    /// `process`, where only groups count `groups`; `average`: of the groups' changes, each weighed
    /// by how steady it is; `group`.
    of: &'static str,
    /// Null but for a group.
    group: Option<&'a str>,
    group_id: Option<u32>,
    statistic: &'static str,
    requests_off: u64,
    requests_on: u64,
    /// By request; null for the average.
    off: Option<f64>,
    on: Option<f64>,
    /// The change relative to `off`, in percent. Null if that is 0, or too little was seen;
    /// likewise the others.
    change_percent: Option<f64>,
    low_percent: Option<f64>,
    high_percent: Option<f64>,
    /// `more`, `less`, `nothing` or `too-few`.
    verdict: &'static str,
    /// The least change that nine experiments in ten would have shown.
    visible_percent: Option<f64>,
    /// Whether requests last longer than turns: then the size of a change is no good.
    mixed: bool,
}

impl<'a> Document<'a> {
    pub(super) fn of(trial: &'a Trial, end: &End) -> Document<'a> {
        let row = |finding: &'a Finding| {
            let contrast = &finding.contrast;
            let id = match contrast.whose {
                Whose::All | Whose::Average => None,
                Whose::Group(id) => Some(id),
            };
            RowDocument {
                of: match contrast.whose {
                    Whose::All if trial.metric == Metric::Cpu => "process",
                    Whose::All => "groups",
                    Whose::Average => "average",
                    Whose::Group(_) => "group",
                },
                group: id.map(|id| name(trial, id)),
                group_id: id,
                statistic: statistic(contrast.statistic),
                requests_off: contrast.requests[0],
                requests_on: contrast.requests[1],
                off: contrast.values.map(|[off, _]| off),
                on: contrast.values.map(|[_, on]| on),
                change_percent: finding.change.and_then(finite_percent),
                low_percent: finding.interval.and_then(|[low, _]| finite_percent(low)),
                high_percent: finding.interval.and_then(|[_, high]| finite_percent(high)),
                verdict: match finding.verdict {
                    Verdict::More => "more",
                    Verdict::Less => "less",
                    Verdict::Nothing => "nothing",
                    Verdict::TooFew => "too-few",
                },
                visible_percent: finding.visible.and_then(finite_percent),
                mixed: contrast.is_mixed,
            }
        };
        Document {
            kind: "experiment",
            pid: trial.pid(),
            keys: &trial.switch.names,
            metric: trial.metric.name(),
            unit: &trial.unit,
            elapsed_ns: u64::try_from(trial.elapsed.as_nanos()).unwrap_or(u64::MAX),
            ended: match end {
                End::Time => "time",
                End::Clear => "clear",
                End::Asked => "asked",
                End::Broken(_) => "failure",
            },
            pairs: trial.pairs.len(),
            switches: trial.switch.times,
            switch_ns: trial.switch.took_ns / trial.switch.times.max(1),
            looking_percent: looking_percent(trial),
            confidence_percent: 100.0 * (1.0 - ERROR),
            rows: trial.judge.findings.iter().map(row).collect(),
        }
    }
}

/// The whole report.
pub(super) fn text(trial: &Trial, end: &End) -> String {
    let mut text = String::new();
    let (keys, pairs) = (list(&trial.switch.names, 4), count(trial.pairs.len() as u64, "pair"));
    let _ = writeln!(
        text,
        "{HEAD}{}: what {keys} costs:{HEAD:#} {} in {}, {pairs} of turns off and on",
        clean(trial.who()),
        clean(trial.metric.name()),
        short_of(trial.elapsed),
    );
    let mut table =
        Table::new(["GROUP", "", ">REQUESTS", ">OFF", ">ON", ">CHANGE", ">AT LEAST", ">AT MOST", "VERDICT"]);
    let has_p99 = trial.metric == Metric::Latency;
    for finding in &trial.judge.findings {
        let contrast = &finding.contrast;
        let group = match contrast.whose {
            Whose::All if trial.metric == Metric::Cpu => "(process)".to_owned(),
            Whose::All => "(all groups)".to_owned(),
            Whose::Average => "(average)".to_owned(),
            Whose::Group(id) => clean(name(trial, id)),
        };
        // Where both states are mixed, the size of a change is no good.
        let part =
            |part: Option<f64>| part.filter(|_| !contrast.is_mixed).map_or_else(|| "?".to_owned(), percent);
        table.row([
            group,
            if has_p99 { statistic(contrast.statistic).to_owned() } else { String::new() },
            (contrast.requests[0] + contrast.requests[1]).to_string(),
            contrast.values.map_or_else(String::new, |[off, _]| figure(off, &trial.unit)),
            contrast.values.map_or_else(String::new, |[_, on]| figure(on, &trial.unit)),
            part(finding.change),
            part(finding.interval.map(|[low, _]| low)),
            part(finding.interval.map(|[_, high]| high)),
            verdict(finding),
        ]);
    }
    let findings = &trial.judge.findings;
    if !findings.is_empty() {
        text.push_str(&table.render(HEAD));
    }
    if findings.iter().any(|finding| finding.verdict != Verdict::TooFew) {
        let _ = writeln!(
            text,
            "{DIM}All intervals hold together in {} of 1000 experiments. A change in brackets would have been \
             seen in 9 of 10.{DIM:#}",
            ((1.0 - ERROR) * 1000.0).round(),
        );
    }
    let mixed = |finding: &&Finding| finding.verdict != Verdict::TooFew && finding.contrast.is_mixed;
    if findings.iter().any(|finding| mixed(&finding)) {
        let _ = writeln!(
            text,
            "{FAIR}*{FAIR:#} Its requests last longer than a turn, and mix both states: a longer --for has longer \
             turns.",
        );
    }
    let _ = write!(
        text,
        "{DIM}Switched {}, in {} each",
        count(trial.switch.times, "time"),
        short(trial.switch.took_ns / trial.switch.times.max(1)),
    );
    if let Some(percent) = looking_percent(trial) {
        let _ = write!(text, "; looking took {percent:.1} % of a processor, in both states");
    }
    let _ = writeln!(text, ".{DIM:#}");
    if matches!(end, End::Clear) {
        let is_few = findings.iter().any(|finding| finding.verdict == Verdict::TooFew);
        let except = if is_few { ", but for groups with too few requests" } else { "" };
        let _ = writeln!(text, "It ended early: the answer is clear{except}.");
    }
    text
}

/// The largest change that is shown, for a line of progress.
pub(super) fn so_far(trial: &Trial) -> String {
    let shown = trial
        .judge
        .findings
        .iter()
        .filter(|finding| matches!(finding.verdict, Verdict::More | Verdict::Less))
        .filter(|finding| !finding.contrast.is_mixed);
    let largest = shown.max_by(|a, b| f64::total_cmp(&size(a), &size(b)));
    match largest {
        None => "nothing shown yet".to_owned(),
        Some(finding) => {
            let whose = match finding.contrast.whose {
                Whose::All => "in all".to_owned(),
                Whose::Average => "on average".to_owned(),
                Whose::Group(id) => clean(name(trial, id)),
            };
            format!("{} {whose}", percent(finding.change.unwrap_or(0.0)))
        }
    }
}

fn size(finding: &Finding) -> f64 {
    finding.change.unwrap_or(0.0).abs()
}

fn name(trial: &Trial, id: u32) -> &str {
    trial.names.get(&id).map_or("?", String::as_str)
}

fn statistic(of: Statistic) -> &'static str {
    match of {
        Statistic::Mean => "mean",
        Statistic::P99 => "p99",
    }
}

/// The verdict in words.
fn verdict(finding: &Finding) -> String {
    let mark = if finding.contrast.is_mixed { " *" } else { "" };
    match finding.verdict {
        Verdict::More => format!("{BAD}more{BAD:#}{mark}"),
        Verdict::Less => format!("{GOOD}less{GOOD:#}{mark}"),
        Verdict::TooFew => "too few requests".to_owned(),
        Verdict::Nothing => match finding.visible {
            Some(visible) if visible > 0.0 && !finding.contrast.is_mixed => {
                format!("~ ({})", percent(visible).trim_start_matches('+'))
            }
            _ => format!("~{mark}"),
        },
    }
}

/// CPU time of dormouse's own threads, in percent of one processor.
fn looking_percent(trial: &Trial) -> Option<f64> {
    let turns = || trial.pairs.iter().flat_map(|pair| [&pair.off, &pair.on]);
    let elapsed_ns: u64 = turns().map(|turn| turn.elapsed_ns).sum();
    let own_ns: u64 = turns().map(|turn| turn.own_ns).sum();
    (elapsed_ns > 0).then(|| 100.0 * own_ns as f64 / elapsed_ns as f64)
}

fn finite_percent(part: f64) -> Option<f64> {
    Some(100.0 * part).filter(|percent| percent.is_finite())
}

/// A part as a signed percentage, with digits that mean something.
fn percent(part: f64) -> String {
    let percent = 100.0 * part;
    match percent.abs() {
        99.95.. if percent.is_infinite() => "from 0".to_owned(),
        99.95.. => format!("{percent:+.0} %"),
        9.995.. => format!("{percent:+.1} %"),
        _ => format!("{percent:+.2} %"),
    }
}

/// A figure by request.
fn figure(value: f64, unit: &str) -> String {
    match unit {
        "ns" => short_of(Duration::from_nanos(value.max(0.0) as u64)),
        unit => {
            let places = if value >= 100.0 { 0 } else { 2 };
            let unit = if unit == "1" { String::new() } else { format!(" {}", clean(unit)) };
            format!("{value:.places$}{unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_a_sign_and_three_digits() {
        for (part, text) in [
            (0.031, "+3.10 %"),
            (-0.1234, "-12.3 %"),
            (2.0, "+200 %"),
            (0.0, "+0.00 %"),
            (f64::INFINITY, "from 0"),
        ] {
            assert_eq!(percent(part), text);
        }
    }

    #[test]
    fn figures_have_their_unit() {
        assert_eq!(figure(38_800.4, "ns"), "38.8 us");
        assert_eq!(figure(12.0, "1"), "12.00");
        assert_eq!(figure(2_048.0, "bytes"), "2048 bytes");
    }
}
