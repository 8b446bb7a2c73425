//! Blocking work of a group, and its wait for a thread: counted while times of tasks are taken.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::{Seconds, Things};

use super::entry::{column, metric, value};
use super::values::GroupFigure;
use crate::figures::{Figure, FigureJson as Json, FigureUnit as Unit, FigureValue, FigureView as View};
use crate::verbs::{BlockingRow, GroupRow};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        json: Json::Everywhere,
        metric: Some(metric(&MetricFamily {
            name: "dormouse.blocking.started",
            unit: Things("{task}"),
            kind: Counter,
            help: "Blocking work of the group that has begun, while times of tasks were measured.",
        })),
        ..value("blocking_started", |group| blocking(group.now, |of| of.begun.into()))
    },
    Figure {
        json: Json::Everywhere,
        metric: Some(metric(&MetricFamily {
            name: "dormouse.blocking.queued.time",
            unit: Seconds,
            kind: Counter,
            help: "Time for which that blocking work waited for a thread of its runtime.",
        })),
        ..value("blocking_queued_ns", |group| blocking(group.now, |of| of.queued_ns.into()))
    },
    Figure {
        help: "The mean time for which blocking work of the group waited for a thread of its runtime.",
        json: Json::Everywhere,
        columns: &[
            column(View::TopWaits, 72, "POOL WAIT", Unit::Time).leaves(2).if_any(),
            column(View::StatWaits, 150, "POOL WAIT", Unit::Time).if_any(),
        ],
        ..value("blocking_wait_ns", |group| {
            blocking(group.recent, |of| of.queued_ns.checked_div(of.begun).into())
        })
    },
];

/// A figure of blocking work; absent if none was counted.
fn blocking(row: &GroupRow, of: impl FnOnce(&BlockingRow) -> FigureValue) -> FigureValue {
    row.blocking.as_ref().map_or(FigureValue::Absent, of)
}
