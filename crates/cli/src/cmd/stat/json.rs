//! The figures of `stat` as JSON: an object for each interval and one for the whole time, with the
//! error bounds of each number.

use dormouse_protocol::figures::{
    CALL_FIGURES, CallFigure, FigureJson, GROUP_FIGURES, GroupFigure, RUNTIME_FIGURES, RuntimeFigure, ratio,
};
use dormouse_protocol::{CountRow, CpuLimits, EventInfo, Pressure, Stat};
use serde::Serialize;

use super::account::{Account, Kind};
use crate::render::row::{Row, RowDocument};
use crate::render::threads::{THREAD_FIGURES, ThreadFigure};
use crate::sample::events::refused;
use crate::sample::source::Source;
use crate::sample::tasks::TICK_NS;
use crate::sample::totals::Usage;
use crate::sample::{IN_NO_GROUP, OF_GROUPS};

/// One interval, or the total.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Document<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    name: &'a str,
    /// Whether the process has ended.
    ended: bool,
    #[serde(flatten)]
    figures: Figures<'a>,
}

/// The figures of the process and of its parts.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Figures<'a> {
    elapsed_ns: u64,
    clock: Bounds<'a>,
    process: Process<'a>,
    /// Null for a process without dormouse.
    groups: Option<Vec<Group<'a>>>,
    /// Why CPU time of groups, and of work in no group, is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_refused: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed_cpu_ns: Option<u64>,
    /// The counts of work in no group, each with a reason if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    unattributed_counts: Option<Vec<EventCount<'a>>>,
    /// How much of the CPU time is in groups; null where none was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage_percent: Option<f64>,
    /// In what percentage of the polls of tasks a group was entered; absent if no runtime announces
    /// polls.
    #[serde(skip_serializing_if = "Option::is_none")]
    poll_coverage_percent: Option<f64>,
    /// Outgoing calls, those that took the most time first; absent if they were not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Vec<RowDocument<'a, CallFigure>>>,
    /// The runtimes that the service has shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    runtimes: Vec<RowDocument<'a, RuntimeFigure>>,
    threads: Vec<RowDocument<'a, ThreadFigure>>,
    /// The CPU time of threads that came and went between two samples. Where it is not 0, the
    /// process's `runnable_ns` and context switches lack those of such threads.
    other_threads_cpu_ns: u64,
}

/// How far the CPU times may be from the truth.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Bounds<'a> {
    /// The error bound for each thread that runs; the process's is that times its running threads.
    thread_error_bound_ns: u64,
    /// How groups are charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_tier: Option<&'a str>,
    /// The error bound of a group for each thread that has run it.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_error_bound_ns: Option<u64>,
    /// The time between the readings of groups and of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    group_skew_ns: Option<u64>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Process<'a> {
    cpu_ns: u64,
    cpus_used: f64,
    /// For how long its threads together waited for a CPU; null if the kernel does not report it.
    runnable_ns: Option<u64>,
    /// The CPU limits of its control groups, with the counts of this time; null from services that
    /// do not read them.
    cpu_limits: Option<&'a CpuLimits>,
    /// For how long all tasks of its control group, and of the host, waited for a resource at once;
    /// absent where the kernel shows neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pressure: Option<Pressure>,
    #[serde(flatten)]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_rss_bytes: Option<u64>,
    counts: Vec<EventCount<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Group<'a> {
    #[serde(flatten)]
    row: RowDocument<'a, GroupFigure>,
    counts: Vec<EventCount<'a>>,
}

/// An event's count, or the reason why there is none: never 0 for that.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct EventCount<'a> {
    event: &'a str,
    unit: &'a str,
    value: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enabled_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> Document<'a> {
    pub(super) fn of(kind: Kind, account: &'a Account<'_>) -> Document<'a> {
        let (kind, ended) = match kind {
            Kind::Interval => ("interval", false),
            Kind::Total { has_ended } => ("total", has_ended),
        };
        let source = account.source;
        Document { kind, pid: source.pid, name: &source.name, ended, figures: Figures::of(account) }
    }
}

impl<'a> Figures<'a> {
    pub(super) fn of(account: &'a Account<'_>) -> Figures<'a> {
        let Account { source, delta, .. } = account;
        let (clock, inside) = (source.clock.as_ref(), delta.inside.as_ref());
        let group = |row: &'a Row| Group {
            row: row.in_document(GROUP_FIGURES, FigureJson::Stat),
            counts: counts(source, row, "the service told no count"),
        };
        Figures {
            elapsed_ns: delta.elapsed_ns,
            clock: Bounds {
                thread_error_bound_ns: if source.has_agent() { 0 } else { TICK_NS },
                group_tier: clock.map(|clock| clock.tier.as_str()),
                group_error_bound_ns: clock.map(|clock| clock.error_bound_ns),
                group_skew_ns: inside.map(|inside| inside.took_ns),
            },
            process: Process {
                cpu_ns: delta.cpu_ns,
                cpus_used: ratio(delta.cpu_ns, delta.elapsed_ns),
                runnable_ns: delta.runnable_ns(),
                cpu_limits: inside.and_then(|inside| inside.cpu_limits.as_ref()),
                pressure: inside.and_then(|inside| inside.pressure),
                usage: delta.usage,
                max_rss_bytes: delta.max_rss_bytes,
                counts: counts(source, &account.process, OF_GROUPS),
            },
            groups: inside.map(|_| account.groups.iter().map(group).collect()),
            cpu_refused: inside.and_then(|inside| inside.cpu_refused.as_deref()),
            unattributed_cpu_ns: inside
                .filter(|inside| inside.cpu_refused.is_none())
                .map(|inside| inside.unattributed_cpu_ns),
            unattributed_counts: account.unattributed.as_ref().map(|row| counts(source, row, IN_NO_GROUP)),
            coverage_percent: inside.and_then(Stat::coverage_percent),
            poll_coverage_percent: inside.and_then(Stat::poll_coverage_percent),
            calls: account.calls.as_ref().map(|calls| {
                calls.iter().map(|row| row.in_document(CALL_FIGURES, FigureJson::Stat)).collect()
            }),
            runtimes: account
                .runtimes
                .iter()
                .map(|row| row.in_document(RUNTIME_FIGURES, FigureJson::Stat))
                .collect(),
            threads: account
                .threads
                .iter()
                .map(|row| row.in_document(&THREAD_FIGURES, FigureJson::Stat))
                .collect(),
            other_threads_cpu_ns: delta.others_ns(),
        }
    }
}

/// Every event that was asked for: its count in `row`, or why there is none.
fn counts<'a>(source: &'a Source, row: &Row, otherwise: &'a str) -> Vec<EventCount<'a>> {
    let entry = |event: &'a EventInfo, count: Option<&CountRow>, reason| {
        let reason = if count.is_some() { "it was not counted in this time" } else { reason };
        let count = count.filter(|count| count.is_counted());
        EventCount {
            event: &event.name,
            unit: &event.unit,
            value: count.map(|count| count.value),
            enabled_ns: count.map(|count| count.enabled_ns),
            running_ns: count.map(|count| count.running_ns),
            reason: count.is_none().then_some(reason),
        }
    };
    let counted = &source.counted;
    let told = counted.counted.iter().map(|event| entry(event, row.count(&event.name), otherwise));
    told.chain(counted.refused.iter().map(|event| entry(event, None, refused(event)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uncounted_event_has_a_reason() {
        let source = Source::fake(&["cycles"], None);
        let row = |running_ns| {
            let count = CountRow { event: "cycles".into(), value: 0, enabled_ns: 8, running_ns };
            let mut row = Row::total("tea", 0);
            row.counts = vec![count];
            row
        };
        let told = |row: &Row| {
            let counts = counts(&source, row, "");
            (counts[0].value, counts[0].reason.is_some())
        };
        assert_eq!([8, 4, 0].map(|ns| told(&row(ns))), [(Some(0), false), (Some(0), false), (None, true)]);
    }
}
