//! Conversion of a reading of a process to points.

use std::collections::{HashMap, HashSet};

use dormouse_events::MAX_EVENTS;
use dormouse_metrics::{
    ExponentialHistogram, ExposedProcess, Exposition, LabelSet, MetricExemplar, MetricFamily, MetricKind,
    MetricUnit, MetricValue, MetricsFormat, ProcessPart,
};
use dormouse_protocol::figures::{
    BODY_DURATION, CALL_FIGURES, CallSpan, EVENT_FAMILIES, Figure, FigureMetric, FigureValue, GROUP_FIGURES,
    GROUP_POLLS, GroupFigure, GroupSpan, LOCK_ACQUISITIONS, LOCK_WAIT_TIME, LOCK_WAITS, OBJECTIVE_REQUESTS,
    OBJECTIVE_TARGET, OTHER_EVENTS, PROCESS_FIGURES, ProcessSpan, RECEIVED_GAP, REQUESTS, RUNTIME_FIGURES,
    RuntimeSpan, STREAM_GAP,
};
use dormouse_protocol::{
    CallRow, CountRow, CpuLimits, ExemplarRow, GroupRow, HistogramRow, LockStatRow, OutcomesRow, RuntimeRow,
    Stat,
};
use dormouse_waits::buckets::{EXPORTED_SCALE, UNIT_NS};
use dormouse_waits::{Histogram, Histograms};

use super::origin::{Origin, unix_ns};
use crate::core::ends::OUTCOMES;
use crate::core::group::cut;
use crate::core::objectives::MOST_OBJECTIVES;
use crate::core::registry::MAX_GROUPS;
use crate::core::runtimes::MOST_RUNTIMES;
use crate::features::waits::taking::TimesScope;

/// A figure of groups, and its metric.
type Exported = (&'static Figure<GroupFigure>, FigureMetric);

/// The most lines that take locks, of a process.
const LOCK_LINES: usize = 256;

/// The greatest scale that formats have.
const MAX_SCALE: i32 = 8;

/// Adds the figures in `stat` of the process `origin`. Call it once for a process in an exposition.
///
/// ```
/// use dormouse::metrics::{Exposition, Origin};
/// use dormouse_protocol::Stat;
///
/// /// The figures of processes, as their agents have sent them.
/// fn all(answers: Vec<(Origin, Stat)>) -> Exposition {
///     let mut all = Exposition::of_processes();
///     for (origin, stat) in answers {
///         dormouse::metrics::add(&mut all, &origin, &stat);
///     }
///     all
/// }
/// ```
pub fn add(to: &mut Exposition, origin: &Origin, stat: &Stat) {
    add_with(Histograms::All, true, to, origin, stat);
}

/// [`add`], without the histograms that a format does not show: a short answer may have left them
/// out.
///
/// ```
/// use dormouse::metrics::{Exposition, MetricsFormat, Origin, add_shown};
/// use dormouse_protocol::Stat;
///
/// let mut all = Exposition::of_processes();
/// add_shown(MetricsFormat::Text, &mut all, &Origin::own(), &Stat::default());
/// assert!(all.points() > 0);
/// ```
pub fn add_shown(format: MetricsFormat, to: &mut Exposition, origin: &Origin, stat: &Stat) {
    add_with(TimesScope::in_format(format).histograms, true, to, origin, stat);
}

/// [`add`], of a reading that has these histograms. `is_counted`: CPU time and polls of groups were
/// ever counted, as for each client of an agent. (If not, they are absent rather than zero.)
pub(super) fn add_with(has: Histograms, is_counted: bool, to: &mut Exposition, origin: &Origin, stat: &Stat) {
    let lacks = stat.left_out.is_some_and(|left_out| left_out.histograms);
    let has = if lacks { Histograms::Requests } else { has };
    let mut part = to.process(ExposedProcess {
        name: origin.name.clone(),
        pid: origin.pid,
        user: origin.user.clone(),
        instance: origin.instance.clone(),
        version: origin.version.clone(),
        start_unix_ns: origin.start_unix_ns,
        read_unix_ns: read_unix_ns(stat),
    });
    add_process(&mut part, origin, stat, is_counted);
    add_runtimes(&mut part, &stat.runtimes);
    // `stat` may come from another user's process: a scraper would refuse everything for a
    // duplicate point, and a long name would be in many lines.
    let mut names = HashSet::new();
    let groups = stat.groups.iter().take(MAX_GROUPS).filter(|group| names.insert(cut(&group.name)));
    let groups: Vec<&GroupRow> = groups.collect();
    let labels: Vec<LabelSet> =
        groups.iter().map(|group| part.labels(&[("group", cut(&group.name))])).collect();
    // Absent rather than false.
    let is_refused = stat.cpu_refused.is_some() || !is_counted;
    let has_waits = groups.iter().any(|group| group.waits.is_some());
    let exported: Vec<Exported> =
        GROUP_FIGURES.iter().filter_map(|figure| Some((figure, figure.metric?))).collect();
    for figures in exported.chunk_by(|(_, a), (_, b)| std::ptr::eq(a.family, b.family)) {
        match figures {
            _ if figures[0].0.in_waits && !has_waits => {}
            [(_, metric)] if !is_counted && std::ptr::eq(metric.family, &raw const GROUP_POLLS) => {}
            [(Figure { of: GroupFigure::Histogram(of), .. }, metric)] => {
                let in_texts = matches!(metric.family.kind, MetricKind::Histogram([_, ..]));
                let may_be_absent = [&BODY_DURATION, &STREAM_GAP, &RECEIVED_GAP].contains(&metric.family);
                if has == Histograms::All || in_texts {
                    let points = groups.iter().zip(&labels).filter_map(|(group, own)| {
                        let row = of(group.waits.as_ref()?)?;
                        let is_told = !may_be_absent || !row.is_empty();
                        is_told.then(|| ([*own, LabelSet::NONE], histogram(row)))
                    });
                    part.add_histograms(metric.family, points);
                }
            }
            _ => add_values(&mut part, figures, &groups, &labels, is_refused),
        }
    }
    // The labels of each outcome, and the last group that had it.
    let mut outcomes = HashMap::<&str, (LabelSet, usize)>::new();
    for (number, (group, own)) in (1..).zip(groups.iter().zip(&labels)) {
        let all = group.outcomes.iter().flat_map(OutcomesRow::all).take(OUTCOMES);
        // Of a thousand groups, most have none of most outcomes.
        let there = all.enumerate().filter(|(at, (_, n))| *at == 0 || *n > 0).map(|(_, there)| there);
        for (outcome, n) in there.map(|(outcome, n)| (cut(outcome), n)) {
            let (labels, last) =
                outcomes.entry(outcome).or_insert_with(|| (part.labels(&[("outcome", outcome)]), 0));
            if std::mem::replace(last, number) != number {
                part.add(&REQUESTS, [*own, *labels], MetricValue::Count(n));
            }
        }
    }
    let mut objectives = HashSet::new();
    for (group, own) in groups.iter().zip(&labels) {
        objectives.clear();
        let once = group.objectives.iter().take(MOST_OBJECTIVES);
        for row in once.filter(|row| objectives.insert(row.objective)) {
            let name = row.objective.to_string();
            let objective = ("objective", &*name);
            // Both, also where one is 0: a share of the two is right from the beginning.
            for (met, n) in [("true", row.met), ("false", row.missed)] {
                let labels = part.labels(&[objective, ("met", met)]);
                part.add(&OBJECTIVE_REQUESTS, [*own, labels], MetricValue::Count(n));
            }
            let target = MetricValue::Number(f64::from(row.objective.target_ppm) / 1e6);
            let labels = part.labels(&[objective]);
            part.add(&OBJECTIVE_TARGET, [*own, labels], target);
        }
    }
    add_calls(&mut part, &groups, &labels, &stat.calls);
    add_locks(&mut part, &groups, &labels, &stat.locks);
    let mut events = HashSet::new();
    for (group, own) in groups.iter().zip(labels) {
        events.clear();
        let once = group.counts.iter().take(MAX_EVENTS).filter(|count| events.insert(cut(&count.event)));
        once.for_each(|count| add_count(&mut part, own, count));
    }
}

/// The moment of the reading.
fn read_unix_ns(stat: &Stat) -> u64 {
    let now = dormouse_clock::point();
    now.realtime_ns.saturating_sub(now.monotonic_ns.saturating_sub(stat.mono_ns)).min(unix_ns())
}

fn add_process(part: &mut ProcessPart<'_>, origin: &Origin, stat: &Stat, is_counted: bool) {
    let process = ProcessSpan { stat, start_unix_ns: origin.start_unix_ns, is_counted };
    let limit = stat.cpu_limits.as_ref().and_then(CpuLimits::lowest);
    let control_group = limit.map(|limit| part.labels(&[("control_group", cut(&limit.path))]));
    for figure in PROCESS_FIGURES {
        let labels = match (figure.family.kind, control_group) {
            (MetricKind::Info, _) => part.labels(&[("version", &origin.version)]),
            (_, Some(control_group)) if figure.of_limit => control_group,
            _ => LabelSet::NONE,
        };
        if let Some(value) = (figure.of)(&process) {
            part.add(&figure.family, [labels, LabelSet::NONE], value);
        }
    }
}

/// Adds the figures of runtimes, family by family.
fn add_runtimes(part: &mut ProcessPart<'_>, runtimes: &[RuntimeRow]) {
    let mut names = HashSet::new();
    let runtimes: Vec<&RuntimeRow> =
        runtimes.iter().take(MOST_RUNTIMES).filter(|runtime| names.insert(cut(&runtime.name))).collect();
    let labels: Vec<LabelSet> =
        runtimes.iter().map(|runtime| part.labels(&[("runtime", cut(&runtime.name))])).collect();
    for (figure, metric) in RUNTIME_FIGURES.iter().filter_map(|figure| Some((figure, figure.metric?))) {
        let points = runtimes.iter().zip(&labels).filter_map(|(row, own)| {
            let value = (figure.of)(&RuntimeSpan { row, interval_ns: 0 });
            Some(([*own, LabelSet::NONE], metric_value(&value, metric.family.unit)?))
        });
        part.add_all(metric.family, points);
    }
}

/// Adds the points of a family, group by group. The figures differ by the label of the family.
fn add_values(
    part: &mut ProcessPart<'_>,
    figures: &[Exported],
    groups: &[&GroupRow],
    labels: &[LabelSet],
    is_refused: bool,
) {
    let family = figures[0].1.family;
    let figures: Vec<(&Figure<GroupFigure>, LabelSet)> = figures
        .iter()
        .map(|(figure, metric)| (*figure, metric.label.map_or(LabelSet::NONE, |label| part.labels(&[label]))))
        .collect();
    let points = groups.iter().zip(labels).flat_map(|(group, own)| {
        let span = GroupSpan::of(group, is_refused);
        figures.iter().filter_map(move |(figure, label)| {
            Some(([*own, *label], metric_value(&figure.value(&span), family.unit)?))
        })
    });
    part.add_all(family, points);
}

fn metric_value(value: &FigureValue, unit: MetricUnit) -> Option<MetricValue> {
    match (value, unit) {
        (FigureValue::Whole(ns), MetricUnit::Seconds) => Some(MetricValue::Nanoseconds(*ns)),
        (FigureValue::Whole(n), _) => Some(MetricValue::Count(*n)),
        (FigureValue::Number(n), _) => Some(MetricValue::Number(*n)),
        _ => None,
    }
}

/// The histogram in seconds.
fn histogram(row: &HistogramRow) -> ExponentialHistogram {
    if row.unit_ns != UNIT_NS || !(0..=MAX_SCALE).contains(&row.scale) {
        // An older agent's: its buckets end elsewhere, and its exemplars are of those.
        let converted = HistogramRow::from(&Histogram::from(row));
        return histogram(&HistogramRow { sum_ns: row.sum_ns, exemplars: Vec::new(), ..converted });
    }
    if row.scale > EXPORTED_SCALE {
        return histogram(&row.clone().at_scale(EXPORTED_SCALE));
    }
    ExponentialHistogram {
        scale: row.scale,
        zero_threshold: zero_threshold(row),
        zero_count: row.zero_count,
        positive: row.buckets.clone(),
        // A group without times has no sum of nothing.
        sum: row.sum_ns.or(row.is_empty().then_some(0)).map(MetricValue::Nanoseconds),
        exemplars: row.exemplars.iter().map(exemplar).collect(),
    }
}

/// The end of the zero bucket, in seconds: that of a bucket, at or beyond the whole nanoseconds of
/// the row.
fn zero_threshold(row: &HistogramRow) -> f64 {
    let buckets = f64::from(row.scale).exp2();
    let seconds = row.zero_threshold_ns as f64 / 1e9;
    if seconds > 0.0 { ((seconds.log2() * buckets).ceil() / buckets).exp2() } else { 0.0 }
}

fn exemplar(row: &ExemplarRow) -> MetricExemplar {
    MetricExemplar {
        value: MetricValue::Nanoseconds(row.duration_ns),
        task: row.task,
        trace: row.trace_id.zip(row.span_id).map(|(trace, span)| (trace.0, span.0)),
        outcome: row.outcome.clone(),
        unix_ns: Some(row.unix_ns),
    }
}

/// Adds the points of outgoing calls, family by family.
fn add_calls(part: &mut ProcessPart<'_>, groups: &[&GroupRow], labels: &[LabelSet], calls: &[CallRow]) {
    let own: HashMap<u32, LabelSet> =
        groups.iter().map(|group| group.id).zip(labels.iter().copied()).collect();
    // As with groups, no two points may have the same labels. Calls of a group that has no points
    // are left out; those of none have no label for it.
    let calls = calls.iter().filter(|row| row.group == 0 || own.contains_key(&row.group));
    let mut keys = HashSet::new();
    let calls: Vec<&CallRow> =
        calls.filter(|row| keys.insert((row.group, cut(&row.kind), cut(row.name())))).collect();
    let labels: Vec<[LabelSet; 2]> = calls
        .iter()
        .map(|row| {
            let own = own.get(&row.group).copied().unwrap_or(LabelSet::NONE);
            [own, part.labels(&[("kind", cut(&row.kind)), ("peer", cut(row.name()))])]
        })
        .collect();
    for (figure, metric) in CALL_FIGURES.iter().filter_map(|figure| Some((figure, figure.metric?))) {
        if let MetricKind::Histogram(_) = metric.family.kind {
            let times = calls.iter().map(|row| histogram(&row.times));
            part.add_histograms(metric.family, labels.iter().copied().zip(times));
        } else {
            let value = |row: &CallRow| {
                metric_value(&(figure.of)(&CallSpan { row, group: None }), metric.family.unit)
            };
            let points = calls.iter().zip(&labels).filter_map(|(row, own)| Some((*own, value(row)?)));
            part.add_all(metric.family, points);
        }
    }
}

/// The value of a line and a group that have taken locks.
type OfLock = fn(&LockStatRow) -> MetricValue;

/// Adds the points of lines that take locks, family by family.
fn add_locks(part: &mut ProcessPart<'_>, groups: &[&GroupRow], labels: &[LabelSet], rows: &[LockStatRow]) {
    let own: HashMap<u32, LabelSet> =
        groups.iter().map(|group| group.id).zip(labels.iter().copied()).collect();
    let rows = rows.iter().filter(|row| row.group == 0 || own.contains_key(&row.group)).take(LOCK_LINES);
    let mut keys = HashSet::new();
    let rows: Vec<&LockStatRow> =
        rows.filter(|row| keys.insert((row.group, cut(&row.line), cut(&row.kind)))).collect();
    let labels: Vec<[LabelSet; 2]> = rows
        .iter()
        .map(|row| {
            let own = own.get(&row.group).copied().unwrap_or(LabelSet::NONE);
            [own, part.labels(&[("line", cut(&row.line)), ("kind", cut(&row.kind))])]
        })
        .collect();
    let values: [(&MetricFamily, OfLock); 3] = [
        (&LOCK_ACQUISITIONS, |row| MetricValue::Count(row.acquisitions)),
        (&LOCK_WAITS, |row| MetricValue::Count(row.waits)),
        (&LOCK_WAIT_TIME, |row| MetricValue::Nanoseconds(row.wait_ns)),
    ];
    for (family, value) in values {
        part.add_all(family, rows.iter().zip(&labels).map(|(row, own)| (*own, value(row))));
    }
}

fn add_count(part: &mut ProcessPart<'_>, own: LabelSet, count: &CountRow) {
    // Absent rather than 0.
    if !count.is_counted() {
        return;
    }
    match EVENT_FAMILIES.iter().find(|(event, _)| *event == count.event) {
        Some((_, family)) => part.add(family, [own, LabelSet::NONE], MetricValue::Count(count.value)),
        // CPU time has a family of its own.
        None if count.event == "task-clock" => {}
        None => {
            let event = part.labels(&[("event", cut(&count.event))]);
            part.add(&OTHER_EVENTS, [own, event], MetricValue::Count(count.value));
        }
    }
}
