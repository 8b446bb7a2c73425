//! The figures of a runtime.

use dormouse_metrics::MetricKind::{Gauge, OlderCounter};
use dormouse_metrics::MetricUnit::{Seconds, Things};
use dormouse_metrics::{MetricFamily, MetricKind, MetricUnit};

use super::{
    Figure, FigureColumn, FigureJson, FigureMetric, FigureUnit as Unit, FigureValue, FigureView as View,
    percent, ratio,
};
use crate::verbs::RuntimeRow;

/// A runtime over an interval.
#[derive(Debug, Clone, Copy)]
pub struct RuntimeSpan<'a> {
    /// The runtime at the end of the interval, with the totals of the interval; in metrics those
    /// since the runtime began.
    pub row: &'a RuntimeRow,
    /// The length of the interval, in nanoseconds.
    pub interval_ns: u64,
}

/// How a figure of a runtime is computed.
pub type RuntimeFigure = fn(&RuntimeSpan<'_>) -> FigureValue;

/// The figures of a runtime. Metrics are exported in this order, with the label `runtime`.
pub static RUNTIME_FIGURES: &[Figure<RuntimeFigure>] = &[
    Figure {
        help: "The name that the service has given the runtime.",
        columns: &[column(0, "RUNTIME", Unit::Name)],
        ..value("name", |of| FigureValue::Text(of.row.name.clone()))
    },
    Figure {
        columns: &[column(10, "WORKERS", Unit::Whole)],
        metric: Some(metric(&WORKERS)),
        ..value("workers", |of| of.row.workers.into())
    },
    Figure {
        help: "Busy time of the workers, of all their time.",
        columns: &[column(20, "BUSY %", Unit::Percent)],
        ..value("busy_percent", |of| {
            let all_ns = of.interval_ns.saturating_mul(of.row.workers);
            of.row.busy_ns.filter(|_| all_ns > 0).map(|busy_ns| percent(busy_ns, all_ns)).into()
        })
    },
    Figure { metric: Some(metric(&BUSY)), ..value("busy_ns", |of| there(of.row.busy_ns)) },
    Figure { metric: Some(metric(&PARKS)), ..value("parks", |of| there(of.row.parks)) },
    Figure {
        columns: &[column(30, "TASKS", Unit::Whole)],
        metric: Some(metric(&TASKS)),
        ..value("tasks", |of| of.row.tasks.into())
    },
    Figure {
        columns: &[column(40, "QUEUE", Unit::Whole)],
        metric: Some(metric(&GLOBAL)),
        ..value("global_queue", |of| of.row.global_queue.into())
    },
    Figure {
        columns: &[column(50, "OWN QUEUES", Unit::Whole).if_any()],
        metric: Some(metric(&LOCAL)),
        ..value("local_queues", |of| there(of.row.local_queues))
    },
    Figure {
        help: "Polls of tasks.",
        columns: &[column(60, "POLLS/s", Unit::Rate).if_any()],
        ..value("polls_per_s", |of| {
            of.row.polls.map_or(FigureValue::Absent, |n| (ratio(n, of.interval_ns) * 1e9).into())
        })
    },
    Figure { metric: Some(metric(&POLLS)), ..value("polls", |of| there(of.row.polls)) },
    Figure { metric: Some(metric(&STEALS)), ..value("steals", |of| there(of.row.steals)) },
    Figure {
        columns: &[column(70, "BLOCKING", Unit::Whole).if_any()],
        metric: Some(metric(&BLOCKING)),
        ..value("blocking_threads", |of| there(of.row.blocking_threads))
    },
    Figure {
        columns: &[column(80, "IDLE", Unit::Whole).if_any()],
        metric: Some(metric(&IDLE)),
        ..value("idle_blocking_threads", |of| there(of.row.idle_blocking_threads))
    },
    Figure {
        columns: &[column(90, "BLOCKING QUEUE", Unit::Whole).if_any()],
        metric: Some(metric(&BLOCKING_QUEUE)),
        ..value("blocking_queue", |of| there(of.row.blocking_queue))
    },
];

// Totals of a runtime begin with it, and not with the process: so they have no start.
static WORKERS: MetricFamily =
    family("dormouse.runtime.workers", Things("{worker}"), Gauge, "Workers of the runtime.");
static BUSY: MetricFamily = family(
    "dormouse.runtime.busy.time",
    Seconds,
    OlderCounter,
    "Time for which workers of the runtime were busy.",
);
static PARKS: MetricFamily = family(
    "dormouse.runtime.parks",
    Things("{park}"),
    OlderCounter,
    "How often workers of the runtime have parked.",
);
static TASKS: MetricFamily =
    family("dormouse.runtime.tasks", Things("{task}"), Gauge, "Tasks of the runtime that exist.");
static GLOBAL: MetricFamily = family(
    "dormouse.runtime.queue",
    Things("{task}"),
    Gauge,
    "Tasks that wait in the queue of all workers of the runtime.",
);
static LOCAL: MetricFamily = family(
    "dormouse.runtime.own.queues",
    Things("{task}"),
    Gauge,
    "Tasks that wait in the queues of single workers of the runtime.",
);
static POLLS: MetricFamily =
    family("dormouse.runtime.polls", Things("{poll}"), OlderCounter, "Polls of the runtime's tasks.");
static STEALS: MetricFamily = family(
    "dormouse.runtime.steals",
    Things("{task}"),
    OlderCounter,
    "Tasks that a worker of the runtime has taken from another one.",
);
static BLOCKING: MetricFamily = family(
    "dormouse.runtime.blocking.threads",
    Things("{thread}"),
    Gauge,
    "Threads of the runtime for blocking work.",
);
static IDLE: MetricFamily = family(
    "dormouse.runtime.blocking.idle",
    Things("{thread}"),
    Gauge,
    "Threads of the runtime for blocking work that have none.",
);
static BLOCKING_QUEUE: MetricFamily = family(
    "dormouse.runtime.blocking.queue",
    Things("{task}"),
    Gauge,
    "Blocking work of the runtime that waits for a thread.",
);

/// A figure that some runtimes do not have.
fn there(n: Option<u64>) -> FigureValue {
    n.map_or(FigureValue::Absent, Into::into)
}

const fn family(name: &'static str, unit: MetricUnit, kind: MetricKind, help: &'static str) -> MetricFamily {
    MetricFamily { name, unit, kind, help }
}

const fn column(place: u8, title: &'static str, unit: Unit) -> FigureColumn {
    FigureColumn::new(View::Runtimes, place, title, unit)
}

const fn metric(family: &'static MetricFamily) -> FigureMetric {
    FigureMetric { family, label: None }
}

const fn value(key: &'static str, of: RuntimeFigure) -> Figure<RuntimeFigure> {
    Figure { json: FigureJson::Everywhere, ..Figure::new(key, of) }
}
