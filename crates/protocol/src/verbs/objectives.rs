//! `objectives`: counts of the requests that meet an objective, and of those that miss it.

use serde::{Deserialize, Serialize};

use crate::objective::Objective;
use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Counts requests by these objectives as long as the connection lasts, and takes the times of
/// tasks for that. It replaces an earlier request of the connection; the answer is
/// [`ObjectivesBegun`], and [`Stat`](crate::Stat) has the counts. Refused as a whole if one of the
/// objectives is invalid, or if a group would have too many.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectivesRequest {
    /// Each as [`GroupObjective`](crate::GroupObjective) reads it: `GET /*: 99.9% < 250ms`.
    pub objectives: Vec<String>,
}

impl Verb for ObjectivesRequest {
    const NAME: &'static str = "objectives";
    const LACKS: &'static str = "counts no requests by objectives";
    const MEMORY: Memory = Memory::each(&[Each::Group]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    type Answer = ObjectivesBegun;
}

/// Answer to `objectives`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectivesBegun {
    /// The number of groups that have one of these objectives now. Groups that come later get
    /// theirs when they begin.
    pub groups: u64,
}

/// The requests of a group by one objective, since somebody began to count them by it. The counts
/// begin anew if nobody has counted by it in between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectiveRow {
    /// The objective.
    #[serde(flatten)]
    pub objective: Objective,
    /// Requests that were answered within its time.
    pub met: u64,
    /// Requests that failed, or were not answered within its time.
    pub missed: u64,
}

impl ObjectiveRow {
    /// All requests that count.
    pub fn all(&self) -> u64 {
        self.met.saturating_add(self.missed)
    }

    /// The rows since `before`, earlier ones. An objective is new if it is not among those, or if
    /// one of its counts is less than there: both have begun anew.
    pub(crate) fn all_since(now: &[Self], before: &[Self]) -> Vec<Self> {
        let since = |now: &Self| {
            let goes_on =
                |it: &&Self| it.objective == now.objective && it.met <= now.met && it.missed <= now.missed;
            let before = before.iter().find(goes_on).copied().unwrap_or_default();
            Self { met: now.met - before.met, missed: now.missed - before.missed, ..*now }
        };
        now.iter().map(since).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(now: [u64; 2], before: [u64; 2]) -> [u64; 2] {
        let row = |[met, missed]: [u64; 2]| ObjectiveRow { met, missed, ..ObjectiveRow::default() };
        let since = ObjectiveRow::all_since(&[row(now)], &[row(before)]);
        [since[0].met, since[0].missed]
    }

    #[test]
    fn counts_that_begin_anew_are_whole() {
        assert_eq!(counts([9, 3], [5, 3]), [4, 0]);
        assert_eq!(counts([7, 2], [5, 3]), [7, 2], "one is less: both have begun again");
    }
}
