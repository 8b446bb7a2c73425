//! `stat`: groups, threads, and what the service counts for them.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::waits::WaitsRow;
use crate::verb::{Each, Memory, Verb};

/// Takes a snapshot of groups and threads; [`Stat`] answers. The first one starts counting CPU time
/// for a client that has not sent `count`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatRequest {}

impl Verb for StatRequest {
    const NAME: &'static str = "stat";
    const LACKS: &'static str = "reads no groups";
    const MEMORY: Memory = Memory::each(&[Each::Key, Each::Group, Each::Thread, Each::GroupTimes]);
    type Answer = Stat;
}

/// Answer to `stat`. CPU times are totals since the start, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stat {
    /// `CLOCK_MONOTONIC` of the snapshot, in nanoseconds.
    pub mono_ns: u64,
    /// How long the snapshot took, in nanoseconds: groups are older than threads and the process by
    /// up to this time.
    #[serde(default)]
    pub took_ns: u64,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
    /// CPU time that no group was charged for, including what groups used while nobody counted it.
    pub unattributed_cpu_ns: u64,
    /// Why the CPU time of groups is refused; it is 0 in all of them then, and all CPU time is in
    /// no group. Absent where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_refused: Option<Cow<'static, str>>,
    /// All groups, in order of creation.
    pub groups: Vec<GroupRow>,
    /// All threads.
    pub threads: Vec<ThreadStat>,
    /// For how long all threads were runnable and waited for a CPU, also those that have ended, as
    /// far as a reading has seen them. Absent where the kernel does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
    /// CPU time since it is counted for this client; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<CountedCpu>,
    /// The polls of tasks that runtimes have told of, while anything was counted; absent where none
    /// has: it takes a runtime with hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls: Option<TaskPolls>,
    /// How many keys are on.
    pub keys_on: usize,
    /// Whether a client experiments with keys: it switches them on and off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub experiment: bool,
    /// Records lost in rings since the start.
    pub dropped: u64,
    /// The clock that charges groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

/// CPU time since a moment: the share of it that is in groups is the coverage of their figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountedCpu {
    /// Of the process.
    pub process_ns: u64,
    /// Of its groups.
    pub groups_ns: u64,
}

/// Polls of tasks: the share of them that is in groups is their coverage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskPolls {
    /// All that runtimes have told of.
    pub all: u64,
    /// Those in which a group was entered.
    pub in_groups: u64,
}

/// The clock that charges groups. (CPU time of the process and of threads is the kernel's own.)
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clock {
    /// The tier that threads begin with, as `rseq`.
    pub tier: String,
    /// The distance between a running thread's clock and the kernel's is at most this, in
    /// nanoseconds. It bounds a group's CPU time for each thread that has run the group.
    pub error_bound_ns: u64,
}

/// One group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupRow {
    /// Number in records.
    pub id: u32,
    /// Its name.
    pub name: Cow<'static, str>,
    /// CPU time while it was counted, exclusive of groups nested in it.
    pub cpu_ns: u64,
    /// Polls of its futures and entries of its scopes, while anything was counted.
    pub entries: u64,
    /// Tasks that are.
    pub alive: u64,
    /// Tasks that began.
    pub started: u64,
    /// Tasks that ended, were dropped or panicked.
    pub finished: u64,
    /// Tasks that ended and were no part of another one of the group: requests, where the group is
    /// a route.
    #[serde(default)]
    pub requests: u64,
    /// Polls of its futures, without entries of its scopes, while anything was counted.
    #[serde(default)]
    pub polls: u64,
    /// Counts of the events that this client asked for, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<CountRow>,
    /// Where its tasks spend their time, for a client that has sent `waits`. Absent for a group
    /// whose number is past those that have times of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<WaitsRow>>,
}

/// How often an event happened, as long as somebody had it counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountRow {
    /// The event's name.
    pub event: Cow<'static, str>,
    /// How often, in the event's unit; scaled up where the counter had to share its unit.
    pub value: u64,
    /// How long somebody wanted it counted, in nanoseconds.
    pub enabled_ns: u64,
    /// How long of that it was counted: if this is less, `value` is an estimate.
    pub running_ns: u64,
}

impl GroupRow {
    /// The figures since `before`, an earlier row of the group. No figure is negative: a total that
    /// went back, as one of an event that is scaled up may, has not grown.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let count = |count: &CountRow| match before.counts.iter().find(|it| it.event == count.event) {
            Some(before) => count.since(before),
            None => count.clone(),
        };
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            entries: self.entries.saturating_sub(before.entries),
            started: self.started.saturating_sub(before.started),
            finished: self.finished.saturating_sub(before.finished),
            requests: self.requests.saturating_sub(before.requests),
            polls: self.polls.saturating_sub(before.polls),
            counts: self.counts.iter().map(count).collect(),
            // Times that were not taken before have no difference.
            waits: self.waits.as_ref().zip(before.waits.as_ref()).map(|(now, it)| Box::new(now.since(it))),
            ..self.clone()
        }
    }
}

impl CountRow {
    fn since(&self, before: &Self) -> Self {
        Self {
            event: self.event.clone(),
            value: self.value.saturating_sub(before.value),
            enabled_ns: self.enabled_ns.saturating_sub(before.enabled_ns),
            running_ns: self.running_ns.saturating_sub(before.running_ns),
        }
    }
}

impl TaskPolls {
    /// The polls since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let all = self.all.saturating_sub(before.all);
        // A poll that ends amid a reading may be in `all` of one reading and inside of the next.
        Self { all, in_groups: self.in_groups.saturating_sub(before.in_groups).min(all) }
    }
}

/// One thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadStat {
    /// Thread id, in the service's own namespace.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// CPU time.
    pub cpu_ns: u64,
    /// For how long it was runnable and waited for a CPU, in nanoseconds, without a wait that goes
    /// on. Absent where the kernel does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
}
