//! The figures of a group.

mod entry;
mod values;

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Gauge, Histogram};
use dormouse_metrics::MetricUnit::{Seconds, Things};

use super::{
    EVENTS_LEAVE, Figure, FigureJson as Json, FigurePart as Part, FigureSums as Sums, FigureUnit as Unit,
    FigureValue, FigureView as View, percent, slowest_trace,
};
use crate::verbs::{HistogramRow, WaitsRow};
use entry::{column, cpu, histogram, metric, task_time, time, value};
use values::{objectives, outcome, outliving, worst_objective};

pub use values::{GroupFigure, GroupSpan, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET, REQUESTS};

/// In texts, buckets of requests end at 2 to the power of these, in seconds: from 244 µs to 16 s,
/// each four times as long as the one before.
pub(super) const REQUEST_BUCKETS: &[i32] = &[-12, -10, -8, -6, -4, -2, 0, 2, 4];

/// The figures of a group. Metrics are exported in this order.
pub static GROUP_FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        help: "The number of the group in records.",
        json: Json::Everywhere,
        ..value("id", |group| u64::from(group.now.id).into())
    },
    Figure {
        help: "The name of the group.",
        json: Json::Everywhere,
        columns: &[
            column(View::Top, 0, "GROUP", Unit::Name),
            column(View::TopWaits, 0, "GROUP", Unit::Name),
            column(View::Stat, 0, "GROUP", Unit::Name),
            column(View::StatWaits, 0, "GROUP", Unit::Name),
            column(View::Page, 0, "Group", Unit::Name),
        ],
        ..value("name", |group| FigureValue::Text(group.now.name.clone().into_owned()))
    },
    Figure {
        help: "CPU time, of one CPU.",
        json: Json::Everywhere,
        of_sums: Some(Sums::CpuPercent),
        columns: &[
            column(View::Top, 10, "CPU %", Unit::Percent).leaves(EVENTS_LEAVE + 1).sorts(),
            column(View::TopWaits, 10, "CPU %", Unit::Percent).leaves(EVENTS_LEAVE + 1).sorts(),
            column(View::Stat, 20, "CPU %", Unit::Percent),
            column(View::Page, 10, "CPU %", Unit::Percent).sorts(),
        ],
        ..cpu("cpu_percent", |group| percent(group.recent.cpu_ns, group.interval_ns).into())
    },
    Figure {
        json: Json::Everywhere,
        of_sums: Some(Sums::CpuNs),
        columns: &[
            column(View::Top, 20, "CPU s", Unit::Seconds).leaves(4),
            column(View::Stat, 10, "CPU ms", Unit::Ms),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.cpu.time",
            unit: Seconds,
            kind: Counter,
            help: "CPU time of the group's tasks while it was counted.",
        })),
        ..cpu("cpu_ns", |group| group.counted.cpu_ns.into())
    },
    Figure {
        help: "Requests that ended.",
        json: Json::Top,
        columns: &[
            column(View::Top, 30, "REQ/s", Unit::Rate).leaves(5),
            column(View::TopWaits, 20, "REQ/s", Unit::Rate).leaves(2),
            column(View::Page, 30, "Req/s", Unit::Rate),
        ],
        ..value("requests_per_s", |group| group.per_s(group.recent.requests))
    },
    Figure {
        help: "Share of the requests that failed, by an error or by a panic.",
        json: Json::Top,
        columns: &[
            column(View::Top, 32, "ERR %", Unit::Percent).leaves(3),
            column(View::TopWaits, 22, "ERR %", Unit::Percent).leaves(2),
            column(View::Page, 32, "Err %", Unit::Percent),
        ],
        ..value("error_percent", |group| {
            let requests = Some(group.recent.requests).filter(|requests| *requests > 0);
            outcome(group.recent, |of| requests.map(|all| percent(of.failed(), all)).into())
        })
    },
    Figure {
        help: "Requests that were dropped before their end.",
        json: Json::Top,
        columns: &[
            column(View::Top, 34, "CANC/s", Unit::Rate).leaves(1),
            column(View::Page, 34, "Canc/s", Unit::Rate).leaves(1),
        ],
        ..value("cancelled_per_s", |group| outcome(group.recent, |of| group.per_s(of.cancelled)))
    },
    Figure {
        help: "CPU time used, by requests ended.",
        json: Json::Everywhere,
        columns: &[
            column(View::Top, 40, "CPU/REQ", Unit::Time).leaves(3),
            column(View::Stat, 40, "CPU us/REQ", Unit::Us),
            column(View::Page, 20, "CPU/req", Unit::Time).leaves(2),
        ],
        ..cpu("cpu_ns_per_request", |group| group.counted.cpu_ns.checked_div(group.counted.requests).into())
    },
    Figure {
        help: "Polls of the group's futures.",
        json: Json::Top,
        columns: &[
            column(View::Top, 50, "POLLS/s", Unit::Rate).leaves(2),
            column(View::Page, 40, "Polls/s", Unit::Rate).leaves(1),
        ],
        ..value("polls_per_s", |group| group.per_s(group.recent.polls))
    },
    Figure {
        help: "Requests that have ended: tasks that are not part of another.",
        json: Json::Everywhere,
        columns: &[column(View::Stat, 30, "REQUESTS", Unit::Whole)],
        ..value("requests", |group| group.now.requests.into())
    },
    // An exporter adds the points with outcomes: services name some.
    Figure {
        metric: Some(metric(&REQUESTS)),
        ..value("requests_of_any_outcome", |group| match group.now.outcomes {
            None => group.now.requests.into(),
            Some(_) => FigureValue::Absent,
        })
    },
    Figure {
        json: Json::Everywhere,
        help: "Requests that were answered without an error.",
        ..value("completed", |group| outcome(group.now, |of| of.completed.into()))
    },
    Figure {
        json: Json::Everywhere,
        help: "Requests whose answer blames the request.",
        ..value("client_errors", |group| outcome(group.now, |of| of.client_error.into()))
    },
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::Stat, 32, "ERRORS", Unit::Whole)],
        help: "Requests that failed, by an error.",
        ..value("errors", |group| outcome(group.now, |of| of.error.into()))
    },
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::Stat, 34, "CANCELLED", Unit::Whole)],
        help: "Requests that were dropped before their end.",
        ..value("cancelled", |group| outcome(group.now, |of| of.cancelled.into()))
    },
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::Stat, 36, "PANICKED", Unit::Whole)],
        help: "Requests that panicked.",
        ..value("panicked", |group| outcome(group.now, |of| of.panicked.into()))
    },
    Figure {
        help: "Requests by the outcomes that the service has named.",
        json: Json::Everywhere,
        ..value("own_outcomes", |group| match &group.now.outcomes {
            Some(of) if !of.own.is_empty() => FigureValue::Counts(of.own.clone()),
            _ => FigureValue::Absent,
        })
    },
    Figure {
        help: "Share of the requests that met their objective; of several, the one that is missed most.",
        json: Json::Everywhere,
        columns: &[
            column(View::Top, 33, "MET %", Unit::Percent).leaves(4).if_any(),
            column(View::TopWaits, 24, "MET %", Unit::Percent).leaves(4).if_any(),
            column(View::Stat, 38, "MET %", Unit::Percent).if_any(),
            column(View::Page, 33, "Met %", Unit::Percent).leaves(1),
        ],
        ..value("met_percent", |group| {
            worst_objective(group, |of| (of.all() > 0).then(|| percent(of.met, of.all())).into())
        })
    },
    Figure {
        help: "Requests that missed that objective.",
        json: Json::Everywhere,
        columns: &[column(View::Stat, 39, "MISSED", Unit::Whole).if_any()],
        ..value("missed", |group| worst_objective(group, |of| of.missed.into()))
    },
    Figure {
        help: "That objective.",
        json: Json::Everywhere,
        ..value("objective", |group| worst_objective(group, |of| FigureValue::Text(of.objective.to_string())))
    },
    // An exporter adds the points of both metrics: each objective has its own.
    Figure {
        json: Json::Everywhere,
        metric: Some(metric(&OBJECTIVE_REQUESTS)),
        ..value("objectives_met", |group| objectives(group, |of| of.met))
    },
    Figure {
        help: "Requests that missed each objective, by failing or by taking longer.",
        json: Json::Everywhere,
        metric: Some(metric(&OBJECTIVE_TARGET)),
        ..value("objectives_missed", |group| objectives(group, |of| of.missed))
    },
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::Stat, 50, "POLLS", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.polls",
            unit: Things("{poll}"),
            kind: Counter,
            help: "Polls of the group's futures while anything was counted.",
        })),
        ..value("polls", |group| group.now.polls.into())
    },
    Figure {
        help: "Polls of the group's futures and entries of its scopes.",
        json: Json::Stat,
        ..value("entries", |group| group.now.entries.into())
    },
    Figure {
        json: Json::Everywhere,
        metric: Some(metric(&MetricFamily {
            name: "dormouse.tasks.started",
            unit: Things("{task}"),
            kind: Counter,
            help: "Tasks that began.",
        })),
        ..value("started", |group| group.now.started.into())
    },
    Figure {
        json: Json::Everywhere,
        metric: Some(metric(&MetricFamily {
            name: "dormouse.tasks.finished",
            unit: Things("{task}"),
            kind: Counter,
            help: "Tasks that ended, were dropped or panicked.",
        })),
        ..value("finished", |group| group.now.finished.into())
    },
    Figure {
        json: Json::Everywhere,
        columns: &[
            column(View::Top, 60, "ALIVE", Unit::Whole).leaves(1),
            column(View::Page, 70, "Alive", Unit::Whole).leaves(1),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.tasks.alive",
            unit: Things("{task}"),
            kind: Gauge,
            help: "Tasks that exist.",
        })),
        ..value("alive", |group| group.now.alive.into())
    },
    Figure {
        help: "Tasks that its requests began, and that are still there after them, at least.",
        json: Json::Everywhere,
        ..value("outliving_tasks", |group| outliving(group, |of| of.tasks))
    },
    Figure {
        help: "For how long no request that began one of these tasks has been there, at least.",
        json: Json::Everywhere,
        ..value("outliving_ns", |group| outliving(group, |of| of.ns))
    },
    // Where the tasks spend their time: known while times of tasks are taken.
    Figure {
        help: "Time that requests waited before their tasks began. It is a lower bound where the next figure is \
               unknown or \"queued_unreceived\" is not 0.",
        columns: &[column(View::StatWaits, 66, "QUEUED", Unit::Time)],
        ..time("queued_ns", |waits| waits.queued_ns().into())
    },
    Figure {
        help: "The part of it for which received requests lay in a socket that no worker had looked at. Unknown \
               where no stream returns when it received them.",
        columns: &[column(View::StatWaits, 68, "UNSEEN", Unit::Time)],
        metric: Some(task_time("queued_unseen")),
        ..time("queued_unseen_ns", |waits| {
            waits.queue.filter(|queue| queue.received > 0).map(|queue| queue.unseen_ns).into()
        })
    },
    Figure {
        help: "The rest of it: from the wake of the poll that read a request to the begin of its task.",
        metric: Some(task_time("queued_behind")),
        ..time("queued_behind_ns", |waits| {
            waits.queue.filter(|queue| queue.requests > 0).map(|queue| queue.behind_ns).into()
        })
    },
    Figure {
        help: "Requests of which it is not known when they were received, only when a worker looked.",
        ..time("queued_unreceived", |waits| {
            waits.queue.map(|queue| queue.requests.saturating_sub(queue.received)).into()
        })
    },
    Figure { metric: Some(task_time("poll")), ..time("poll_ns", |waits| waits.poll_ns.into()) },
    Figure {
        columns: &[column(View::StatWaits, 110, "RUNNABLE", Unit::Time)],
        metric: Some(task_time("runnable")),
        ..time("runnable_ns", |waits| waits.runnable_ns.into())
    },
    Figure {
        columns: &[column(View::StatWaits, 130, "AWAITING", Unit::Time)],
        metric: Some(task_time("await")),
        ..time("await_ns", |waits| waits.await_ns.into())
    },
    Figure {
        help: "CPU time of the tasks. Unknown, like the next figure, if it is not counted.",
        columns: &[column(View::StatWaits, 70, "ON CPU", Unit::Time)],
        ..time("on_cpu_ns", |waits| waits.on_cpu_ns.into())
    },
    Figure {
        help: "Time in a poll, and not on a CPU: preempted, or blocked.",
        columns: &[column(View::StatWaits, 90, "STALLED", Unit::Time)],
        ..time("stalled_ns", |waits| waits.stalled_ns().into())
    },
    Figure {
        help: "Share of the tasks' time that was before they began.",
        columns: &[
            column(View::TopWaits, 78, "QUEUED", Unit::Percent).leaves(7),
            column(View::StatWaits, 67, "%", Unit::Percent),
            column(View::Page, 112, "queued", Unit::Share),
        ],
        ..time("queued_percent", |waits| waits.share(waits.queued_ns()))
    },
    Figure {
        help: "Share of the tasks' time that was on a CPU.",
        columns: &[
            column(View::TopWaits, 80, "ON CPU", Unit::Percent).leaves(4),
            column(View::StatWaits, 80, "%", Unit::Percent),
            column(View::Page, 80, "on CPU", Unit::Share),
        ],
        ..time("on_cpu_percent", |waits| waits.share(waits.on_cpu_ns))
    },
    Figure {
        help: "Share of the tasks' time that was stalled in a poll.",
        columns: &[
            column(View::TopWaits, 90, "STALLED", Unit::Percent).leaves(8),
            column(View::StatWaits, 100, "%", Unit::Percent),
            column(View::Page, 90, "stalled in a poll", Unit::Share),
        ],
        ..time("stalled_percent", |waits| waits.share(waits.stalled_ns()))
    },
    Figure {
        help: "Share of the tasks' time that was between a wake and its poll.",
        columns: &[
            column(View::TopWaits, 100, "RUNNABLE", Unit::Percent).leaves(9),
            column(View::StatWaits, 120, "%", Unit::Percent),
            column(View::Page, 100, "runnable", Unit::Share),
        ],
        ..time("runnable_percent", |waits| waits.share(Some(waits.runnable_ns)))
    },
    Figure {
        help: "Share of the tasks' time that was in an await.",
        columns: &[
            column(View::TopWaits, 110, "AWAITING", Unit::Percent).leaves(6),
            column(View::StatWaits, 140, "%", Unit::Percent),
            column(View::Page, 110, "awaiting", Unit::Share),
        ],
        ..time("await_percent", |waits| waits.share(Some(waits.await_ns)))
    },
    Figure {
        help: "Share of polls that took over a millisecond: other tasks of the thread waited.",
        columns: &[
            column(View::TopWaits, 75, "SLOW %", Unit::Percent).leaves(1),
            column(View::Page, 65, "Slow polls %", Unit::Percent).leaves(1),
        ],
        ..time("slow_polls_percent", WaitsRow::slow_polls)
    },
    Figure {
        columns: &[
            column(View::TopWaits, 30, "P50", Unit::Time).part(Part::P50).leaves(3),
            column(View::TopWaits, 40, "P99", Unit::Time).part(Part::P99).leaves(10),
            column(View::StatWaits, 10, "REQUESTS", Unit::Whole).part(Part::Count),
            column(View::StatWaits, 20, "P50", Unit::Time).part(Part::P50),
            column(View::StatWaits, 30, "P90", Unit::Time).part(Part::P90),
            column(View::StatWaits, 40, "P99", Unit::Time).part(Part::P99),
            column(View::StatWaits, 50, "MAX", Unit::Time).part(Part::Max),
            column(View::StatWaits, 60, "TASK", Unit::Whole).part(Part::MaxTask),
            column(View::Page, 50, "p50", Unit::Time).part(Part::P50).leaves(2),
            column(View::Page, 60, "p99", Unit::Time).part(Part::P99),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.request.duration",
            unit: Seconds,
            kind: Histogram(REQUEST_BUCKETS),
            help: "Latency of requests that were answered.",
        })),
        ..histogram("latency", |waits| &waits.requests, |waits| &mut waits.requests)
    },
    Figure {
        help: "Requests that ended without an answer: cancelled or panicked.",
        columns: &[column(View::StatWaits, 62, "UNANSWERED", Unit::Whole)],
        ..time("unanswered", |waits| waits.unanswered.map(|of| of.requests).into())
    },
    Figure {
        help: "The mean age of these requests when they ended.",
        columns: &[column(View::StatWaits, 63, "AGE", Unit::Time)],
        ..time("unanswered_age_ns", |waits| {
            waits.unanswered.and_then(|of| of.age_ns.checked_div(of.requests)).into()
        })
    },
    Figure {
        metric: Some(metric(&MetricFamily {
            name: "dormouse.request.unanswered.time",
            unit: Seconds,
            kind: Counter,
            help: "Ages of the requests that ended without an answer, cancelled or panicked, added up.",
        })),
        ..time("unanswered_ns", |waits| waits.unanswered.map(|of| of.age_ns).into())
    },
    Figure {
        metric: Some(metric(&MetricFamily {
            name: "dormouse.poll.duration",
            unit: Seconds,
            kind: Histogram(&[]),
            help: "Length of polls.",
        })),
        ..histogram("poll", |waits| &waits.polls, |waits| &mut waits.polls)
    },
    Figure {
        columns: &[
            column(View::TopWaits, 70, "DELAY P99", Unit::Time).part(Part::P99).leaves(7),
            column(View::StatWaits, 65, "DELAY P99", Unit::Time).part(Part::P99),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.poll.delay",
            unit: Seconds,
            kind: Histogram(&[]),
            help: "Time from a wake to its poll.",
        })),
        ..histogram("delay", |waits| &waits.delays, |waits| &mut waits.delays)
    },
    Figure {
        metric: Some(metric(&MetricFamily {
            name: "dormouse.await.duration",
            unit: Seconds,
            kind: Histogram(&[]),
            help: "Time from the end of a poll to a wake.",
        })),
        ..histogram("await", |waits| &waits.awaits, |waits| &mut waits.awaits)
    },
    // The slowest request since times are taken.
    Figure {
        help: "The latency of the slowest request.",
        json: Json::Top,
        columns: &[column(View::TopWaits, 50, "SLOWEST", Unit::Time).leaves(5)],
        ..value("slowest_ns", |group| group.slowest(|requests| requests.max_ns.into()))
    },
    Figure {
        help: "The task of the slowest request.",
        json: Json::Top,
        columns: &[column(View::TopWaits, 60, "TASK", Unit::Whole).leaves(1)],
        ..value("slowest_task", |group| group.slowest(|requests| requests.max_task.into()))
    },
    Figure {
        help: "The trace of the slowest request.",
        json: Json::Top,
        ..value("slowest_trace_id", |group| {
            let id = |requests: &HistogramRow| slowest_trace(requests).map(|id| id.to_string());
            group.slowest(|requests| id(requests).map_or(FigureValue::Absent, FigureValue::Text))
        })
    },
];

#[cfg(test)]
mod tests;
