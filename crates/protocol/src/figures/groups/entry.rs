//! Entries of the table: the parts that most of them have in common.

use dormouse_metrics::MetricFamily;

use super::values::{GroupFigure, GroupSpan, TASK_TIME};
use crate::figures::{
    Figure, FigureColumn, FigureJson as Json, FigureMetric, FigureUnit as Unit, FigureValue,
    FigureView as View,
};
use crate::verbs::{HistogramRow, WaitsRow};

pub(super) const fn column(view: View, place: u8, title: &'static str, unit: Unit) -> FigureColumn {
    FigureColumn::new(view, place, title, unit)
}

pub(super) const fn metric(family: &'static MetricFamily) -> FigureMetric {
    FigureMetric { family, label: None }
}

pub(super) const fn task_time(state: &'static str) -> FigureMetric {
    FigureMetric { family: &TASK_TIME, label: Some(("state", state)) }
}

pub(super) const fn value(key: &'static str, of: fn(&GroupSpan<'_>) -> FigureValue) -> Figure<GroupFigure> {
    Figure::new(key, GroupFigure::Value(of))
}

pub(super) const fn cpu(key: &'static str, of: fn(&GroupSpan<'_>) -> FigureValue) -> Figure<GroupFigure> {
    Figure::new(key, GroupFigure::Cpu(of))
}

pub(super) const fn time(key: &'static str, of: fn(&WaitsRow) -> FigureValue) -> Figure<GroupFigure> {
    Figure { in_waits: true, json: Json::Everywhere, ..Figure::new(key, GroupFigure::Time(of)) }
}

pub(super) const fn histogram(
    key: &'static str,
    of: fn(&WaitsRow) -> Option<&HistogramRow>,
) -> Figure<GroupFigure> {
    Figure { in_waits: true, json: Json::Everywhere, ..Figure::new(key, GroupFigure::Histogram(of)) }
}
