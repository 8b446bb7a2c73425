//! The metric families of a process, by name, unit and kind.

use dormouse_metrics::MetricKind::{Counter, Gauge, Histogram, Info};
use dormouse_metrics::MetricUnit::{Bytes, Nothing, Ratio, Seconds, Things};
use dormouse_metrics::{MetricFamily, MetricKind, MetricUnit};

const fn family(name: &'static str, unit: MetricUnit, kind: MetricKind, help: &'static str) -> MetricFamily {
    MetricFamily { name, help, unit, kind }
}

/// In texts, buckets of requests end at 2 to the power of these, in seconds: from 244 µs to 16 s,
/// each four times as long as the one before.
const REQUEST_BUCKETS: &[i32] = &[-12, -10, -8, -6, -4, -2, 0, 2, 4];

// Of each group.

pub(crate) static CPU: MetricFamily =
    family("dormouse.cpu.time", Seconds, Counter, "CPU time of the group's tasks while it was counted.");
pub(crate) static REQUESTS: MetricFamily = family(
    "dormouse.requests",
    Things("{request}"),
    Counter,
    "Tasks that ended and were no part of another.",
);
pub(crate) static POLLS: MetricFamily = family(
    "dormouse.polls",
    Things("{poll}"),
    Counter,
    "Polls of the group's futures while anything was counted.",
);
pub(crate) static STARTED: MetricFamily =
    family("dormouse.tasks.started", Things("{task}"), Counter, "Tasks that began.");
pub(crate) static FINISHED: MetricFamily = family(
    "dormouse.tasks.finished",
    Things("{task}"),
    Counter,
    "Tasks that ended, were dropped or panicked.",
);
pub(crate) static ALIVE: MetricFamily =
    family("dormouse.tasks.alive", Things("{task}"), Gauge, "Tasks that are.");

// Of each group, while times of tasks are taken.

pub(crate) static TASK_TIME: MetricFamily = family(
    "dormouse.task.time",
    Seconds,
    Counter,
    "Time of the group's tasks by state: in a poll, runnable (woken and not polled), or in an await.",
);
pub(crate) static REQUEST_DURATION: MetricFamily = family(
    "dormouse.request.duration",
    Seconds,
    Histogram(REQUEST_BUCKETS),
    "Latency of requests that have ended.",
);
pub(crate) static POLL_DURATION: MetricFamily =
    family("dormouse.poll.duration", Seconds, Histogram(&[]), "Length of polls.");
pub(crate) static POLL_DELAY: MetricFamily =
    family("dormouse.poll.delay", Seconds, Histogram(&[]), "Time from a wake to its poll.");
pub(crate) static AWAIT_DURATION: MetricFamily =
    family("dormouse.await.duration", Seconds, Histogram(&[]), "Time from the end of a poll to a wake.");

// Of each group, for events that are counted.

/// Events of the library, with the families that have them.
pub(crate) static EVENTS: [(&str, MetricFamily); 14] = [
    ("alloc-count", of_event("dormouse.allocations", Things("{allocation}"), "Allocations of memory.")),
    ("alloc-bytes", of_event("dormouse.allocated", Bytes, "Memory that was allocated.")),
    ("free-bytes", of_event("dormouse.freed", Bytes, "Memory that was freed.")),
    ("alloc-peak", of_event("dormouse.allocated.peak", Bytes, "Rise of the threads' high-water marks.")),
    ("page-faults", of_event("dormouse.page.faults", Things("{fault}"), "Page faults.")),
    (
        "major-faults",
        of_event("dormouse.page.faults.major", Things("{fault}"), "Page faults that read a disk."),
    ),
    ("context-switches", of_event("dormouse.context.switches", Things("{switch}"), "Switches of threads.")),
    (
        "cpu-migrations",
        of_event("dormouse.cpu.migrations", Things("{migration}"), "Moves to another CPU, seen by reads."),
    ),
    (
        "cpu-migrations-exact",
        of_event("dormouse.cpu.migrations.exact", Things("{migration}"), "Moves to another CPU."),
    ),
    ("cycles", of_event("dormouse.cpu.cycles", Things("{cycle}"), "Cycles of the CPU.")),
    ("instructions", of_event("dormouse.cpu.instructions", Things("{instruction}"), "Instructions.")),
    (
        "cache-references",
        of_event("dormouse.cpu.cache.references", Things("{reference}"), "References to the cache."),
    ),
    ("cache-misses", of_event("dormouse.cpu.cache.misses", Things("{miss}"), "Misses of the cache.")),
    (
        "branch-misses",
        of_event("dormouse.cpu.branch.misses", Things("{miss}"), "Branches that were foretold wrongly."),
    ),
];

/// All others, by the label `event`.
pub(crate) static OTHER_EVENTS: MetricFamily =
    of_event("dormouse.events", Things("{event}"), "Other events, and the program's own, by name.");

const fn of_event(name: &'static str, unit: MetricUnit, help: &'static str) -> MetricFamily {
    family(name, unit, Counter, help)
}

// Of the process.

pub(crate) static PROCESS_CPU: MetricFamily =
    family("dormouse.process.cpu.time", Seconds, Counter, "CPU time of the process.");
pub(crate) static PROCESS_ATTRIBUTED: MetricFamily =
    family("dormouse.process.cpu.attributed", Seconds, Counter, "CPU time that groups were charged for.");
pub(crate) static CPU_REFUSED: MetricFamily = family(
    "dormouse.cpu.refused",
    Nothing,
    Gauge,
    "1 if CPU time of groups is absent, because they had more than their process: a clock is false.",
);
pub(crate) static PROCESS_RUNNABLE: MetricFamily = family(
    "dormouse.process.runnable.time",
    Seconds,
    Counter,
    "Time for which threads were runnable and waited for a CPU, as far as it was seen.",
);
pub(crate) static PROCESS_THREADS: MetricFamily =
    family("dormouse.process.threads", Things("{thread}"), Gauge, "Threads that are.");
pub(crate) static PROCESS_START: MetricFamily =
    family("dormouse.process.start.time", Seconds, Gauge, "Start of the process, in seconds since 1970.");
pub(crate) static CPU_COVERAGE: MetricFamily = family(
    "dormouse.cpu.coverage",
    Ratio,
    Gauge,
    "Share of the process's CPU time that was of groups, since this reader had it counted.",
);
pub(crate) static PROCESS_POLLS: MetricFamily = family(
    "dormouse.process.polls",
    Things("{poll}"),
    Counter,
    "Polls of tasks that runtimes with hooks have told of, while anything was counted.",
);
pub(crate) static PROCESS_POLLS_ATTRIBUTED: MetricFamily = family(
    "dormouse.process.polls.attributed",
    Things("{poll}"),
    Counter,
    "Those of these polls that were in groups.",
);
pub(crate) static POLL_COVERAGE: MetricFamily =
    family("dormouse.poll.coverage", Ratio, Gauge, "Share of these polls that were in groups.");
pub(crate) static KEYS_ON: MetricFamily =
    family("dormouse.keys.on", Things("{key}"), Gauge, "Keys that are on.");
pub(crate) static RECORDS_DROPPED: MetricFamily =
    family("dormouse.records.dropped", Things("{record}"), Counter, "Records of probes that found no room.");
pub(crate) static AGENT: MetricFamily =
    family("dormouse.agent.info", Nothing, Info, "The version of dormouse in the process.");

/// The families whose values are numbers: counters and gauges.
#[cfg(feature = "opentelemetry")]
pub(crate) fn numbers() -> impl Iterator<Item = &'static MetricFamily> {
    let own = [
        &CPU,
        &REQUESTS,
        &POLLS,
        &STARTED,
        &FINISHED,
        &ALIVE,
        &TASK_TIME,
        &OTHER_EVENTS,
        &PROCESS_CPU,
        &PROCESS_ATTRIBUTED,
        &CPU_REFUSED,
        &PROCESS_RUNNABLE,
        &PROCESS_THREADS,
        &PROCESS_START,
        &CPU_COVERAGE,
        &PROCESS_POLLS,
        &PROCESS_POLLS_ATTRIBUTED,
        &POLL_COVERAGE,
        &KEYS_ON,
        &RECORDS_DROPPED,
    ];
    own.into_iter().chain(EVENTS.iter().map(|(_, family)| family))
}
