//! `stat`: groups, threads, and what the service counts for them.

mod calls;
mod columns;
mod cpu_limits;
mod fit;
mod kept;
mod locks;
mod outcomes;
mod own;
mod pressure;
mod runtime;

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::objectives::ObjectiveRow;
use super::waits::WaitsRow;
use crate::bounded::at_most;
use crate::verb::{Each, Memory, Verb};

pub use calls::CallRow;
pub use columns::{
    CountColumns, ExemplarColumns, GroupColumns, HistogramColumns, KnownId, StatPart, WaitsColumns,
};
pub use cpu_limits::{CpuLimitRow, CpuLimits};
pub use fit::LeftOut;
pub use locks::LockStatRow;
pub use outcomes::OutcomesRow;
pub use own::OwnCost;
pub use pressure::{Pressure, PressureRow};
pub use runtime::{BlockingRow, RuntimeRow};

/// Takes a snapshot of groups and threads; the answer is [`Stat`]. The first one starts counting
/// CPU time for a client that has not sent `count`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StatRequest {
    /// Requests a short answer: this part, with groups in columns. Absent for rows of all. A
    /// service that does not support this sends rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<StatPart>,
    /// The `mono_ns` of an earlier answer, whose exemplars the client has kept: the answer leaves
    /// out those that are still the same ([`Stat::keep_exemplars`]). Absent for all exemplars. A
    /// service that does not support this sends all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exemplars_since_ns: Option<u64>,
    /// The longest short answer that the client reads, in bytes. A longer one is
    /// [shortened](Stat::fit), and [`Stat::left_out`] says by what. A service that does not support
    /// this sends all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_bytes: Option<u64>,
}

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
    /// How long the snapshot took, in nanoseconds: groups may be older than threads and the process
    /// by this time.
    #[serde(default)]
    pub took_ns: u64,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
    /// CPU time that was charged to no group, including what groups used while it was not counted.
    pub unattributed_cpu_ns: u64,
    /// Why CPU time of groups is refused: a clock is false, or counts of groups are asleep. The
    /// numbers are there, and mean nothing. Absent if it is not refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_refused: Option<Cow<'static, str>>,
    /// All groups, in order of creation.
    pub groups: Vec<GroupRow>,
    /// Outgoing calls, for a client that has sent `waits` with `calls`: each group's by peer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<CallRow>,
    /// Waits for locks by line and group, while locks are noted for anybody; those with the longest
    /// waits, if there are very many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<LockStatRow>,
    /// All threads.
    pub threads: Vec<ThreadStat>,
    /// For how long all threads together were runnable and waited for a CPU, in nanoseconds,
    /// including ended threads that a reading has seen. Absent if the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
    /// The CPU limits of the control groups that the service is in. Absent from services that do
    /// not read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limits: Option<CpuLimits>,
    /// For how long nothing on the host, or in the service's control group, could go on for want of
    /// a resource. Absent where the kernel shows neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pressure: Option<Pressure>,
    /// CPU time since counting began for this client; absent if nothing is counted for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<CountedCpu>,
    /// The polls of tasks that runtimes have announced, while anything was counted. Absent if no
    /// runtime has announced any, which takes a runtime with hooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls: Option<TaskPolls>,
    /// The runtimes that the service has shown.
    #[serde(
        default,
        deserialize_with = "at_most::<{ RuntimeRow::MOST }, _, _>",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub runtimes: Vec<RuntimeRow>,
    /// The number of keys that are on.
    pub keys_on: usize,
    /// Whether a client runs an experiment, which switches keys on and off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub experiment: bool,
    /// The number of records lost in rings since the start.
    pub dropped: u64,
    /// The cost of dormouse itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnCost>,
    /// The parts of dormouse that are asleep because of `DORMOUSE_MAX_CPU`, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited: Option<Cow<'static, str>>,
    /// How often counts of groups have been put to sleep. If two answers differ in it, what was
    /// used between them is not in groups as a whole. 0 from services that do not count it.
    #[serde(default)]
    pub counts_stopped: u64,
    /// The objectives that match no group, though they were set a while ago, as they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmatched: Vec<String>,
    /// The clock by which groups are charged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
    /// The groups of a short answer, in which `groups` is empty. Absent if the client has not asked
    /// for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Box<GroupColumns>>,
    /// The number of threads, if the answer has no rows of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_total: Option<u64>,
    /// The parts that are left out because the answer would be longer than the client reads. Absent
    /// if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// CPU time since counting began. The share of it that is in groups is the coverage of the groups'
/// figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountedCpu {
    /// CPU time of the process, in nanoseconds.
    pub process_ns: u64,
    /// CPU time of the process's groups, in nanoseconds.
    pub groups_ns: u64,
}

/// Polls of tasks. The share of them that is in groups is the coverage of the groups' figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TaskPolls {
    /// All polls that runtimes have announced.
    pub all: u64,
    /// Polls in which a group was entered.
    pub in_groups: u64,
}

/// The clock by which groups are charged. (CPU time of the process and of threads is the kernel's
/// own.)
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clock {
    /// The tier with which threads begin, such as `rseq`.
    pub tier: String,
    /// The largest distance between a running thread's clock and the kernel's, in nanoseconds. It
    /// bounds the error of a group's CPU time, once for each thread that has run the group.
    pub error_bound_ns: u64,
}

/// The figures of one group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupRow {
    /// The group's number in records.
    pub id: u32,
    /// The group's name.
    pub name: Cow<'static, str>,
    /// CPU time of the group's tasks while it was counted, without that of groups nested in them.
    pub cpu_ns: u64,
    /// Polls of the group's futures and entries of its scopes, while anything was counted.
    pub entries: u64,
    /// The number of tasks alive now.
    pub alive: u64,
    /// The number of tasks that have begun.
    pub started: u64,
    /// The number of tasks that ended, were dropped or panicked.
    pub finished: u64,
    /// The number of tasks that ended and were not part of another task of the group: requests, if
    /// the group is a route.
    #[serde(default)]
    pub requests: u64,
    /// How these requests ended; absent from agents that do not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<OutcomesRow>,
    /// Polls of the group's futures, without entries of its scopes, while anything was counted.
    #[serde(default)]
    pub polls: u64,
    /// Counts of the events that this client has requested, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<CountRow>,
    /// Where the group's tasks spend their time, for a client that has sent `waits`. Absent for a
    /// group whose number is past those that have times of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Box<WaitsRow>>,
    /// The requests by each objective by which somebody counts them; eight at most.
    #[serde(default, deserialize_with = "at_most::<8, _, _>", skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveRow>,
    /// Blocking work that waited for a thread; absent if none was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocking: Option<BlockingRow>,
    /// Parts of requests that are still there after their requests. Absent if there are none, or
    /// none that the totals of tasks prove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outliving: Option<Outliving>,
    /// The tasks that live for long; absent from agents that do not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_lived: Option<LongLivedRow>,
}

/// The tasks of a group that live for long and are no requests: connections, streams, upgraded
/// connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongLivedRow {
    /// How many are alive now.
    pub tasks: u64,
    /// Their mean age, in nanoseconds, within a second; absent if there are none, or if it is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ns: Option<u64>,
}

/// Tasks of a group that its requests have begun, and that go on after those: the group pays for
/// them, whoever they work for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Outliving {
    /// How many they are, at least.
    pub tasks: u64,
    /// For how long no request that began one of them has been there, at least, in nanoseconds.
    pub ns: u64,
}

/// How often an event happened while it was counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountRow {
    /// The event's name.
    pub event: Cow<'static, str>,
    /// The count in the event's unit; scaled up if the counter was shared.
    pub value: u64,
    /// How long the event was enabled, in nanoseconds.
    pub enabled_ns: u64,
    /// The part of `enabled_ns` in which the event was really counted, in nanoseconds. If this is
    /// less, `value` is an estimate.
    pub running_ns: u64,
}

impl Stat {
    /// The use of a service since `before`, an earlier answer of the same connection: `mono_ns` is
    /// the time between the two, and times and groups are of that time. `keys_on`, `dropped`,
    /// `clock` and the like are those of this answer. Rows of threads are left out: their numbers
    /// are given again, and an answer does not have the times when they began.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut since = Self {
            mono_ns: self.mono_ns.saturating_sub(before.mono_ns),
            took_ns: self.took_ns.max(before.took_ns),
            process_cpu_ns: self.process_cpu_ns.saturating_sub(before.process_cpu_ns),
            // The service reads the process's clock and its groups one after the other, so the
            // difference of both may shrink.
            unattributed_cpu_ns: self.unattributed_cpu_ns.saturating_sub(before.unattributed_cpu_ns),
            // An interval in which counts were asleep lacks some.
            cpu_refused: self.cpu_refused.clone().or_else(|| before.cpu_refused.clone()).or_else(|| {
                let has_slept = self.counts_stopped != before.counts_stopped;
                has_slept.then(|| "counts of groups were asleep in between".into())
            }),
            limited: self.limited.clone(),
            unmatched: self.unmatched.clone(),
            groups: GroupRow::all_since(&self.groups, &before.groups),
            calls: CallRow::all_since(&self.calls, &before.calls),
            locks: LockStatRow::all_since(&self.locks, &before.locks),
            threads: Vec::new(),
            runnable_ns: self.runnable_ns.zip(before.runnable_ns).map(|(now, it)| now.saturating_sub(it)),
            cpu_limits: self.cpu_limits.as_ref().map(|now| match &before.cpu_limits {
                Some(before) => now.since(before),
                None => now.since(&CpuLimits::default()),
            }),
            pressure: self.pressure.zip(before.pressure).map(|(now, it)| now.since(it)),
            counted: self.counted.map(|now| now.since(before.counted.unwrap_or_default())),
            polls: self.polls.map(|now| now.since(before.polls.unwrap_or_default())),
            runtimes: RuntimeRow::all_since(&self.runtimes, &before.runtimes),
            own: self.own.zip(before.own).map(|(now, it)| now.since(it)),
            clock: self.clock.clone(),
            columns: None,
            thread_total: self.thread_count(),
            ..*self
        };
        since.forget(before.left_out);
        since
    }

    /// The totals since the start of the process: without those of its control group, which is
    /// older.
    #[must_use]
    pub fn since_start(&self) -> Self {
        Self { cpu_limits: None, pressure: None, ..self.clone() }
    }

    /// The number of threads, whether or not there are rows of them; `None` if the service could
    /// not list them. (It has at least one.)
    pub fn thread_count(&self) -> Option<u64> {
        Some(self.thread_total.unwrap_or(self.threads.len() as u64)).filter(|n| *n > 0)
    }

    /// CPU time of all groups, unless it is refused.
    pub fn groups_cpu_ns(&self) -> Option<u64> {
        let sum = || self.groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.cpu_ns));
        self.cpu_refused.is_none().then(sum)
    }

    /// How much of the CPU time is in groups, in percent; `None` if none was used, or if it is
    /// refused.
    pub fn coverage_percent(&self) -> Option<f64> {
        let named = self.groups_cpu_ns()?;
        let all = named.saturating_add(self.unattributed_cpu_ns);
        (all > 0).then(|| named as f64 / all as f64 * 100.0)
    }

    /// One sentence about each group that pays for what its requests have left behind.
    pub fn outlived(&self) -> impl Iterator<Item = String> {
        let notice = |group: &GroupRow| group.outliving?.notice(&group.name);
        self.groups.iter().filter_map(notice).map(|notice| format!("{notice}; {}", Outliving::ADVICE))
    }

    /// Notices for readers of the figures: one sentence for each part that is asleep, for each
    /// objective that matches no group, for each control group that was throttled, and for each
    /// group of [`Stat::outlived`].
    pub fn notices(&self) -> impl Iterator<Item = String> {
        let limited = self.limited.iter().map(|why| format!("{why}; `dormouse wake` wakes it"));
        let unmatched = self.unmatched.iter();
        let unmatched = unmatched.map(|of| {
            format!("objective `{of}`: no group matches so far; `dormouse doctor` names groups that are near")
        });
        let throttled = self.cpu_limits.iter().flat_map(CpuLimits::notices);
        limited.chain(unmatched).chain(throttled).chain(self.outlived())
    }

    /// In how many polls of tasks a group was entered, in percent; `None` if no runtime announces
    /// its polls.
    pub fn poll_coverage_percent(&self) -> Option<f64> {
        let polls = self.polls.filter(|polls| polls.all > 0)?;
        Some(polls.in_groups as f64 / polls.all as f64 * 100.0)
    }
}

impl GroupRow {
    /// The rows of groups since `before`, earlier ones. A group that is not among those is new.
    #[must_use]
    pub fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let before: HashMap<u32, &Self> = before.iter().map(|row| (row.id, row)).collect();
        now.iter().map(|row| before.get(&row.id).map_or_else(|| row.clone(), |it| row.since(it))).collect()
    }

    /// The difference to `before`, an earlier row of the group. No figure is negative: a total that
    /// decreased, as that of a scaled event may, counts as unchanged. An event that was not counted
    /// in one of the two has no difference.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let count = |count: &CountRow| {
            let before = before.counts.iter().find(|it| it.event == count.event)?;
            Some(count.since(before))
        };
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            entries: self.entries.saturating_sub(before.entries),
            started: self.started.saturating_sub(before.started),
            finished: self.finished.saturating_sub(before.finished),
            requests: self.requests.saturating_sub(before.requests),
            outcomes: self.outcomes.as_ref().zip(before.outcomes.as_ref()).map(|(now, it)| now.since(it)),
            polls: self.polls.saturating_sub(before.polls),
            counts: self.counts.iter().filter_map(count).collect(),
            objectives: ObjectiveRow::all_since(&self.objectives, &before.objectives),
            blocking: self.blocking.map(|of| of.since(&before.blocking.unwrap_or_default())),
            // Times that were not taken before have no difference.
            waits: self.waits.as_ref().zip(before.waits.as_ref()).map(|(now, it)| Box::new(now.since(it))),
            ..self.clone()
        }
    }
}

impl Outliving {
    /// From here on people are told.
    pub const NOTABLE_NS: u64 = 60_000_000_000;

    /// Advice for the program's author.
    pub const ADVICE: &str = "spawn them in a group of their own (dormouse::tokio::spawn_in)";

    /// One clause about a group; `None` if it is not notable.
    ///
    /// ```
    /// use dormouse_protocol::Outliving;
    ///
    /// let outliving = Outliving { tasks: 2, ns: 83_000_000_000 };
    /// assert_eq!(
    ///     outliving.notice("GET /a").unwrap(),
    ///     "GET /a: 2 spawned tasks have outlived its requests by 83 s: it pays for them"
    /// );
    /// assert_eq!(Outliving { ns: 59_000_000_000, ..outliving }.notice("GET /a"), None);
    /// ```
    pub fn notice(&self, group: &str) -> Option<String> {
        let Self { tasks, ns } = *self;
        let (spawned, they) = if tasks == 1 { ("task has", "it") } else { ("tasks have", "them") };
        (ns >= Self::NOTABLE_NS).then(|| {
            let seconds = ns / 1_000_000_000;
            format!(
                "{group}: {tasks} spawned {spawned} outlived its requests by {seconds} s: it pays for {they}"
            )
        })
    }
}

impl CountRow {
    /// Whether the event was counted for any of the time. If not, `value` means nothing.
    pub fn is_counted(&self) -> bool {
        self.enabled_ns > 0 && self.running_ns > 0
    }

    /// The count since `before`, an earlier row of the event.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            event: self.event.clone(),
            value: self.value.saturating_sub(before.value),
            enabled_ns: self.enabled_ns.saturating_sub(before.enabled_ns),
            running_ns: self.running_ns.saturating_sub(before.running_ns),
        }
    }
}

impl CountedCpu {
    /// The time since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            process_ns: self.process_ns.saturating_sub(before.process_ns),
            groups_ns: self.groups_ns.saturating_sub(before.groups_ns),
        }
    }
}

impl TaskPolls {
    /// The difference to `before`, an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let all = self.all.saturating_sub(before.all);
        // A poll that ends amid a reading may be in `all` of one reading and inside of the next.
        Self { all, in_groups: self.in_groups.saturating_sub(before.in_groups).min(all) }
    }
}

/// The figures of one thread.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadStat {
    /// Thread id, in the service's own namespace.
    pub tid: u32,
    /// The thread's name.
    pub name: String,
    /// CPU time, in nanoseconds.
    pub cpu_ns: u64,
    /// For how long the thread was runnable and waited for a CPU, in nanoseconds, without a wait
    /// that has not ended. Absent if the kernel does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_ns: Option<u64>,
}

#[cfg(test)]
mod tests;
