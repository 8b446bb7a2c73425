//! Requests: how many there are, how they end, and which objectives they meet.

use super::entry::{column, cpu, metric, value};
use super::values::{
    GroupFigure, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET, REQUESTS, objectives, outcome, worst_objective,
};
use crate::figures::{
    Figure, FigureJson as Json, FigureUnit as Unit, FigureValue, FigureView as View, percent,
};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
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
            column(View::TopWaits, 23, "CANC/s", Unit::Rate).leaves(1),
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
];
