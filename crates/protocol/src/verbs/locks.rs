//! `locks` and `lock-report`: waits for locks by line and group, and the holders.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, Verb};
use crate::verbs::waits::HistogramRow;

/// Notes locks as long as the connection lasts. It replaces an earlier request of the connection;
/// the answer is [`LocksBegun`]. Refused if the static key for this cannot be switched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LocksRequest {
    /// Whether to time each hold. Otherwise holds after a wait are timed, and one in 16 of the
    /// others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
}

impl Verb for LocksRequest {
    const NAME: &'static str = "locks";
    const LACKS: &'static str = "knows no locks";
    const MEMORY: Memory = Memory::SOME;
    type Answer = LocksBegun;
}

/// Answer to `locks`: they are noted from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LocksBegun {}

/// Asks for what is known of locks since they were first noted; the answer is [`LockReport`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockReportRequest {
    /// Whether to read the stacks of threads that wait for one another. That takes some hundred
    /// microseconds for each thread, and nothing if there are no cycles.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stacks: bool,
}

impl Verb for LockReportRequest {
    const NAME: &'static str = "lock-report";
    const ANNOUNCED_AS: &'static str = LocksRequest::NAME;
    const LACKS: &'static str = "knows no locks";
    const MEMORY: Memory = Memory { bytes: 2 << 20, each: &[Each::LockLine] };
    type Answer = LockReport;
}

/// Answer to `lock-report`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockReport {
    /// Lines and groups that have taken locks. If there are very many, those with the longest
    /// waits.
    pub lines: Vec<LockLineRow>,
    /// The number of lines and groups that are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u64,
    /// The holders now, those first for which others wait; some hundred at most.
    pub holders: Vec<LockUserRow>,
    /// The waits that go on, the longest first; some hundred at most.
    pub waiters: Vec<LockUserRow>,
    /// The number of waits that go on and are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiters_omitted: u64,
    /// Threads and tasks that wait for one another, as it looks at this moment. One that is there
    /// in two answers, with the same numbers, is a deadlock if no wait in it is awaited: a task may
    /// have another future, which goes on and frees the lock that the task holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycles: Vec<LockCycleRow>,
    /// How often there was no room for a lock's holder.
    #[serde(default)]
    pub lost_holders: u64,
    /// How often there was no room to count an acquisition.
    #[serde(default)]
    pub lost_lines: u64,
    /// How often there was no room for a wait, which then is not among the waits that go on.
    #[serde(default)]
    pub lost_waits: u64,
}

/// A line that takes locks.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockPlaceRow {
    /// The file, as the compiler was given it.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The column in the line.
    #[serde(default)]
    pub column: u32,
    /// How it is taken: `mutex`, `read`, `write`, `permit`, `once`.
    pub kind: String,
    /// Whether tasks await it; else threads are blocked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaited: bool,
    /// The type of the value in the lock; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// The locks that a line and a group have taken since locks were first noted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockLineRow {
    /// The line.
    pub place: LockPlaceRow,
    /// The name of the group; absent if none was current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How often a lock was taken.
    pub acquisitions: u64,
    /// The waits for locks that were not free, those that were given up among them.
    pub waits: HistogramRow,
    /// The number of waits that were given up: by time, because the task was dropped, or because
    /// the semaphore was closed.
    #[serde(default)]
    pub given_up: u64,
    /// The times for which locks were held, as far as they were timed.
    pub holds: HistogramRow,
    /// The waits by the holder of the lock when they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_by: Vec<LockBlameRow>,
    /// The longest wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest: Option<LockLongestRow>,
}

/// The holder of a lock; on the wire a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WireHeldBy {
    /// A group, or code without one.
    Group,
    /// It was taken before locks were noted.
    Before,
    /// Groups beyond the first eight.
    Others,
    /// Not known. Also an answer that only a newer agent has.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Waits by the holder of the lock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockBlameRow {
    /// The holder.
    pub by: WireHeldBy,
    /// The name of the group, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The time of these waits, in nanoseconds.
    pub ns: u64,
}

/// The longest wait of a line and a group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockLongestRow {
    /// How long it took, and the holder of the lock when it began.
    #[serde(flatten)]
    pub blame: LockBlameRow,
    /// The line at which the holder had taken the lock, if the holder is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<LockPlaceRow>,
}

/// A present holder of a lock, or a present wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockUserRow {
    /// The same as long as it is the same hold or wait.
    pub number: u64,
    /// The address of the lock.
    pub address: u64,
    /// The line at which it was taken, or is waited for.
    pub place: LockPlaceRow,
    /// The name of the group; absent if none was current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The number of the task; 0 if none was current.
    #[serde(default)]
    pub task: u64,
    /// The id of the thread on which that began, in the service's own namespace.
    pub tid: u32,
    /// For how long, in nanoseconds; absent if the beginning was not timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// Whether it is a wait that ends by time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub timed: bool,
}

/// Threads and tasks that wait for one another, in a circle.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockCycleRow {
    /// Each waits for the next one; the last one for the first.
    pub blocked: Vec<LockBlockedRow>,
}

/// One of those who wait for one another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockBlockedRow {
    /// Its wait.
    pub waiter: LockUserRow,
    /// The hold for which it waits.
    pub holder: LockUserRow,
    /// The stack of its thread, as in a report on a long poll. Empty for a task, which waits
    /// without a thread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
    /// The way by which the callers were found: `tables`, `frame-pointers`, `search`; empty if
    /// there is no stack.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub way: String,
    /// Why the stack of its thread is not known, if stacks were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_stack: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl LockReport {
    /// The cycles that are there in both reports: deadlocks, or with tasks what may be one.
    pub fn deadlocks<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a LockCycleRow> {
        self.cycles.iter().filter(|cycle| before.cycles.iter().any(|it| it.is_same(cycle)))
    }
}

impl LockCycleRow {
    /// Whether the same waits and holds are in both, wherever each begins.
    fn is_same(&self, other: &Self) -> bool {
        let numbers = |of: &Self| {
            let pairs = of.blocked.iter().map(|it| (it.waiter.number, it.holder.number));
            let mut numbers: Vec<(u64, u64)> = pairs.collect();
            numbers.sort_unstable();
            numbers
        };
        numbers(self) == numbers(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(numbers: &[u64]) -> LockCycleRow {
        let user = |number| LockUserRow { number, ..LockUserRow::default() };
        let blocked = numbers.iter().map(|n| LockBlockedRow {
            waiter: user(*n),
            holder: user(n + 100),
            ..LockBlockedRow::default()
        });
        LockCycleRow { blocked: blocked.collect() }
    }

    #[test]
    fn a_cycle_in_two_reports_is_a_deadlock() {
        let report = |cycles: &[&[u64]]| LockReport {
            cycles: cycles.iter().map(|numbers| cycle(numbers)).collect(),
            ..LockReport::default()
        };
        let (before, now) = (report(&[&[1, 2], &[3, 4]]), report(&[&[2, 1], &[3, 5]]));
        let found: Vec<_> = now.deadlocks(&before).collect();
        assert_eq!(found, [&cycle(&[2, 1])]);
        assert_eq!(before.deadlocks(&LockReport::default()).count(), 0);
    }

    #[test]
    fn words_of_newer_agents_are_unknown() {
        let row: LockBlameRow = serde_json::from_str(r#"{"by":"a-ghost","ns":7}"#).unwrap();
        assert_eq!((row.by, row.ns), (WireHeldBy::Unknown, 7));
    }
}
