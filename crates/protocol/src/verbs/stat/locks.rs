//! Waits for locks, by the line that takes them and the group.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

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
    /// The most rows of an answer: those with the longest waits.
    pub const MOST: usize = 256;

    /// The rows since `before`, earlier ones. A line that took no lock in between has none. A line
    /// that is new has none either if it may be older than `before`: that has no rows, as while
    /// locks are not noted, or only some ([`Self::MOST`]).
    #[must_use]
    pub fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let is_complete = (1..Self::MOST).contains(&before.len());
        let before: HashMap<_, &Self> = before.iter().map(|row| (row.key(), row)).collect();
        let since = |row: &Self| match before.get(&row.key()) {
            Some(before) => Some(row.since(before)),
            None => is_complete.then(|| row.clone()),
        };
        now.iter().filter_map(since).filter(|row| row.acquisitions + row.waits > 0).collect()
    }

    /// The rows of `now`, and of `before` those that `now` lacks.
    #[must_use]
    pub fn all_known(now: &[Self], before: &[Self]) -> Vec<Self> {
        let keys: HashSet<_> = now.iter().map(Self::key).collect();
        let is_missing = |row: &&Self| !keys.contains(&row.key());
        now.iter().chain(before.iter().filter(is_missing)).cloned().collect()
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

    fn row(line: &str, acquisitions: u64) -> LockStatRow {
        let wait_ns = 10 * acquisitions;
        LockStatRow { line: line.into(), acquisitions, wait_ns, ..LockStatRow::default() }
    }

    #[test]
    fn lines_that_may_be_older_have_no_difference() {
        let (known, new) = (row("a.rs:1", 5), row("b.rs:2", 900));
        let since = |before: &[LockStatRow]| LockStatRow::all_since(&[known.clone(), new.clone()], before);
        assert_eq!(since(&[row("a.rs:1", 4)]), [row("a.rs:1", 1), new.clone()]);
        assert_eq!(since(&[]), [], "nobody noted locks");
        let cut: Vec<_> = (1..=LockStatRow::MOST).map(|n| row(&format!("a.rs:{n}"), 3)).collect();
        assert_eq!(since(&cut), [row("a.rs:1", 2)]);
    }

    #[test]
    fn a_line_is_known_after_readings_without_it() {
        let known = LockStatRow::all_known(&[row("b.rs:2", 3)], &[row("a.rs:1", 4), row("b.rs:2", 2)]);
        assert_eq!(known, [row("b.rs:2", 3), row("a.rs:1", 4)]);
        let known = LockStatRow::all_known(&[], &known);
        assert_eq!(LockStatRow::all_since(&[row("a.rs:1", 6)], &known), [row("a.rs:1", 2)]);
    }

    #[test]
    fn a_difference_has_the_lines_that_took_locks() {
        let since = LockStatRow::all_since(
            &[row("a.rs:1", 5), row("b.rs:2", 3)],
            &[row("b.rs:2", 3), row("a.rs:1", 1)],
        );
        assert_eq!(since, [row("a.rs:1", 4)]);
    }
}
