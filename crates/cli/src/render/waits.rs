//! Where the tasks of a group spend their time, as figures.

use dormouse::waits::Histogram;
use dormouse_protocol::{ExemplarRow, HistogramRow, WaitsRow, WireId};
use serde::Serialize;

/// The figures of some time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct WaitFigures {
    /// Null, as the next one, if CPU time is not counted: then they are `poll_ns` together.
    on_cpu_ns: Option<u64>,
    /// In a poll, and not on a CPU: preempted, or blocked.
    stalled_ns: Option<u64>,
    /// Woken, and not polled yet.
    runnable_ns: u64,
    await_ns: u64,
    poll_ns: u64,
    /// The share of the sum of the four times; null if that is 0.
    on_cpu_percent: Option<f64>,
    stalled_percent: Option<f64>,
    runnable_percent: Option<f64>,
    await_percent: Option<f64>,
    /// Latencies of requests, from begin to end.
    latency: Durations,
    /// Lengths of polls.
    poll: Durations,
    /// From a wake to its poll.
    delay: Durations,
    /// From the end of a poll to a wake.
    #[serde(rename = "await")]
    awaits: Durations,
}

/// Durations of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Durations {
    count: u64,
    /// Null where there are none, as the next three.
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
    /// The task that the longest was of, where that is known.
    max_task: Option<u64>,
    /// The trace of the longest, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_trace_id: Option<WireId<16>>,
    /// For requests, a recent one of each bucket.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exemplars: Vec<ExemplarRow>,
    /// The buckets, as OpenTelemetry's data model has them.
    scale: i32,
    /// The unit of their bounds.
    unit_ns: u64,
    zero_threshold_ns: u64,
    zero_count: u64,
    positive: Vec<(i32, u64)>,
    /// Null if the agent does not report it.
    sum_ns: Option<u64>,
}

impl WaitFigures {
    pub(crate) fn of(row: &WaitsRow) -> WaitFigures {
        // Work without polls, as C enters it, is on a CPU, too, and waits unseen.
        let polls_ns = row.poll_ns.max(row.on_cpu_ns.unwrap_or(0));
        let stalled_ns = row.on_cpu_ns.map(|on_cpu| polls_ns - on_cpu);
        let all = polls_ns.saturating_add(row.runnable_ns).saturating_add(row.await_ns);
        let percent = |ns: u64| (all > 0).then(|| ns as f64 / all as f64 * 100.0);
        WaitFigures {
            on_cpu_ns: row.on_cpu_ns,
            stalled_ns,
            runnable_ns: row.runnable_ns,
            await_ns: row.await_ns,
            poll_ns: row.poll_ns,
            on_cpu_percent: row.on_cpu_ns.and_then(percent),
            stalled_percent: stalled_ns.and_then(percent),
            runnable_percent: percent(row.runnable_ns),
            await_percent: percent(row.await_ns),
            latency: Durations::of(&row.requests),
            poll: Durations::of(&row.polls),
            delay: Durations::of(&row.delays),
            awaits: Durations::of(&row.awaits),
        }
    }
}

impl Durations {
    fn of(row: &HistogramRow) -> Durations {
        let whole = Histogram::from(row);
        let count = whole.count();
        let [p50_ns, p90_ns, p99_ns] = [0.5, 0.9, 0.99].map(|share| whole.quantile_ns(share));
        Durations {
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
}

/// The trace of the longest request.
pub(crate) fn slowest_trace(row: &HistogramRow) -> Option<WireId<16>> {
    let is_its = |it: &&ExemplarRow| Some(it.task) == row.max_task;
    row.exemplars.iter().rev().find(is_its).and_then(|it| it.trace_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_times_share_the_whole() {
        let row = WaitsRow {
            on_cpu_ns: Some(10),
            poll_ns: 30,
            runnable_ns: 20,
            await_ns: 50,
            ..WaitsRow::default()
        };
        let of = WaitFigures::of(&row);
        assert_eq!((of.on_cpu_ns, of.stalled_ns), (Some(10), Some(20)));
        let shares = [of.on_cpu_percent, of.stalled_percent, of.runnable_percent, of.await_percent];
        assert_eq!(shares, [10.0, 20.0, 20.0, 50.0].map(Some));
        // Clocks that differ a little, and work without polls.
        let of = WaitFigures::of(&WaitsRow { on_cpu_ns: Some(33), ..row.clone() });
        assert_eq!((of.stalled_ns, of.on_cpu_percent.map(f64::round)), (Some(0), Some(32.0)));
        let of = WaitFigures::of(&WaitsRow { on_cpu_ns: None, ..row });
        assert_eq!((of.stalled_ns, of.on_cpu_percent, of.runnable_percent), (None, None, Some(20.0)));
        assert_eq!(WaitFigures::of(&WaitsRow::default()).await_percent, None, "a share of nothing");
    }

    #[test]
    fn no_durations_have_no_longest() {
        let none = Durations::of(&HistogramRow { max_ns: 7, ..HistogramRow::default() });
        assert_eq!((none.count, none.p50_ns, none.max_ns), (0, None, None));
    }
}
