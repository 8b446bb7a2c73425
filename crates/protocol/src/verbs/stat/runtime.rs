//! Runtimes beside the groups, and the blocking work that groups hand to them.

use serde::{Deserialize, Serialize};

/// Blocking work that a group has handed to a runtime, while times of tasks were taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BlockingRow {
    /// How much of it has begun.
    pub begun: u64,
    /// For how long that waited for a thread, added up, in nanoseconds.
    pub queued_ns: u64,
}

impl BlockingRow {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            begun: self.begun.saturating_sub(before.begun),
            queued_ns: self.queued_ns.saturating_sub(before.queued_ns),
        }
    }
}

/// A runtime that the service has shown to dormouse, at the moment of the reading.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RuntimeRow {
    /// The name that the service has given it.
    pub name: String,
    /// The number of its workers.
    pub workers: u64,
    /// Tasks that exist, without dormouse's own.
    pub tasks: u64,
    /// Tasks that wait in the queue of all workers.
    pub global_queue: u64,
    /// For how long workers were busy, all added up, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    /// How often workers have parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parks: Option<u64>,
    /// Tasks that wait in the queues of single workers. This and the rest are absent from programs
    /// that are built without `--cfg tokio_unstable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_queues: Option<u64>,
    /// Polls of tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub polls: Option<u64>,
    /// Tasks that a worker has taken from another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steals: Option<u64>,
    /// Threads for blocking work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking_threads: Option<u64>,
    /// Threads for blocking work that have none now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_blocking_threads: Option<u64>,
    /// Blocking work that waits for a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocking_queue: Option<u64>,
}

impl RuntimeRow {
    /// The most runtimes of a service.
    pub const MOST: usize = 32;

    /// The runtimes over the time since `before`, earlier rows: totals are of that time. A runtime
    /// is new if it is not among those, or if one of its totals is less than there: the service has
    /// ended it, and made another one of that name.
    pub(super) fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let since = |now: &Self| {
            let before = before.iter().find(|it| it.name == now.name && now.goes_on_from(it));
            before.map_or_else(|| now.clone(), |it| now.since(it))
        };
        now.iter().map(since).collect()
    }

    fn totals(&self) -> [Option<u64>; 4] {
        [self.busy_ns, self.parks, self.polls, self.steals]
    }

    /// Whether no total is less than in `before`.
    fn goes_on_from(&self, before: &Self) -> bool {
        self.totals()
            .into_iter()
            .zip(before.totals())
            .all(|(now, it)| now.zip(it).is_none_or(|(n, it)| n >= it))
    }

    fn since(&self, before: &Self) -> Self {
        let total = |of: fn(&Self) -> Option<u64>| of(self).zip(of(before)).map(|(now, it)| now - it);
        Self {
            busy_ns: total(|row| row.busy_ns),
            parks: total(|row| row.parks),
            polls: total(|row| row.polls),
            steals: total(|row| row.steals),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(busy_ns: u64, polls: Option<u64>) -> RuntimeRow {
        RuntimeRow { name: "main".into(), busy_ns: Some(busy_ns), polls, ..RuntimeRow::default() }
    }

    #[test]
    fn a_runtime_made_again_is_new() {
        let since = |now: RuntimeRow, before| RuntimeRow::all_since(&[now], &[before]).pop().unwrap();
        assert_eq!(since(row(9, Some(5)), row(7, Some(5))), row(2, Some(0)));
        assert_eq!(since(row(9, Some(4)), row(7, Some(5))), row(9, Some(4)), "one total is less");
        assert_eq!(since(row(3, None), row(7, None)), row(3, None));
    }
}
