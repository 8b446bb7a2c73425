//! The tasks of a group, and their polls.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Gauge};
use dormouse_metrics::MetricUnit::Things;

use super::entry::{column, metric, value};
use super::values::{GroupFigure, outliving};
use crate::figures::{Figure, FigureJson as Json, FigureUnit as Unit, FigureView as View};

/// Polls, which are counted while anything is.
pub static GROUP_POLLS: MetricFamily = MetricFamily {
    name: "dormouse.polls",
    unit: Things("{poll}"),
    kind: Counter,
    help: "Polls of the group's futures while anything was counted.",
};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
    Figure {
        json: Json::Everywhere,
        columns: &[column(View::Stat, 50, "POLLS", Unit::Whole)],
        metric: Some(metric(&GROUP_POLLS)),
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
];
