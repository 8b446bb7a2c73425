//! The name of a group, and its CPU time.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::Seconds;

use super::entry::{column, cpu, metric, value};
use super::values::GroupFigure;
use crate::figures::{
    EVENTS_LEAVE, Figure, FigureJson as Json, FigureSums as Sums, FigureUnit as Unit, FigureValue,
    FigureView as View, percent,
};

pub(super) const FIGURES: &[Figure<GroupFigure>] = &[
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
            column(View::StatBodies, 0, "GROUP", Unit::Name),
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
];
