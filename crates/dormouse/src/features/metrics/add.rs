//! Conversion of a reading of a process to points.

use std::collections::HashSet;

use dormouse_events::MAX_EVENTS;
use dormouse_metrics::{
    ExponentialHistogram, ExposedProcess, Exposition, LabelSet, MetricExemplar, MetricFamily, MetricValue,
    ProcessPart,
};
use dormouse_protocol::{
    CountRow, CountedCpu, ExemplarRow, GroupRow, HistogramRow, Stat, TaskPolls, WaitsRow,
};
use dormouse_waits::buckets::UNIT_NS;
use dormouse_waits::{Histogram, Histograms};

use super::families as of;
use super::origin::{Origin, unix_ns};
use crate::core::group::cut;
use crate::core::registry::MAX_GROUPS;

/// A family, and the way to its value.
type Of<Value> = (&'static MetricFamily, Value);
type OfGroup = Of<fn(&GroupRow) -> MetricValue>;
type OfWaits = Of<fn(&mut WaitsRow) -> &mut HistogramRow>;

/// The greatest scale that formats have.
const MAX_SCALE: i32 = 8;

/// The states of tasks, as the label `state` has them.
const STATES: [&str; 3] = ["poll", "runnable", "await"];

/// Adds the figures in `stat` of the process `origin`. Call it once for a process in an exposition.
///
/// The histograms of `stat` become points without a copy.
///
/// ```
/// use dormouse::metrics::{Exposition, Origin};
/// use dormouse_protocol::{Hello, Stat};
///
/// /// The figures of processes, as their agents have told them.
/// fn all(told: Vec<(Hello, Stat)>) -> Exposition {
///     let mut all = Exposition::of_processes();
///     for (hello, stat) in told {
///         dormouse::metrics::add(&mut all, &Origin::of(&hello), stat);
///     }
///     all
/// }
/// ```
pub fn add(to: &mut Exposition, origin: &Origin, stat: Stat) {
    add_with(Histograms::All, to, origin, stat);
}

/// [`add`], of a reading that has these histograms.
pub(super) fn add_with(has: Histograms, to: &mut Exposition, origin: &Origin, mut stat: Stat) {
    let mut part = to.process(ExposedProcess {
        name: origin.name.clone(),
        pid: origin.pid,
        instance: origin.instance.clone(),
        version: origin.version.clone(),
        start_unix_ns: origin.start_unix_ns,
        read_unix_ns: read_unix_ns(&stat),
    });
    add_process(&mut part, origin, &stat);
    // `stat` may come from another user's process: a scraper would refuse everything for a
    // duplicate point, and a long name would be in many lines.
    stat.groups.truncate(MAX_GROUPS);
    let mut names = HashSet::new();
    let is_first: Vec<bool> = stat.groups.iter().map(|group| names.insert(cut(&group.name))).collect();
    let mut is_first = is_first.into_iter();
    stat.groups.retain(|_| is_first.next().unwrap_or_default());
    let labels: Vec<LabelSet> =
        stat.groups.iter().map(|group| part.labels(&[("group", cut(&group.name))])).collect();
    let counts: [OfGroup; 6] = [
        (&of::CPU, |group| MetricValue::Nanoseconds(group.cpu_ns)),
        (&of::REQUESTS, |group| MetricValue::Count(group.requests)),
        (&of::POLLS, |group| MetricValue::Count(group.polls)),
        (&of::STARTED, |group| MetricValue::Count(group.started)),
        (&of::FINISHED, |group| MetricValue::Count(group.finished)),
        (&of::ALIVE, |group| MetricValue::Count(group.alive)),
    ];
    // Absent rather than false.
    let is_refused = stat.cpu_refused.is_some();
    for (family, value) in counts.into_iter().skip(usize::from(is_refused)) {
        let points = stat.groups.iter().zip(&labels);
        part.add_all(family, points.map(|(group, own)| ([*own, LabelSet::NONE], value(group))));
    }
    add_waits(&mut part, &mut stat.groups, &labels, has);
    let mut events = HashSet::new();
    for (group, own) in stat.groups.iter().zip(labels) {
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

fn add_process(part: &mut ProcessPart<'_>, origin: &Origin, stat: &Stat) {
    const NONE: [LabelSet; 2] = [LabelSet::NONE; 2];
    let version = part.labels(&[("version", &origin.version)]);
    part.add(&of::AGENT, [version, LabelSet::NONE], MetricValue::Count(1));
    part.add(&of::PROCESS_START, NONE, MetricValue::Nanoseconds(origin.start_unix_ns));
    part.add(&of::PROCESS_CPU, NONE, MetricValue::Nanoseconds(stat.process_cpu_ns));
    part.add(&of::CPU_REFUSED, NONE, MetricValue::Count(u64::from(stat.cpu_refused.is_some())));
    if stat.cpu_refused.is_none() {
        let attributed = stat.groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.cpu_ns));
        part.add(&of::PROCESS_ATTRIBUTED, NONE, MetricValue::Nanoseconds(attributed));
    }
    if let Some(ns) = stat.runnable_ns {
        part.add(&of::PROCESS_RUNNABLE, NONE, MetricValue::Nanoseconds(ns));
    }
    if let Some(CountedCpu { process_ns, groups_ns }) = stat.counted
        && process_ns > 0
    {
        let share = groups_ns as f64 / process_ns as f64;
        part.add(&of::CPU_COVERAGE, NONE, MetricValue::Number(share.min(1.0)));
    }
    if let Some(TaskPolls { all, in_groups }) = stat.polls
        && all > 0
    {
        part.add(&of::PROCESS_POLLS, NONE, MetricValue::Count(all));
        part.add(&of::PROCESS_POLLS_ATTRIBUTED, NONE, MetricValue::Count(in_groups));
        let share = in_groups as f64 / all as f64;
        part.add(&of::POLL_COVERAGE, NONE, MetricValue::Number(share.min(1.0)));
    }
    part.add(&of::PROCESS_THREADS, NONE, MetricValue::Count(stat.threads.len() as u64));
    part.add(&of::KEYS_ON, NONE, MetricValue::Count(stat.keys_on as u64));
    part.add(&of::RECORDS_DROPPED, NONE, MetricValue::Count(stat.dropped));
}

/// Adds the times of groups, and takes their histograms.
fn add_waits(part: &mut ProcessPart<'_>, groups: &mut [GroupRow], labels: &[LabelSet], has: Histograms) {
    if groups.iter().all(|group| group.waits.is_none()) {
        return;
    }
    let mut timed: Vec<(&mut WaitsRow, LabelSet)> = groups
        .iter_mut()
        .zip(labels)
        .filter_map(|(group, own)| Some((&mut **group.waits.as_mut()?, *own)))
        .collect();
    let states = STATES.map(|state| part.labels(&[("state", state)]));
    let times = timed.iter().flat_map(|(waits, own)| {
        let times = [waits.poll_ns, waits.runnable_ns, waits.await_ns].map(MetricValue::Nanoseconds);
        states.map(|state| [*own, state]).into_iter().zip(times)
    });
    part.add_all(&of::TASK_TIME, times);
    let histograms: [OfWaits; 4] = [
        (&of::REQUEST_DURATION, |waits| &mut waits.requests),
        (&of::POLL_DURATION, |waits| &mut waits.polls),
        (&of::POLL_DELAY, |waits| &mut waits.delays),
        (&of::AWAIT_DURATION, |waits| &mut waits.awaits),
    ];
    let count = if has == Histograms::All { histograms.len() } else { 1 };
    for (family, row) in histograms.into_iter().take(count) {
        let points = timed.iter_mut();
        part.add_histograms(
            family,
            points.map(|(waits, own)| ([*own, LabelSet::NONE], histogram(std::mem::take(row(waits))))),
        );
    }
}

/// The histogram in seconds.
fn histogram(row: HistogramRow) -> ExponentialHistogram {
    if row.unit_ns != UNIT_NS || !(0..=MAX_SCALE).contains(&row.scale) {
        // An older agent's: its buckets end elsewhere, and its exemplars are of those.
        let converted = HistogramRow::from(&Histogram::from(&row));
        return histogram(HistogramRow { sum_ns: row.sum_ns, exemplars: Vec::new(), ..converted });
    }
    ExponentialHistogram {
        scale: row.scale,
        zero_threshold: zero_threshold(&row),
        zero_count: row.zero_count,
        positive: row.buckets,
        sum: row.sum_ns.map(MetricValue::Nanoseconds),
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
        unix_ns: Some(row.unix_ns),
    }
}

fn add_count(part: &mut ProcessPart<'_>, own: LabelSet, count: &CountRow) {
    match of::EVENTS.iter().find(|(event, _)| *event == count.event) {
        Some((_, family)) => part.add(family, [own, LabelSet::NONE], MetricValue::Count(count.value)),
        // CPU time has a family of its own.
        None if count.event == "task-clock" => {}
        None => {
            let event = part.labels(&[("event", cut(&count.event))]);
            part.add(&of::OTHER_EVENTS, [own, event], MetricValue::Count(count.value));
        }
    }
}
