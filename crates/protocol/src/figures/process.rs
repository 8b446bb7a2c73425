//! The figures of a process that metrics export.

use dormouse_metrics::MetricKind::{self, Counter, Gauge, Info, OlderCounter};
use dormouse_metrics::MetricUnit::{self, Bytes, Nothing, Ratio, Seconds, Things};
use dormouse_metrics::{MetricFamily, MetricValue};

use crate::verbs::{CpuLimitRow, PressureRow, Stat};

/// A process at one moment.
#[derive(Debug, Clone, Copy)]
pub struct ProcessSpan<'a> {
    /// The answer of the process's agent to `stat`.
    pub stat: &'a Stat,
    /// When the process began, in nanoseconds since 1970.
    pub start_unix_ns: u64,
    /// Whether CPU time of groups was ever counted.
    pub is_counted: bool,
}

/// One figure of a process. A value that is not known has no point.
#[derive(Debug, Clone)]
pub struct ProcessFigure {
    /// The metric that exports the figure. The kind [`MetricKind::Info`] has the label `version`.
    pub family: MetricFamily,
    /// Whether it counts for the control group with the lowest limit. Another one may have that
    /// later, with other counts: so it has the label `control_group`.
    pub of_limit: bool,
    /// Computes the figure.
    pub of: fn(&ProcessSpan<'_>) -> Option<MetricValue>,
}

/// The figures of a process. Metrics are exported in this order.
pub static PROCESS_FIGURES: &[ProcessFigure] = &[
    figure("dormouse.agent.info", Nothing, Info, "The version of dormouse in the process.", |_| {
        Some(MetricValue::Count(1))
    }),
    figure(
        "dormouse.process.start.time",
        Seconds,
        Gauge,
        "Start of the process, in seconds since 1970.",
        |process| Some(MetricValue::Nanoseconds(process.start_unix_ns)),
    ),
    figure("dormouse.process.cpu.time", Seconds, Counter, "CPU time of the process.", |process| {
        Some(MetricValue::Nanoseconds(process.stat.process_cpu_ns))
    }),
    figure(
        "dormouse.cpu.refused",
        Nothing,
        Gauge,
        "1 if CPU time of groups is absent: a clock is false, or their counts are asleep.",
        |process| Some(MetricValue::Count(process.stat.cpu_refused.is_some().into())),
    ),
    figure(
        "dormouse.process.cpu.attributed",
        Seconds,
        Counter,
        "CPU time that groups were charged for.",
        |process| {
            let cpu_ns = process.stat.groups_cpu_ns().filter(|_| process.is_counted);
            cpu_ns.map(MetricValue::Nanoseconds)
        },
    ),
    figure(
        "dormouse.process.runnable.time",
        Seconds,
        Counter,
        "Time for which threads were runnable and waited for a CPU, as far as it was seen.",
        |process| process.stat.runnable_ns.map(MetricValue::Nanoseconds),
    ),
    figure(
        "dormouse.process.cpu.limit",
        Things("{cpu}"),
        Gauge,
        "CPUs that the process may use: the lowest limit of the control groups that it sees.",
        |process| lowest(process).map(|limit| MetricValue::Number(limit.cpus())),
    ),
    of_limit(figure(
        "dormouse.process.cpu.periods",
        Things("{period}"),
        OlderCounter,
        "Periods of that limit in which its control group was active.",
        |process| lowest(process).map(|limit| MetricValue::Count(limit.periods)),
    )),
    of_limit(figure(
        "dormouse.process.cpu.periods.throttled",
        Things("{period}"),
        OlderCounter,
        "Those of these periods in which the control group was throttled.",
        |process| lowest(process).map(|limit| MetricValue::Count(limit.throttled_periods)),
    )),
    of_limit(figure(
        "dormouse.process.cpu.throttled.time",
        Seconds,
        OlderCounter,
        "Time for which processors of the control group were throttled: a sum over processors.",
        |process| lowest(process).map(|limit| MetricValue::Nanoseconds(limit.throttled_ns)),
    )),
    figure(
        "dormouse.process.pressure.cpu.time",
        Seconds,
        OlderCounter,
        "Time for which all tasks of the process's control group waited for a CPU at once.",
        |process| pressure(process)?.cpu_ns.map(MetricValue::Nanoseconds),
    ),
    figure(
        "dormouse.process.pressure.memory.time",
        Seconds,
        OlderCounter,
        "Time for which all tasks of the process's control group waited for memory at once.",
        |process| pressure(process)?.memory_ns.map(MetricValue::Nanoseconds),
    ),
    figure(
        "dormouse.process.pressure.io.time",
        Seconds,
        OlderCounter,
        "Time for which all tasks of the process's control group waited for I/O at once.",
        |process| pressure(process)?.io_ns.map(MetricValue::Nanoseconds),
    ),
    figure(
        "dormouse.cpu.coverage",
        Ratio,
        Gauge,
        "Share of the process's CPU time that was of groups, since this reader had it counted.",
        |process| {
            let counted = process.stat.counted?;
            share(counted.groups_ns, counted.process_ns)
        },
    ),
    figure(
        "dormouse.process.polls",
        Things("{poll}"),
        Counter,
        "Polls of tasks that runtimes with hooks have reported, while anything was counted.",
        |process| process.stat.polls.filter(|polls| polls.all > 0).map(|polls| MetricValue::Count(polls.all)),
    ),
    figure(
        "dormouse.process.polls.attributed",
        Things("{poll}"),
        Counter,
        "Those of these polls that were in groups.",
        |process| {
            let polls = process.stat.polls.filter(|polls| polls.all > 0)?;
            Some(MetricValue::Count(polls.in_groups))
        },
    ),
    figure("dormouse.poll.coverage", Ratio, Gauge, "Share of these polls that were in groups.", |process| {
        let polls = process.stat.polls?;
        share(polls.in_groups, polls.all)
    }),
    figure("dormouse.process.threads", Things("{thread}"), Gauge, "Threads that exist.", |process| {
        process.stat.thread_count().map(MetricValue::Count)
    }),
    figure("dormouse.keys.on", Things("{key}"), Gauge, "Keys that are on.", |process| {
        Some(MetricValue::Count(process.stat.keys_on as u64))
    }),
    figure("dormouse.own.cpu.time", Seconds, Counter, "CPU time of dormouse's own threads.", |process| {
        process.stat.own.map(|own| MetricValue::Nanoseconds(own.threads_ns))
    }),
    figure(
        "dormouse.own.cpu.estimated",
        Seconds,
        Counter,
        "CPU time that dormouse took on the service's threads: an estimate, by calls that were timed there.",
        |process| process.stat.own?.estimated_ns().map(MetricValue::Nanoseconds),
    ),
    figure(
        "dormouse.own.memory",
        Bytes,
        Gauge,
        "Resident memory of dormouse, without its code and running profiles.",
        |process| {
            let own = process.stat.own.filter(|own| !own.memory_is_most)?;
            Some(MetricValue::Count(own.memory_bytes))
        },
    ),
    figure(
        "dormouse.records.dropped",
        Things("{record}"),
        Counter,
        "Records of probes that found no room.",
        |process| Some(MetricValue::Count(process.stat.dropped)),
    ),
];

const fn figure(
    name: &'static str,
    unit: MetricUnit,
    kind: MetricKind,
    help: &'static str,
    of: fn(&ProcessSpan<'_>) -> Option<MetricValue>,
) -> ProcessFigure {
    ProcessFigure { family: MetricFamily { name, help, unit, kind }, of_limit: false, of }
}

const fn of_limit(figure: ProcessFigure) -> ProcessFigure {
    ProcessFigure { of_limit: true, ..figure }
}

/// The lowest CPU limit.
fn lowest<'a>(process: &ProcessSpan<'a>) -> Option<&'a CpuLimitRow> {
    process.stat.cpu_limits.as_ref()?.lowest()
}

/// The pressure of the control group, where the kernel shows it.
fn pressure(process: &ProcessSpan<'_>) -> Option<PressureRow> {
    process.stat.pressure?.group
}

/// A share of a whole; `None` of nothing.
fn share(part: u64, whole: u64) -> Option<MetricValue> {
    (whole > 0).then(|| MetricValue::Number((part as f64 / whole as f64).min(1.0)))
}
