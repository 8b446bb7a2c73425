//! How long requests, polls, delays and awaits take: known while times of tasks are taken.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Histogram};
use dormouse_metrics::MetricUnit::Seconds;

use super::REQUEST_BUCKETS;
use super::entry::{column, histogram, metric, time, value};
use super::values::GroupFigure;
use crate::figures::{
    Figure, FigureJson as Json, FigurePart as Part, FigureUnit as Unit, FigureValue, FigureView as View,
    slowest_trace,
};
use crate::verbs::{HistogramRow, WaitsRow};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
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
            help: "Latency of requests that were answered: until the head of the response, if that is known.",
        })),
        ..histogram("latency", |waits| Some(&waits.requests))
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
        ..histogram("poll", |waits| Some(&waits.polls))
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
        ..histogram("delay", |waits| Some(&waits.delays))
    },
    Figure {
        metric: Some(metric(&MetricFamily {
            name: "dormouse.await.duration",
            unit: Seconds,
            kind: Histogram(&[]),
            help: "Time from the end of a poll to a wake.",
        })),
        ..histogram("await", |waits| Some(&waits.awaits))
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
