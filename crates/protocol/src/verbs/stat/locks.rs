//! Waits for locks, by the line that takes them and the group.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// The locks that a line and a group have taken since locks were first noted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LockStatRow {
    /// The number of the group; 0 if none was current.
    pub group: u32,
    /// The line, such as `cache.rs:41`.
    pub line: String,
    /// How it takes locks: `mutex`, `read`, `write`, `permit`, `once`.
    pub kind: Cow<'static, str>,
    /// How often the line has taken a lock.
    pub acquisitions: u64,
    /// How often it waited, including waits that were given up.
    pub waits: u64,
    /// For how long it waited, in nanoseconds.
    pub wait_ns: u64,
}

impl LockStatRow {
    /// The rows since `before`, earlier ones. A line that took no lock in between has none.
    #[must_use]
    pub fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let before: HashMap<_, &Self> = before.iter().map(|row| (row.key(), row)).collect();
        let since = |row: &Self| before.get(&row.key()).map_or_else(|| row.clone(), |it| row.since(it));
        now.iter().map(since).filter(|row| row.acquisitions + row.waits > 0).collect()
    }

    fn key(&self) -> (u32, &str, &str) {
        (self.group, &self.line, &self.kind)
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            acquisitions: self.acquisitions.saturating_sub(before.acquisitions),
            waits: self.waits.saturating_sub(before.waits),
            wait_ns: self.wait_ns.saturating_sub(before.wait_ns),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_has_the_lines_that_took_locks() {
        let row = |line: &str, acquisitions| LockStatRow {
            line: line.into(),
            acquisitions,
            wait_ns: 10 * acquisitions,
            ..LockStatRow::default()
        };
        let since = LockStatRow::all_since(
            &[row("a.rs:1", 5), row("b.rs:2", 3)],
            &[row("b.rs:2", 3), row("a.rs:1", 1)],
        );
        assert_eq!(since, [row("a.rs:1", 4)]);
    }
}
