//! `waits`: where the tasks of a group spend their time.

use std::borrow::Cow;

use dormouse_statistics::buckets::{BUCKETS, Histogram, OFFSET, SCALE, UNIT_NS, ZERO_THRESHOLD_NS};
use serde::{Deserialize, Serialize};

pub use super::stalls::StallsRow;
pub use super::traffic::{CarriedRow, MessagesRow, StreamsRow};
use crate::id::{WireId, known};
use crate::verb::{Memory, SHORT_ANSWER, Verb};

/// Takes times of tasks as long as the connection lasts. It replaces an earlier request of the
/// connection; the answer is [`WaitsBegun`], and [`Stat`](crate::Stat) contains the times from now
/// on. Refused if the static key for this cannot be switched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[expect(clippy::struct_excessive_bools, reason = "each has its name on the wire")]
pub struct WaitsRequest {
    /// Whether to record the places where tasks wait, too: a walk over the stack for each waker
    /// that a leaf takes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub places: bool,
    /// Whether to measure the CPU time of each task, too: two reads of the thread's clock for each
    /// poll.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cpu: bool,
    /// Whether to include exemplars of requests in answers to `stat`, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exemplars: bool,
    /// Whether to include outgoing calls in answers to `stat`, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub calls: bool,
    /// Whether to account stalled time to its causes, too: another thread reads the kernel's
    /// account of each thread in a poll, some fifty times a second.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stalls: bool,
}

impl Verb for WaitsRequest {
    const NAME: &'static str = "waits";
    const LACKS: &'static str = "takes no times of tasks";
    const MEMORY: Memory = Memory::SOME;
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    type Answer = WaitsBegun;
}

/// Answer to `waits`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitsBegun {
    /// Whether places are recorded; false if the service does not support it.
    #[serde(default)]
    pub places: bool,
    /// Whether the CPU time of each task is measured; false if the service does not support it.
    #[serde(default)]
    pub cpu: bool,
    /// Whether stalled time is accounted to its causes; false if the service does not support it.
    #[serde(default)]
    pub stalls: bool,
}

/// The times of one group, in nanoseconds, since they were first taken for any client. No number
/// decreases from one answer of a connection to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WaitsRow {
    /// CPU time of the group while it was counted, as in the group's row; absent if it is not
    /// counted for this client. Between two answers, `poll_ns` minus this is the time that the
    /// group's tasks were stalled in the middle of a poll: preempted, or blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_cpu_ns: Option<u64>,
    /// Time in polls, on a CPU or not, without the polls of other tasks inside of them.
    pub poll_ns: u64,
    /// Time from wakes to the polls that followed.
    pub runnable_ns: u64,
    /// Time from the ends of polls to the wakes that followed.
    pub await_ns: u64,
    /// The time that requests waited before their tasks began; absent from agents that do not
    /// measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueRow>,
    /// The lengths of polls.
    pub polls: HistogramRow,
    /// The times from a wake to its poll.
    pub delays: HistogramRow,
    /// The times from the end of a poll to a wake.
    pub awaits: HistogramRow,
    /// The latencies of requests that were answered, up to the head of the response. From agents
    /// without `streams`, up to the end of the body; without `unanswered`, those of all requests.
    pub requests: HistogramRow,
    /// The times from the head of a response to the last frame of its body, for bodies that were
    /// not dropped before their end.
    #[serde(default)]
    pub bodies: HistogramRow,
    /// The times from one frame of a stream to the next.
    #[serde(default)]
    pub gaps: HistogramRow,
    /// The times from one message that a WebSocket has received to the next.
    #[serde(default, skip_serializing_if = "HistogramRow::is_empty")]
    pub received_gaps: HistogramRow,
    /// The frames of streams, and long bodies; absent from agents that do not know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<StreamsRow>,
    /// The bytes of connections; absent if no stream of the service's has counted any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<CarriedRow>,
    /// The messages that came by WebSockets; absent if none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<MessagesRow>,
    /// The requests that ended without an answer; absent from agents that do not count them apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<UnansweredRow>,
    /// Stalled time by its causes; absent if it is not accounted, and for a group of which nothing
    /// is known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls: Option<Box<StallsRow>>,
}

/// The requests of one group that ended without an answer: they were cancelled, or they panicked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnansweredRow {
    /// The number of requests.
    pub requests: u64,
    /// The sum of their ages when they ended, in nanoseconds.
    pub age_ns: u64,
}

impl UnansweredRow {
    fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            age_ns: self.age_ns.saturating_sub(before.age_ns),
        }
    }
}

/// The time that the requests of one group waited before their tasks began. Requests of which no
/// arrival is known are not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueRow {
    /// The number of requests.
    pub requests: u64,
    /// The number of those of which it is known when the kernel had received them. The others have
    /// waited for longer than is known.
    pub received: u64,
    /// Time for which received requests lay in a socket that no worker had looked at, in
    /// nanoseconds.
    pub unseen_ns: u64,
    /// Time from the wake of the poll in which a request was read to the begin of its task, in
    /// nanoseconds.
    pub behind_ns: u64,
}

impl QueueRow {
    fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            received: self.received.saturating_sub(before.received),
            unseen_ns: self.unseen_ns.saturating_sub(before.unseen_ns),
            behind_ns: self.behind_ns.saturating_sub(before.behind_ns),
        }
    }
}

/// Durations in exponential buckets, named as in OpenTelemetry's data model: the bucket with index
/// `i` holds durations that are greater than `b^i` and at most `b^(i+1)` times `unit_ns`, where `b`
/// is 2^(2^-`scale`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HistogramRow {
    /// The exponent that determines the base `b`, see above.
    pub scale: i32,
    /// The unit of bounds, in nanoseconds: a second. If it is absent the unit is one nanosecond, as
    /// in agents before `sum_ns`.
    #[serde(default = "nanosecond")]
    pub unit_ns: u64,
    /// Durations up to this one are in the zero bucket, in nanoseconds.
    pub zero_threshold_ns: u64,
    /// The number of durations in the zero bucket.
    pub zero_count: u64,
    /// Index and count of each bucket that is not empty, in the order of indices. Renamed from
    /// `positive`, so that a command that ignores `unit_ns` cannot misread the bounds.
    #[serde(alias = "positive")]
    pub buckets: Vec<(i32, u64)>,
    /// The sum of all durations, in nanoseconds; absent from agents that do not compute it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum_ns: Option<u64>,
    /// The longest duration, in nanoseconds.
    pub max_ns: u64,
    /// The number of the task of the longest duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_task: Option<u64>,
    /// For requests: index and task of each bucket for which a recent task is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<(i32, u64)>,
    /// For requests, if the client has requested them: one exemplar for each power of two of the
    /// unit, chosen from the buckets within, in the order of indices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exemplars: Vec<ExemplarRow>,
}

/// A request that stands for its bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExemplarRow {
    /// The index of the bucket.
    pub index: i32,
    /// The task of the request.
    pub task: u64,
    /// The latency of the request, in nanoseconds.
    pub duration_ns: u64,
    /// When the request ended, in nanoseconds since 1970; always the same number for one request.
    pub unix_ns: u64,
    /// How the request ended, as in `outcomes` of its group; absent if its body is still being
    /// sent, and from agents that do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'static, str>>,
    /// The trace to which the request belongs, if that is known and sampled.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<WireId<16>>,
    /// The span of the request, or of its caller.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub span_id: Option<WireId<8>>,
}

impl From<&Histogram> for HistogramRow {
    fn from(of: &Histogram) -> Self {
        let mut row = Self::without_tasks(of);
        row.set_tasks(of);
        row
    }
}

impl HistogramRow {
    /// The row of a histogram, without the tasks of its buckets.
    pub fn without_tasks(of: &Histogram) -> Self {
        let mut row = Self::default();
        row.set(of);
        row
    }

    /// Makes it what [`HistogramRow::without_tasks`] returns, in the memory that it has.
    pub fn set(&mut self, of: &Histogram) {
        let wider = SCALE - of.scale.clamp(0, SCALE);
        (self.scale, self.unit_ns, self.zero_threshold_ns) = (SCALE - wider, UNIT_NS, ZERO_THRESHOLD_NS);
        self.zero_count = of.buckets[0];
        (self.sum_ns, self.max_ns) = (Some(of.sum_ns), of.max_ns);
        self.max_task = Some(of.max_task).filter(|&task| task != 0);
        self.buckets.clear();
        self.tasks.clear();
        self.exemplars.clear();
        let is_any = |counts: &[u64]| counts.iter().fold(0, |any, n| any | n) != 0;
        let (eights, _) = of.buckets[1..].as_chunks::<8>();
        // Most buckets hold none, and are passed in eights. A list takes the memory that it needs,
        // and no more: a scrape has some of each group.
        let mut filled = 0;
        for counts in eights.iter().filter(|counts| is_any(*counts)) {
            filled += counts.iter().filter(|n| **n != 0).count();
        }
        self.buckets.reserve_exact(filled);
        for (eight, counts) in eights.iter().enumerate().filter(|(_, counts)| filled > 0 && is_any(*counts)) {
            for (at, &n) in counts.iter().enumerate().filter(|(_, n)| **n != 0) {
                self.buckets.push((bucket_index(1 + 8 * eight + at) >> wider, n));
            }
        }
    }

    /// Adds the tasks of its buckets, after [`HistogramRow::set`] of the same histogram.
    pub fn set_tasks(&mut self, of: &Histogram) {
        let known = || {
            let tasks = self.buckets.iter().map(|&(at, _)| (at, of.tasks[self.place(at)]));
            tasks.filter(|(_, task)| *task != 0)
        };
        let mut tasks = Vec::with_capacity(known().count());
        tasks.extend(known());
        self.tasks = tasks;
    }
}

/// The index of the bucket at `place` in [`Histogram::buckets`].
pub fn bucket_index(place: usize) -> i32 {
    OFFSET + place as i32 - 1
}

/// A histogram of any peer: buckets that are finer become one, and those beyond the last are in the
/// last. Wider ones, and those of another unit, stand at their upper ends.
impl From<&HistogramRow> for Histogram {
    fn from(row: &HistogramRow) -> Self {
        let mut of = Histogram {
            sum_ns: row.sum_ns.unwrap_or(0),
            max_ns: row.max_ns,
            max_task: row.max_task.unwrap_or(0),
            // Nothing is known of the buckets of an empty one.
            scale: if row.buckets.is_empty() { SCALE } else { row.scale.clamp(0, SCALE) },
            ..Self::default()
        };
        of.buckets[0] = row.zero_count;
        for &(index, n) in &row.buckets {
            let bucket = &mut of.buckets[row.place(index)];
            *bucket = bucket.saturating_add(n);
        }
        for &(index, task) in &row.tasks {
            of.tasks[row.place(index)] = task;
        }
        of
    }
}

impl HistogramRow {
    /// Whether no duration was counted.
    pub fn is_empty(&self) -> bool {
        self.zero_count == 0 && self.buckets.is_empty()
    }

    /// The same durations in the buckets of `scale`, if these are wider than the row's.
    #[must_use]
    pub fn at_scale(mut self, scale: i32) -> Self {
        let wider = self.scale.saturating_sub(scale);
        if wider <= 0 {
            return self;
        }
        let index = |index: i32| index >> wider.min(31);
        self.scale = scale;
        for (at, _) in self.buckets.iter_mut().chain(&mut self.tasks) {
            *at = index(*at);
        }
        self.buckets.dedup_by(|(at, n), (before, sum)| {
            let is_same = at == before;
            if is_same {
                *sum = sum.saturating_add(*n);
            }
            is_same
        });
        self.tasks.dedup_by_key(|(at, _)| *at);
        for exemplar in &mut self.exemplars {
            exemplar.index = index(exemplar.index);
        }
        self
    }

    /// The place of a bucket with that index in [`Histogram::buckets`].
    fn place(&self, index: i32) -> usize {
        let index = i64::from(index);
        let index = match self.scale.saturating_sub(SCALE) {
            finer @ 0.. => index >> finer.min(63),
            coarser => ((index + 1) << coarser.unsigned_abs().min(30)) - 1,
        };
        let units = UNIT_NS as f64 / self.unit_ns.max(1) as f64;
        let index = index - (units.log2() * f64::from(1 << SCALE)).floor() as i64;
        (index - i64::from(OFFSET) + 1).clamp(0, BUCKETS as i64 - 1) as usize
    }
}

fn nanosecond() -> u64 {
    1
}

impl WaitsRow {
    /// The difference to `before`, an earlier answer of the same connection.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let times = |of: fn(&Self) -> &HistogramRow| {
            HistogramRow::from(&Histogram::from(of(self)).since(&Histogram::from(of(before))))
        };
        let on_cpu = self.on_cpu_ns.zip(before.on_cpu_ns);
        let mut since = Self {
            on_cpu_ns: on_cpu.map(|(now, before)| now.saturating_sub(before)),
            poll_ns: self.poll_ns.saturating_sub(before.poll_ns),
            runnable_ns: self.runnable_ns.saturating_sub(before.runnable_ns),
            await_ns: self.await_ns.saturating_sub(before.await_ns),
            queue: self.queue.map(|queue| queue.since(&before.queue.unwrap_or_default())),
            polls: times(|row| &row.polls),
            delays: times(|row| &row.delays),
            awaits: times(|row| &row.awaits),
            requests: times(|row| &row.requests),
            bodies: times(|row| &row.bodies),
            gaps: times(|row| &row.gaps),
            received_gaps: times(|row| &row.received_gaps),
            streams: self.streams.map(|of| of.since(&before.streams.unwrap_or_default())),
            carried: self.carried.map(|of| of.since(&before.carried.unwrap_or_default())),
            messages: self.messages.map(|of| of.since(&before.messages.unwrap_or_default())),
            unanswered: self.unanswered.map(|of| of.since(&before.unanswered.unwrap_or_default())),
            stalls: self.stalls.as_ref().map(|of| {
                Box::new(before.stalls.as_ref().map_or_else(|| (**of).clone(), |before| of.since(before)))
            }),
        };
        let is_new = |of: &&ExemplarRow| !before.requests.exemplars.contains(of);
        since.requests.exemplars = self.requests.exemplars.iter().filter(is_new).cloned().collect();
        since
    }
}

#[cfg(test)]
mod tests {
    use dormouse_statistics::buckets::place;

    use super::*;

    #[test]
    fn a_row_says_all_of_a_histogram() {
        let mut of = Histogram { max_ns: 7_000, max_task: 12, ..Histogram::default() };
        for (at, bucket) in of.buckets.iter_mut().enumerate() {
            *bucket = at as u64 % 3;
        }
        of.tasks[10] = 77;
        let row = HistogramRow::from(&of);
        assert!(row.buckets.iter().all(|(_, n)| *n > 0));
        assert_eq!(Histogram::from(&row), of);
    }

    #[test]
    fn other_scales_keep_all_counts() {
        let at = |unit_ns, scale, index| {
            let row = HistogramRow { scale, unit_ns, buckets: vec![(index, 1)], ..HistogramRow::default() };
            let of = Histogram::from(&row);
            assert_eq!(of.count(), 1, "{unit_ns} {scale} {index}");
            of.buckets.iter().position(|&n| n == 1).unwrap()
        };
        // The end of 0.5..1 seconds in one part, in four, in sixteen, and in 32.
        let second = 1_000_000_000;
        let bounds = [at(second, 0, -1), at(second, 2, -1), at(second, 4, -1), at(second, 5, -2)];
        assert_eq!(bounds, [384; 4]);
        // An older agent's: up to 128 ns, and up to 181 ns.
        assert_eq!([at(1, 2, 27), at(1, 2, 29)], [128.0, 181.02].map(|ns| place(ns as u64)));
        for scale in [i32::MIN, -40, 0, 20, i32::MAX] {
            for index in [i32::MIN, -1, 0, 1, i32::MAX] {
                for unit_ns in [0, 1, second, u64::MAX] {
                    at(unit_ns, scale, index);
                }
            }
        }
    }

    #[test]
    fn wider_buckets_are_read_as_they_were_counted() {
        // Up to 0.84 and up to 1 second, as agents before this scale count.
        let row = HistogramRow {
            scale: 2,
            unit_ns: UNIT_NS,
            buckets: vec![(-2, 50), (-1, 50)],
            max_ns: UNIT_NS,
            ..HistogramRow::default()
        };
        let of = Histogram::from(&row);
        assert_eq!(
            HistogramRow::from(&of),
            HistogramRow { sum_ns: Some(0), zero_threshold_ns: ZERO_THRESHOLD_NS, ..row }
        );
        let (half, most) = (of.quantile_ns(0.25).unwrap(), of.quantile_ns(0.75).unwrap());
        assert!((770_000_000..778_000_000).contains(&half), "in the middle of 707 to 841 ms: {half}");
        assert!((917_000_000..924_000_000).contains(&most), "in the middle of 841 ms to 1 s: {most}");
    }

    #[test]
    fn merged_buckets_keep_their_counts() {
        let exemplar = ExemplarRow { index: -5, ..ExemplarRow::default() };
        let row = HistogramRow {
            scale: 4,
            buckets: vec![(-9, 1), (-8, 2), (-5, 4), (-4, u64::MAX), (-1, 1), (0, 16)],
            tasks: vec![(-8, 3), (-5, 5)],
            exemplars: vec![exemplar],
            ..HistogramRow::default()
        };
        let merged = row.clone().at_scale(2);
        assert_eq!(merged.buckets, [(-3, 1), (-2, 6), (-1, u64::MAX), (0, 16)]);
        assert_eq!((merged.scale, merged.tasks[0].0, merged.exemplars[0].index), (2, -2, -2));
        assert_eq!(merged.clone().at_scale(4), merged, "no bucket is parted");
        let _any = HistogramRow { scale: i32::MAX, ..row }.at_scale(i32::MIN);
    }

    #[test]
    fn any_counts_may_be_subtracted() {
        let wild = HistogramRow {
            scale: SCALE,
            unit_ns: UNIT_NS,
            zero_count: u64::MAX,
            buckets: vec![(30, u64::MAX); 9],
            ..HistogramRow::default()
        };
        let row = WaitsRow { poll_ns: u64::MAX, requests: wild, ..WaitsRow::default() };
        let back = WaitsRow::default().since(&row);
        assert_eq!((back.poll_ns, &back.requests.buckets[..]), (0, &[][..]));
        assert_eq!(row.since(&WaitsRow::default()).requests.buckets, [(30, u64::MAX)]);
    }
}
