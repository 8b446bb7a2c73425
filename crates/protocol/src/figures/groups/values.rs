//! Values of groups' figures, as the table's entries compute them, and the families that several
//! entries share.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::Counter;
use dormouse_metrics::MetricUnit::{Seconds, Things};
use dormouse_statistics::buckets::{Histogram as HistogramOf, place};

use super::{GroupFigure, GroupSpan};
use crate::figures::{Durations, Figure, FigureValue, percent, ratio};
use crate::verbs::{GroupRow, HistogramRow, OutcomesRow, Outliving, WaitsRow};

/// A poll of this length or less is not slow: 2^-10 s, the end of a bucket.
const SLOW_NS: u64 = 976_562;

/// Requests. The label `outcome` is absent if the service does not count outcomes.
pub static REQUESTS: MetricFamily = MetricFamily {
    name: "dormouse.requests",
    unit: Things("{request}"),
    kind: Counter,
    help: "Requests that have ended, by outcome: completed, client error, error, cancelled (dropped before their \
           end), panicked, or a word of the service's own. A request is a task that is not part of another.",
};

/// The time of tasks, by state.
pub(super) static TASK_TIME: MetricFamily = MetricFamily {
    name: "dormouse.task.time",
    unit: Seconds,
    kind: Counter,
    help: "Time of the group's tasks by state: queued before they began (in a socket that no worker had looked \
           at, or behind other tasks), in a poll, runnable (woken and not polled), or in an await.",
};

impl Figure<GroupFigure> {
    /// The figure's value for a group.
    pub fn value(&self, group: &GroupSpan<'_>) -> FigureValue {
        let waits = group.recent.waits.as_deref();
        match self.of {
            GroupFigure::Cpu(_) if group.is_refused => FigureValue::Absent,
            GroupFigure::Value(of) | GroupFigure::Cpu(of) => of(group),
            GroupFigure::Time(of) => waits.map_or(FigureValue::Absent, of),
            GroupFigure::Histogram { of, .. } => waits.map_or(FigureValue::Absent, |waits| {
                FigureValue::Durations(Box::new(Durations::of(of(waits))))
            }),
        }
    }
}

pub(super) fn outliving(group: &GroupSpan<'_>, of: fn(&Outliving) -> u64) -> FigureValue {
    group.now.outliving.as_ref().map_or(FigureValue::Absent, |outliving| of(outliving).into())
}

/// A figure of outcomes; absent if the service does not count them.
pub(super) fn outcome(row: &GroupRow, of: impl FnOnce(&OutcomesRow) -> FigureValue) -> FigureValue {
    row.outcomes.as_ref().map_or(FigureValue::Absent, of)
}

impl<'a> GroupSpan<'a> {
    /// The totals of a row, or the difference of two, for figures that are not of an interval.
    pub fn of(row: &'a GroupRow, is_refused: bool) -> Self {
        Self { now: row, counted: row, recent: row, interval_ns: 0, is_refused }
    }

    pub(super) fn per_s(&self, n: u64) -> FigureValue {
        (ratio(n, self.interval_ns) * 1e9).into()
    }

    pub(super) fn slowest(&self, of: impl Fn(&HistogramRow) -> FigureValue) -> FigureValue {
        let requests = self.counted.waits.as_ref().map(|waits| &waits.requests);
        requests.filter(|requests| requests.max_ns > 0).map_or(FigureValue::Absent, of)
    }
}

impl WaitsRow {
    /// The time in polls, on a CPU or not. Work without polls, as C enters it, is on a CPU, too,
    /// and waits unseen.
    fn polls_ns(&self) -> u64 {
        self.poll_ns.max(self.on_cpu_ns.unwrap_or(0))
    }

    pub(super) fn stalled_ns(&self) -> Option<u64> {
        self.on_cpu_ns.map(|on_cpu_ns| self.polls_ns() - on_cpu_ns)
    }

    /// The share of polls longer than [`SLOW_NS`], in percent; unknown if there are none.
    pub(super) fn slow_polls(&self) -> FigureValue {
        let polls = HistogramOf::from(&self.polls);
        let slow: u64 = polls.buckets[place(SLOW_NS) + 1..].iter().fold(0, |sum, n| sum.saturating_add(*n));
        let count = polls.count();
        (count > 0).then(|| percent(slow, count)).into()
    }

    /// Unknown where no arrival of a request is known.
    pub(super) fn queued_ns(&self) -> Option<u64> {
        let queue = self.queue.filter(|queue| queue.requests > 0)?;
        Some(queue.unseen_ns.saturating_add(queue.behind_ns))
    }

    /// A part of the tasks' time, in percent; unknown if there is no time.
    pub(super) fn share(&self, part_ns: Option<u64>) -> FigureValue {
        let times = [self.polls_ns(), self.runnable_ns, self.await_ns, self.queued_ns().unwrap_or(0)];
        let all = times.into_iter().fold(0, u64::saturating_add);
        part_ns.filter(|_| all > 0).map(|ns| percent(ns, all)).into()
    }
}
