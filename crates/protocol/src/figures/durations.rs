//! A histogram as figures.

use dormouse_statistics::buckets::Histogram;
use serde::Serialize;

use super::{FigurePart as Part, FigureValue};
use crate::id::WireId;
use crate::verbs::{ExemplarRow, HistogramRow};

/// The distribution of one kind of duration, as `--json` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Durations {
    /// The number of durations.
    pub count: u64,
    /// The median, in nanoseconds; null if there are no durations.
    pub p50_ns: Option<u64>,
    /// The 90th percentile, in nanoseconds; null if there are no durations.
    pub p90_ns: Option<u64>,
    /// The 99th percentile, in nanoseconds; null if there are no durations.
    pub p99_ns: Option<u64>,
    /// The longest duration, in nanoseconds; null if there are none.
    pub max_ns: Option<u64>,
    /// The number of the task with the longest duration, if it is known.
    pub max_task: Option<u64>,
    /// The trace of that task, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_trace_id: Option<WireId<16>>,
    /// The exemplars of requests: one of the last requests of each bucket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exemplars: Vec<ExemplarRow>,
    /// The scale of the buckets, as OpenTelemetry's data model defines it.
    pub scale: i32,
    /// The unit of the buckets' bounds, in nanoseconds.
    pub unit_ns: u64,
    /// The upper bound of the zero bucket, in nanoseconds.
    pub zero_threshold_ns: u64,
    /// The number of durations in the zero bucket.
    pub zero_count: u64,
    /// Index and count of each other bucket that is not empty.
    pub positive: Vec<(i32, u64)>,
    /// The sum of all durations, in nanoseconds; null if the agent does not compute it.
    pub sum_ns: Option<u64>,
}

impl Durations {
    /// The figures of a histogram.
    pub fn of(row: &HistogramRow) -> Self {
        let whole = Histogram::from(row);
        let count = whole.count();
        let [p50_ns, p90_ns, p99_ns] = [0.5, 0.9, 0.99].map(|share| whole.quantile_ns(share));
        Self {
            count,
            p50_ns,
            p90_ns,
            p99_ns,
            max_ns: (count > 0).then_some(row.max_ns),
            max_task: row.max_task,
            max_trace_id: slowest_trace(row),
            exemplars: row.exemplars.clone(),
            scale: row.scale,
            unit_ns: row.unit_ns,
            zero_threshold_ns: row.zero_threshold_ns,
            zero_count: row.zero_count,
            positive: row.buckets.clone(),
            sum_ns: row.sum_ns,
        }
    }

    pub(super) fn part(&self, part: Part) -> FigureValue {
        match part {
            Part::All => FigureValue::Absent,
            // A reading without it has no unit either.
            Part::Count if self.unit_ns == 0 => FigureValue::Absent,
            Part::Count => self.count.into(),
            Part::P50 => self.p50_ns.into(),
            Part::P90 => self.p90_ns.into(),
            Part::P99 => self.p99_ns.into(),
            Part::Max => self.max_ns.into(),
            Part::MaxTask => self.max_task.into(),
        }
    }
}

/// The trace of the longest request.
pub fn slowest_trace(row: &HistogramRow) -> Option<WireId<16>> {
    let is_its = |it: &&ExemplarRow| Some(it.task) == row.max_task;
    row.exemplars.iter().rev().find(is_its).and_then(|it| it.trace_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_durations_have_no_longest() {
        let none = Durations::of(&HistogramRow { max_ns: 7, ..HistogramRow::default() });
        assert_eq!((none.count, none.p50_ns, none.max_ns), (0, None, None));
    }
}
