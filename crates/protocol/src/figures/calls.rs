//! The figures of outgoing calls: of one group to one peer.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Histogram};
use dormouse_metrics::MetricUnit::{Seconds, Things};

use super::groups::REQUEST_BUCKETS;
use super::{
    Durations, Figure, FigureColumn, FigureJson as Json, FigureMetric, FigurePart as Part,
    FigureUnit as Unit, FigureValue, FigureView as View,
};
use crate::verbs::CallRow;

/// The calls of a group to a peer, from which figures are computed.
#[derive(Debug, Clone, Copy)]
pub struct CallSpan<'a> {
    /// The calls.
    pub row: &'a CallRow,
    /// The name of the group; `None` for calls that no group has made.
    pub group: Option<&'a str>,
}

/// Computes a figure of calls.
pub type CallFigure = fn(&CallSpan<'_>) -> FigureValue;

/// The figures of calls. Metrics have the labels `group`, `kind` and `peer`.
pub static CALL_FIGURES: &[Figure<CallFigure>] = &[
    Figure {
        help: "The name of the group that calls; null for calls that no group has made.",
        columns: &[column(0, "GROUP", Unit::Name)],
        ..value("group", |calls| {
            calls.group.map(str::to_owned).map_or(FigureValue::Unknown, FigureValue::Text)
        })
    },
    Figure {
        help: "The kind of the calls: http, grpc, sql, redis or other.",
        columns: &[column(10, "KIND", Unit::Text), on_page(10, "Kind", Unit::Text)],
        ..value("kind", |calls| FigureValue::Text(calls.row.kind.clone().into_owned()))
    },
    Figure {
        help: "Whom the group calls: a host, a method, a statement without its values, or a command. Null for all \
               peers that have no row of their own.",
        ..value("peer", |calls| {
            let peer = calls.row.peer.clone();
            peer.map_or(FigureValue::Unknown, |peer| FigureValue::Text(peer.into_owned()))
        })
    },
    Figure {
        help: "Calls that ended, including those that were given up.",
        columns: &[column(20, "CALLS", Unit::Whole), on_page(20, "Calls", Unit::Whole)],
        ..value("calls", |calls| {
            Durations::of(&calls.row.times).count.saturating_add(calls.row.cancelled).into()
        })
    },
    Figure {
        columns: &[column(30, "ERRORS", Unit::Whole), on_page(30, "Errors", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.calls.failed",
            unit: Things("{call}"),
            kind: Counter,
            help: "Outgoing calls of the group that failed. Absent if nothing reports whether any did.",
        })),
        ..value("errors", |calls| calls.row.errors.into())
    },
    Figure {
        columns: &[column(40, "CANCELLED", Unit::Whole), on_page(40, "Cancelled", Unit::Whole)],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.calls.cancelled",
            unit: Things("{call}"),
            kind: Counter,
            help: "Outgoing calls of the group that were given up before their end.",
        })),
        ..value("cancelled", |calls| calls.row.cancelled.into())
    },
    Figure {
        help: "The time of all calls that were not given up, added up.",
        columns: &[column(50, "TIME", Unit::Time), on_page(50, "Time", Unit::Time)],
        ..value("time_ns", |calls| calls.row.times.sum_ns.into())
    },
    Figure {
        columns: &[
            column(60, "P50", Unit::Time).part(Part::P50),
            column(70, "P99", Unit::Time).part(Part::P99),
            column(80, "MAX", Unit::Time).part(Part::Max),
            on_page(60, "p50", Unit::Time).part(Part::P50),
            on_page(70, "p99", Unit::Time).part(Part::P99),
        ],
        metric: Some(metric(&MetricFamily {
            name: "dormouse.call.duration",
            unit: Seconds,
            kind: Histogram(REQUEST_BUCKETS),
            help: "Time of the group's outgoing calls that were not given up, up to the head of the answer.",
        })),
        ..value("latency", |calls| FigureValue::Durations(Box::new(Durations::of(&calls.row.times))))
    },
    // The longest text comes last.
    Figure {
        json: Json::Nowhere,
        columns: &[column(90, "PEER", Unit::Text), on_page(90, "Peer", Unit::Text)],
        ..value("name", |calls| FigureValue::Text(calls.row.name().to_owned()))
    },
];

const fn column(place: u8, title: &'static str, unit: Unit) -> FigureColumn {
    FigureColumn::new(View::Calls, place, title, unit)
}

const fn on_page(place: u8, title: &'static str, unit: Unit) -> FigureColumn {
    FigureColumn::new(View::Page, place, title, unit)
}

const fn metric(family: &'static MetricFamily) -> FigureMetric {
    FigureMetric { family, label: None }
}

/// A figure that the documents have.
const fn value(key: &'static str, of: CallFigure) -> Figure<CallFigure> {
    Figure { json: Json::Stat, ..Figure::new(key, of) }
}
