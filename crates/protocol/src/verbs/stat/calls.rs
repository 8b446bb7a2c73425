//! Outgoing calls, by the group that calls and by peer.

use std::borrow::Cow;
use std::collections::HashMap;

use dormouse_statistics::buckets::Histogram;
use serde::{Deserialize, Serialize};

use crate::verbs::waits::HistogramRow;

/// The calls of one group to one peer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallRow {
    /// The number of the group; 0 for calls that no group has made.
    pub group: u32,
    /// The kind: `http`, `grpc`, `sql`, `redis` or `other`.
    pub kind: Cow<'static, str>,
    /// The peer: a host, a method, a statement without its values, or a command. Absent for all
    /// peers that have no row of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Cow<'static, str>>,
    /// The times of calls that were answered, or failed.
    pub times: HistogramRow,
    /// The number of those that failed. Absent if nothing reports whether any failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<u64>,
    /// The number of calls that were given up before their end. They are not in `times`.
    pub cancelled: u64,
}

impl CallRow {
    /// The name of the row of all peers that have no row of their own.
    pub const OTHERS: &'static str = "(others)";

    /// The name of the row.
    pub fn name(&self) -> &str {
        self.peer.as_deref().unwrap_or(Self::OTHERS)
    }

    /// Rows with the same key are of the same peer.
    fn key(&self) -> (u32, &str, Option<&str>) {
        (self.group, &self.kind, self.peer.as_deref())
    }

    /// The rows since `before`, earlier ones. A peer without calls in between has none.
    #[must_use]
    pub fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let before: HashMap<_, &Self> = before.iter().map(|row| (row.key(), row)).collect();
        let since = |row: &Self| before.get(&row.key()).map_or_else(|| row.clone(), |it| row.since(it));
        now.iter().map(since).filter(|row| !row.is_empty()).collect()
    }

    fn since(&self, before: &Self) -> Self {
        let times = Histogram::from(&self.times).since(&Histogram::from(&before.times));
        Self {
            times: HistogramRow::from(&times),
            errors: self.errors.map(|now| now.saturating_sub(before.errors.unwrap_or_default())),
            cancelled: self.cancelled.saturating_sub(before.cancelled),
            ..self.clone()
        }
    }

    fn is_empty(&self) -> bool {
        let of = &self.times;
        of.zero_count == 0 && of.buckets.is_empty() && self.cancelled == 0 && self.errors.unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: Option<&'static str>, calls: u64, errors: Option<u64>) -> CallRow {
        let times =
            HistogramRow { zero_count: calls, unit_ns: 1_000_000_000, scale: 4, ..Default::default() };
        CallRow { group: 1, kind: "sql".into(), peer: peer.map(Into::into), times, errors, cancelled: 0 }
    }

    #[test]
    fn a_difference_has_peers_that_were_called() {
        let before = [row(Some("a"), 2, Some(1)), row(None, 5, None)];
        let now = [row(Some("a"), 2, Some(1)), row(None, 9, None), row(Some("b"), 1, Some(0))];
        let since = CallRow::all_since(&now, &before);
        let seen: Vec<_> = since.iter().map(|row| (row.name(), row.times.zero_count, row.errors)).collect();
        assert_eq!(seen, [(CallRow::OTHERS, 4, None), ("b", 1, Some(0))]);
    }
}
