//! Values of groups' figures, as the table's entries compute them from a span, and the families
//! that several entries share.

use dormouse_metrics::MetricFamily;
use dormouse_metrics::MetricKind::{Counter, Gauge, OlderCounter};
use dormouse_metrics::MetricUnit::{Ratio, Seconds, Things};
use dormouse_statistics::buckets::{Histogram as HistogramOf, place};

use crate::figures::{Durations, Figure, FigureValue, percent, ratio};
use crate::verbs::{
    CarriedRow, GroupRow, HistogramRow, LongLivedRow, MessagesRow, ObjectiveRow, OutcomesRow, Outliving,
    StreamsRow, WaitsRow,
};

/// A group's rows over three spans of time, from which figures are computed. A reader that only has
/// totals, such as metrics, passes one row three times.
#[derive(Debug, Clone, Copy)]
pub struct GroupSpan<'a> {
    /// The totals since the service began.
    pub now: &'a GroupRow,
    /// The totals since the reader began.
    pub counted: &'a GroupRow,
    /// The totals of the last interval.
    pub recent: &'a GroupRow,
    /// The length of that interval, in nanoseconds.
    pub interval_ns: u64,
    /// Whether the CPU time of groups is refused.
    pub is_refused: bool,
}

/// How a figure of a group is computed.
#[derive(Debug, Clone, Copy)]
pub enum GroupFigure {
    /// A value that each row has.
    Value(fn(&GroupSpan<'_>) -> FigureValue),
    /// A value that is absent while the CPU time of groups is refused.
    Cpu(fn(&GroupSpan<'_>) -> FigureValue),
    /// A time of the last interval, absent while times of tasks are not taken.
    Time(fn(&WaitsRow) -> FigureValue),
    /// A histogram of the last interval, likewise; absent also where the function gives none.
    Histogram(fn(&WaitsRow) -> Option<&HistogramRow>),
}

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

/// Requests by objectives, with the labels `objective` and `met`. They begin when somebody begins
/// to count them, and not with the process.
pub static OBJECTIVE_REQUESTS: MetricFamily = MetricFamily {
    name: "dormouse.objective.requests",
    unit: Things("{request}"),
    kind: OlderCounter,
    help: "Requests that met an objective (were answered within its time) or missed it (failed, or took longer), \
           since it is counted.",
};

/// The share of requests that an objective wants, with the label `objective`.
pub static OBJECTIVE_TARGET: MetricFamily = MetricFamily {
    name: "dormouse.objective.target",
    unit: Ratio,
    kind: Gauge,
    help: "The share of requests that is to meet the objective.",
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
            GroupFigure::Histogram(of) => waits
                .and_then(of)
                .map_or(FigureValue::Absent, |row| FigureValue::Durations(Box::new(Durations::of(row)))),
        }
    }
}

pub(super) fn outliving(group: &GroupSpan<'_>, of: fn(&Outliving) -> u64) -> FigureValue {
    group.now.outliving.as_ref().map_or(FigureValue::Absent, |outliving| of(outliving).into())
}

/// A figure of the objective that is missed most in the last interval, compared with the share that
/// may miss it; absent without objectives.
pub(super) fn worst_objective(
    group: &GroupSpan<'_>,
    of: impl FnOnce(&ObjectiveRow) -> FigureValue,
) -> FigureValue {
    let burnt = |row: &ObjectiveRow| {
        let allowed = 1_000_000_u32.saturating_sub(row.objective.target_ppm).max(1);
        ratio(row.missed, row.all()) / f64::from(allowed)
    };
    let all = group.recent.objectives.iter();
    // Of equals the first.
    let worst = all.rev().max_by(|a, b| burnt(a).total_cmp(&burnt(b)));
    worst.map_or(FigureValue::Absent, of)
}

/// A number of each objective; absent without objectives.
pub(super) fn objectives(group: &GroupSpan<'_>, of: fn(&ObjectiveRow) -> u64) -> FigureValue {
    let all = &group.now.objectives;
    if all.is_empty() {
        return FigureValue::Absent;
    }
    FigureValue::Counts(all.iter().map(|row| (row.objective.to_string().into(), of(row))).collect())
}

/// A figure of tasks that live for long; absent if the service does not count them.
pub(super) fn long_lived(group: &GroupSpan<'_>, of: fn(&LongLivedRow) -> FigureValue) -> FigureValue {
    group.now.long_lived.as_ref().map_or(FigureValue::Absent, of)
}

/// A figure of streams; absent for a group that has sent none, as most have.
pub(super) fn streams(waits: &WaitsRow, of: fn(&StreamsRow) -> u64) -> FigureValue {
    let streams = waits.streams.filter(|streams| streams.frames > 0);
    streams.map_or(FigureValue::Absent, |streams| of(&streams).into())
}

/// A figure of what connections carry; absent if none of their streams counts it.
pub(super) fn carried(waits: &WaitsRow, of: fn(&CarriedRow) -> u64) -> FigureValue {
    waits.carried.map_or(FigureValue::Absent, |carried| of(&carried).into())
}

/// A figure of messages that came; absent if nobody reads them in a stream that counts them.
pub(super) fn messages(waits: &WaitsRow, of: fn(&MessagesRow) -> u64) -> FigureValue {
    waits.messages.map_or(FigureValue::Absent, |messages| of(&messages).into())
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
    /// The time in polls, on a CPU or not. Work without times, such as tasks that are switched to,
    /// is on a CPU, too, and waits unseen.
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
