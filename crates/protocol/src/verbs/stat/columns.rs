//! The short form of an answer to `stat`: a column for each figure of groups.
//!
//! Names of fields stand in it once, and not once for each group, so it takes a third of the bytes
//! and of the time to read. Later versions can add columns.
//!
//! The buckets of a histogram are in one list, group by group: the counts from bucket
//! `first_bucket` on, where a number `-n` stands for `n` empty buckets and 0 ends the group.

use std::borrow::Cow;

use dormouse_statistics::buckets::{EXPORTED_SCALE, SCALE};
use serde::{Deserialize, Deserializer, Serialize};

use super::Outliving;
use super::outcomes::KnownOutcomes;
use crate::id::{WireId, known};
use crate::verbs::waits::StallsRow;

/// The part of an answer to `stat` that a client wants, the smallest first. Each has what the one
/// before has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StatPart {
    /// The figures of groups that metrics show, and the histograms of requests, of bodies and of
    /// gaps of streams, in the buckets of metrics.
    Requests,
    /// With exemplars of requests.
    Exemplars,
    /// With the histograms of polls, delays and awaits.
    Histograms,
    /// All figures of groups, and buckets as fine as they are counted.
    Groups,
    /// With a recent task of each bucket of requests, and rows of threads.
    Whole,
}

impl StatPart {
    /// The scale of the histograms.
    pub(super) const fn scale(self) -> i32 {
        if matches!(self, Self::Groups | Self::Whole) { SCALE } else { EXPORTED_SCALE }
    }
}

/// The groups of a service, by columns. A column that is empty for all groups is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct GroupColumns {
    /// The numbers of the groups, in order of creation.
    pub id: Vec<u32>,
    /// The names of the groups.
    pub name: Vec<Cow<'static, str>>,
    /// The `cpu_ns` of each group.
    pub cpu_ns: Vec<u64>,
    /// The `entries` of each group.
    pub entries: Vec<u64>,
    /// The `alive` of each group.
    pub alive: Vec<u64>,
    /// The `started` of each group.
    pub started: Vec<u64>,
    /// The `finished` of each group.
    pub finished: Vec<u64>,
    /// The `requests` of each group.
    pub requests: Vec<u64>,
    /// The `outcomes` of each group: `completed`, `client_error`, `error`, `cancelled`, `panicked`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Option<KnownOutcomes>>,
    /// The `own` outcomes of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub own_outcomes: Vec<Vec<(Cow<'static, str>, u64)>>,
    /// The `objectives` of each group: `target_ppm`, `limit_ns`, `met`, `missed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<Vec<(u32, u64, u64, u64)>>,
    /// The `blocking` of each group: `begun`, `queued_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocking: Vec<Option<(u64, u64)>>,
    /// The `polls` of each group.
    pub polls: Vec<u64>,
    /// The `counts` of groups, event by event.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<CountColumns>,
    /// The `outliving` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outliving: Vec<Option<Outliving>>,
    /// The `long_lived` of each group: `tasks`, `age_ns`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub long_lived: Vec<Option<(u64, Option<u64>)>>,
    /// The times of groups; absent if no group has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<WaitsColumns>>,
}

/// The counts of one event, by columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CountColumns {
    /// The event's name.
    pub event: Cow<'static, str>,
    /// The `value` of each group; null for a group without a count of the event.
    pub value: Vec<Option<u64>>,
    /// The `enabled_ns` of each group.
    pub enabled_ns: Vec<u64>,
    /// The `running_ns` of each group.
    pub running_ns: Vec<u64>,
}

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

/// One histogram of each group, by columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HistogramColumns {
    /// The `zero_count` of each group.
    pub zero_count: Vec<u64>,
    /// The `sum_ns` of each group.
    pub sum_ns: Vec<u64>,
    /// The `max_ns` of each group.
    pub max_ns: Vec<u64>,
    /// The `max_task` of each group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub max_task: Vec<Option<u64>>,
    /// The counts of buckets, group by group: `-n` stands for `n` empty buckets, and 0 ends a
    /// group.
    pub buckets: Vec<i64>,
    /// A recent task of each bucket that is not empty, group by group; 0 if none is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<u64>,
}

/// Exemplars of requests, by columns, group by group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ExemplarColumns {
    /// How many exemplars each group has.
    pub of_group: Vec<u32>,
    /// The `task` of each exemplar.
    pub task: Vec<u64>,
    /// The `duration_ns` of each exemplar, which determines its bucket.
    pub duration_ns: Vec<u64>,
    /// The `unix_ns` of each exemplar.
    pub unix_ns: Vec<u64>,
    /// The words for outcomes that follow.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Cow<'static, str>>,
    /// The `outcome` of each exemplar: its place in `outcomes`, from 1 on; 0 if it is absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outcome: Vec<u8>,
    /// The `trace_id` of each exemplar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trace_id: Vec<KnownId<16>>,
    /// The `span_id` of each exemplar.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub span_id: Vec<KnownId<8>>,
}

/// An id, or null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct KnownId<const N: usize>(pub(super) Option<WireId<N>>);

impl<'de, const N: usize> Deserialize<'de> for KnownId<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        known(from).map(Self)
    }
}
