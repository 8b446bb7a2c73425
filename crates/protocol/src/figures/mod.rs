//! Figures: the numbers that are shown of a service, each described once.
//!
//! A figure is one entry of a table ([`GROUP_FIGURES`], [`CALL_FIGURES`], [`PROCESS_FIGURES`]): its
//! key in JSON, the columns that show it, the metric that exports it, and a function that computes
//! it. The columns of `top`, `stat` and the page, the keys of `--json`, the families of Prometheus
//! and OpenTelemetry and the tables of `docs/guide/metrics.md` are read from these tables.
//!
//! A reading is a [`Stat`](crate::Stat); [`Stat::since`](crate::Stat::since) is the only difference
//! of two. A [`GroupSpan`] has a group's rows of up to three such spans: since the service began,
//! since the reader began, and of the last interval. Each figure takes the row that it is of.

mod calls;
mod durations;
mod events;
mod groups;
mod locks;
mod process;
mod runtimes;

use std::borrow::Cow;

use dormouse_metrics::MetricFamily;
use serde::{Serialize, Serializer};

pub use calls::{CALL_FIGURES, CallFigure, CallSpan};
pub use durations::{Durations, slowest_trace};
pub use events::{EVENT_FAMILIES, OTHER_EVENTS};
pub use groups::{
    BODY_DURATION, GROUP_FIGURES, GROUP_POLLS, GroupFigure, GroupSpan, OBJECTIVE_REQUESTS, OBJECTIVE_TARGET,
    RECEIVED_GAP, REQUESTS, STREAM_GAP,
};
pub use locks::{LOCK_ACQUISITIONS, LOCK_WAIT_TIME, LOCK_WAITS};
pub use process::{PROCESS_FIGURES, ProcessFigure, ProcessSpan};
pub use runtimes::{RUNTIME_FIGURES, RuntimeFigure, RuntimeSpan};

/// One figure. `Of` computes it: a function, or for groups a [`GroupFigure`].
#[derive(Debug, Clone, Copy)]
pub struct Figure<Of> {
    /// The figure's key in JSON.
    pub key: &'static str,
    /// Whether the key is one of the object `waits` of a row, not of the row itself.
    pub in_waits: bool,
    /// One sentence for people. A figure with a metric has the sentence of its family.
    pub help: &'static str,
    /// Computes the figure.
    pub of: Of,
    /// The JSON documents that contain the figure.
    pub json: FigureJson,
    /// The CPU time that the figure shows in rows that are sums of CPU time, such as the row of the
    /// process.
    pub of_sums: Option<FigureSums>,
    /// The views in which the figure is a column.
    pub columns: &'static [FigureColumn],
    /// The metric that exports the figure.
    pub metric: Option<FigureMetric>,
}

/// The documents of `--json` with rows of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureJson {
    /// None of them.
    Nowhere,
    /// The documents of `top` and of `stat`.
    Everywhere,
    /// The document of `top`.
    Top,
    /// The document of `stat`.
    Stat,
}

/// The figures of rows that are sums of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureSums {
    /// CPU time of the interval, in percent of one CPU.
    CpuPercent,
    /// CPU time since counting began.
    CpuNs,
}

/// A metric of a figure.
#[derive(Debug, Clone, Copy)]
pub struct FigureMetric {
    /// The family of the metric.
    pub family: &'static MetricFamily,
    /// The label that distinguishes the metric from others of its family: name and value.
    pub label: Option<(&'static str, &'static str)>,
}

/// A table with rows of figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigureView {
    /// Groups in `top` and `demo`.
    Top,
    /// Times of tasks in `top`.
    TopWaits,
    /// Threads in `top` and `demo`.
    TopThreads,
    /// Groups in `stat`.
    Stat,
    /// Times of tasks in `stat`.
    StatWaits,
    /// Bodies, streams and connections in `stat`.
    StatBodies,
    /// Threads in `stat`.
    StatThreads,
    /// Runtimes in `top`, `stat` and `demo`.
    Runtimes,
    /// Groups, and the outgoing calls of one, in the page of `serve`.
    Page,
    /// Outgoing calls in `stat`.
    Calls,
}

/// One column of a view.
#[derive(Debug, Clone, Copy)]
pub struct FigureColumn {
    /// The view.
    pub view: FigureView,
    /// The columns of a view stand in the order of these numbers.
    pub place: u8,
    /// The title.
    pub title: &'static str,
    /// How the figure is written.
    pub unit: FigureUnit,
    /// The number that is shown of a figure that is a histogram.
    pub part: FigurePart,
    /// If there is no room, columns are left out in the order of these numbers; those with 0 stay.
    pub leaves: u8,
    /// Whether rows are sorted by this column at first.
    pub sorts: bool,
    /// Whether a text shows the column only if some row has the figure.
    pub if_any: bool,
}

/// Columns of events are left out after columns with a lower number, and before those with a higher
/// one.
pub const EVENTS_LEAVE: u8 = 100;

/// A number of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FigurePart {
    /// The figure is no histogram.
    All,
    /// How many durations there are.
    Count,
    /// Half of the durations are no longer.
    P50,
    /// 90 % of the durations are no longer.
    P90,
    /// 99 % of the durations are no longer.
    P99,
    /// The longest duration.
    Max,
    /// The task of the longest duration.
    MaxTask,
}

/// How a column writes its figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureUnit {
    /// The name of the row.
    Name,
    /// Another text.
    Text,
    /// A thread's number here, and the one in its own namespace.
    Tid,
    /// A whole number.
    Whole,
    /// Percent, with one decimal.
    Percent,
    /// A part of a bar whose parts are 100 % together.
    Share,
    /// Per second.
    Rate,
    /// Nanoseconds, written in seconds.
    Seconds,
    /// Nanoseconds, written in milliseconds.
    Ms,
    /// Nanoseconds, written in microseconds.
    Us,
    /// Nanoseconds, written in the unit that fits.
    Time,
}

/// The value of a figure.
#[derive(Debug, Clone, PartialEq)]
pub enum FigureValue {
    /// The row has no such figure: no key in JSON, an empty cell, no point.
    Absent,
    /// It is not known, or a share of nothing: null in JSON, an empty cell, no point.
    Unknown,
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Number(f64),
    /// Yes or no.
    Flag(bool),
    /// A name or an id.
    Text(String),
    /// A histogram.
    Durations(Box<Durations>),
    /// Numbers by names that the service has given.
    Counts(Vec<(Cow<'static, str>, u64)>),
}

impl<Of> Figure<Of> {
    /// The figure of that key, which is shown nowhere yet.
    pub const fn new(key: &'static str, of: Of) -> Self
    where
        Of: Copy,
    {
        let (json, columns) = (FigureJson::Nowhere, &[]);
        Self { key, in_waits: false, help: "", of, json, of_sums: None, columns, metric: None }
    }

    /// One sentence about the figure.
    pub fn sentence(&self) -> &'static str {
        self.metric.map_or(self.help, |metric| metric.family.help)
    }
}

impl FigureJson {
    /// Whether a figure with this value is in that document.
    pub fn is_in(self, document: Self) -> bool {
        self == Self::Everywhere || self == document
    }
}

impl FigureColumn {
    /// The column at that place of a view.
    pub const fn new(view: FigureView, place: u8, title: &'static str, unit: FigureUnit) -> Self {
        Self { view, place, title, unit, part: FigurePart::All, leaves: 0, sorts: false, if_any: false }
    }

    /// Makes the column show this number of the histogram.
    #[must_use]
    pub const fn part(self, part: FigurePart) -> Self {
        Self { part, ..self }
    }

    /// Makes the column one that is left out if there is no room ([`FigureColumn::leaves`]).
    #[must_use]
    pub const fn leaves(self, leaves: u8) -> Self {
        Self { leaves, ..self }
    }

    /// Makes the column one that a text shows only if some row has the figure.
    #[must_use]
    pub const fn if_any(self) -> Self {
        Self { if_any: true, ..self }
    }

    /// Makes the column the one by which rows are sorted at first.
    #[must_use]
    pub const fn sorts(self) -> Self {
        Self { sorts: true, ..self }
    }
}

impl FigureValue {
    /// The number of a histogram that a column shows. Any other value has only
    /// [`FigurePart::All`], which is the value itself.
    #[must_use]
    pub fn part(&self, part: FigurePart) -> Self {
        match (self, part) {
            (Self::Durations(of), part) => of.part(part),
            (of, FigurePart::All) => of.clone(),
            _ => Self::Absent,
        }
    }

    /// The value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(n) => Some(*n as f64),
            Self::Number(n) => Some(*n),
            _ => None,
        }
    }
}

impl Serialize for FigureValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Unknown => serializer.serialize_none(),
            Self::Whole(n) => serializer.serialize_u64(*n),
            Self::Number(n) => serializer.serialize_f64(*n),
            Self::Flag(is) => serializer.serialize_bool(*is),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Durations(of) => of.serialize(serializer),
            Self::Counts(of) => serializer.collect_map(of.iter().map(|(name, n)| (name, n))),
        }
    }
}

impl From<u64> for FigureValue {
    fn from(n: u64) -> Self {
        Self::Whole(n)
    }
}

impl From<f64> for FigureValue {
    fn from(n: f64) -> Self {
        Self::Number(n)
    }
}

/// `None` is not known.
impl<T: Into<Self>> From<Option<T>> for FigureValue {
    fn from(of: Option<T>) -> Self {
        of.map_or(Self::Unknown, Into::into)
    }
}

/// `part` divided by `whole`; 0 if `whole` is 0.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// `part` in percent of `whole`; 0 if `whole` is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    ratio(part, whole) * 100.0
}
