//! Times of groups.

use std::sync::LazyLock;

use dormouse_statistics::buckets::{SCALE, UNIT_NS, ZERO_THRESHOLD_NS};
use serde::{Deserialize, Serialize};

use super::StatPart;
use super::column::{Column, leave_out};
use super::exemplars::{ExemplarColumns, ExemplarLists};
use super::histograms::{HistogramColumns, HistogramRows};
use crate::verbs::waits::{
    CarriedRow, HistogramRow, MessagesRow, QueueRow, StallsRow, StreamsRow, UnansweredRow, WaitsRow,
    bucket_index,
};

/// The times of groups, by columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WaitsColumns {
    /// The `on_cpu_ns` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub on_cpu_ns: Vec<Option<u64>>,
    /// The `poll_ns` of each group; null for a group without times.
    pub poll_ns: Vec<Option<u64>>,
    /// The `runnable_ns` of each group.
    pub runnable_ns: Vec<u64>,
    /// The `await_ns` of each group.
    pub await_ns: Vec<u64>,
    /// The `queue` of each group: `requests`, `received`, `unseen_ns`, `behind_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub queue: Vec<Option<(u64, u64, u64, u64)>>,
    /// The `unanswered` of each group: `requests`, `age_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Option<(u64, u64)>>,
    /// The `streams` of each group: `frames`, `bytes`, `sending`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<Option<(u64, u64, u64)>>,
    /// The `carried` of each group: `read`, `written`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub carried: Vec<Option<(u64, u64)>>,
    /// The `messages` of each group: `messages`, `bytes`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Option<(u64, u64)>>,
    /// The `stalls` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stalls: Vec<Option<Box<StallsRow>>>,
    /// The `scale` of all histograms.
    pub scale: i32,
    /// The `unit_ns` of all histograms.
    pub unit_ns: u64,
    /// The `zero_threshold_ns` of all histograms.
    pub zero_threshold_ns: u64,
    /// The index of the first bucket of all histograms.
    pub first_bucket: i32,
    /// The latencies of requests that were answered.
    pub requests: HistogramColumns,
    /// The times from the head of a response to the last frame of its body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bodies: Option<HistogramColumns>,
    /// The times from one frame of a stream to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<HistogramColumns>,
    /// The times from one message that a WebSocket has received to the next; absent if no group has
    /// any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received_gaps: Option<HistogramColumns>,
    /// The lengths of polls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polls: Option<HistogramColumns>,
    /// The times from a wake to its poll.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delays: Option<HistogramColumns>,
    /// The times from the end of a poll to a wake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits: Option<HistogramColumns>,
    /// Exemplars of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exemplars: Option<ExemplarColumns>,
}

impl WaitsColumns {
    /// Columns for that part of an answer, without groups yet.
    pub fn of_part(part: StatPart) -> Self {
        let histogram = || (part >= StatPart::Histograms).then(HistogramColumns::default);
        Self {
            scale: part.scale(),
            unit_ns: UNIT_NS,
            zero_threshold_ns: ZERO_THRESHOLD_NS,
            first_bucket: bucket_index(1) >> (SCALE - part.scale()),
            bodies: Some(HistogramColumns::default()),
            gaps: Some(HistogramColumns::default()),
            received_gaps: Some(HistogramColumns::default()),
            polls: histogram(),
            delays: histogram(),
            awaits: histogram(),
            exemplars: (part >= StatPart::Exemplars).then(ExemplarColumns::default),
            ..Self::default()
        }
    }

    /// Adds the times of a group, if it has any. Call it for each group, in their order, and
    /// [`WaitsColumns::leave_out`] after the last.
    pub fn push(&mut self, row: Option<&WaitsRow>, part: StatPart) {
        static NONE: LazyLock<WaitsRow> = LazyLock::new(WaitsRow::default);
        let is_there = row.is_some();
        let row = row.unwrap_or(&NONE);
        let queue = |of: QueueRow| (of.requests, of.received, of.unseen_ns, of.behind_ns);
        self.on_cpu_ns.push(row.on_cpu_ns);
        self.poll_ns.push(is_there.then_some(row.poll_ns));
        self.runnable_ns.push(row.runnable_ns);
        self.await_ns.push(row.await_ns);
        self.queue.push(row.queue.map(queue));
        self.unanswered.push(row.unanswered.map(|of| (of.requests, of.age_ns)));
        self.stalls.push(row.stalls.clone());
        self.streams.push(row.streams.map(|of| (of.frames, of.bytes, of.sending)));
        self.carried.push(row.carried.map(|of| (of.read, of.written)));
        self.messages.push(row.messages.map(|of| (of.messages, of.bytes)));
        if let Some(exemplars) = &mut self.exemplars {
            exemplars.push(&row.requests.exemplars);
        }
        let (scale, first) = (self.scale, self.first_bucket);
        self.requests.push(&row.requests, first, scale, part >= StatPart::Whole);
        let others = [
            (&mut self.bodies, &row.bodies),
            (&mut self.gaps, &row.gaps),
            (&mut self.received_gaps, &row.received_gaps),
            (&mut self.polls, &row.polls),
            (&mut self.delays, &row.delays),
            (&mut self.awaits, &row.awaits),
        ];
        for (columns, row) in others {
            if let Some(columns) = columns {
                columns.push(row, first, scale, false);
            }
        }
    }

    /// Empties the columns that hold nothing.
    pub fn leave_out(&mut self) {
        leave_out(&mut self.on_cpu_ns);
        leave_out(&mut self.queue);
        leave_out(&mut self.unanswered);
        leave_out(&mut self.streams);
        leave_out(&mut self.carried);
        leave_out(&mut self.messages);
        leave_out(&mut self.stalls);
        let Self { requests, bodies, gaps, received_gaps, polls, delays, awaits, .. } = self;
        let others = [bodies, gaps, &mut *received_gaps, polls, delays, awaits];
        for columns in others.into_iter().flatten().chain([requests]) {
            columns.leave_out();
        }
        // Few services have sockets.
        received_gaps.take_if(|of| *of == HistogramColumns::default());
        if let Some(exemplars) = &mut self.exemplars {
            exemplars.leave_out();
        }
    }

    /// The times of the groups, one by one; `None` for a group without times.
    pub(super) fn rows(self) -> impl Iterator<Item = Option<Box<WaitsRow>>> {
        let empty = HistogramRow {
            scale: self.scale,
            unit_ns: self.unit_ns,
            zero_threshold_ns: self.zero_threshold_ns,
            sum_ns: Some(0),
            ..HistogramRow::default()
        };
        let (first, scale) = (self.first_bucket, self.scale);
        let mut requests = self.requests.rows(empty.clone(), first);
        let [mut polls, mut delays, mut awaits, mut bodies, mut gaps, mut received_gaps] =
            [self.polls, self.delays, self.awaits, self.bodies, self.gaps, self.received_gaps]
                .map(|columns| columns.map(|columns| columns.rows(empty.clone(), first)));
        let mut exemplars = self.exemplars.map(|exemplars| exemplars.lists(scale));
        let (mut on_cpu_ns, mut runnable_ns) = (Column::of(self.on_cpu_ns), Column::of(self.runnable_ns));
        let (mut await_ns, mut queue) = (Column::of(self.await_ns), Column::of(self.queue));
        let (mut unanswered, mut streams) = (Column::of(self.unanswered), Column::of(self.streams));
        let (mut carried, mut messages) = (Column::of(self.carried), Column::of(self.messages));
        let mut stalls = Column::of(self.stalls);
        self.poll_ns.into_iter().map(move |poll_ns| {
            let next =
                |of: &mut Option<_>| of.as_mut().map_or_else(HistogramRow::default, HistogramRows::next);
            let requests = requests.next();
            let exemplars = exemplars.as_mut().map_or_else(Vec::new, ExemplarLists::next);
            let row = |(requests, received, unseen_ns, behind_ns)| QueueRow {
                requests,
                received,
                unseen_ns,
                behind_ns,
            };
            let row = Box::new(WaitsRow {
                on_cpu_ns: on_cpu_ns.next(),
                poll_ns: poll_ns.unwrap_or_default(),
                runnable_ns: runnable_ns.next(),
                await_ns: await_ns.next(),
                queue: queue.next().map(row),
                unanswered: unanswered.next().map(|(requests, age_ns)| UnansweredRow { requests, age_ns }),
                polls: next(&mut polls),
                delays: next(&mut delays),
                awaits: next(&mut awaits),
                bodies: next(&mut bodies),
                gaps: next(&mut gaps),
                received_gaps: next(&mut received_gaps),
                streams: streams.next().map(|(frames, bytes, sending)| StreamsRow { frames, bytes, sending }),
                carried: carried.next().map(|(read, written)| CarriedRow { read, written }),
                messages: messages.next().map(|(messages, bytes)| MessagesRow { messages, bytes }),
                stalls: stalls.next(),
                requests: HistogramRow { exemplars, ..requests },
            });
            poll_ns.map(|_| row)
        })
    }
}
