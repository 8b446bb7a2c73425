//! The short form of an answer to `stat`: a column for each figure of groups.
//!
//! Names of fields stand in it once, and not once for each group, so it takes a third of the bytes
//! and of the time to read. Later versions can add columns.
//!
//! The buckets of a histogram are in one list, group by group: the counts from bucket
//! `first_bucket` on, where a number `-n` stands for `n` empty buckets and 0 ends the group.
//!
//! Columns may come from any peer, so they may differ in length, and numbers may be any.
//!
//! | module | is |
//! |---|---|
//! | `column` | one column |
//! | `exemplars`, `histograms`, `waits`, `counts`, `groups` | columns of one kind of row, how rows go into them, and how they come back |

mod column;
mod counts;
mod exemplars;
mod groups;
mod histograms;
mod waits;

use dormouse_statistics::buckets::{EXPORTED_SCALE, SCALE};
use serde::{Deserialize, Serialize};

use super::Stat;

pub use counts::CountColumns;
pub use exemplars::{ExemplarColumns, KnownId};
pub use groups::GroupColumns;
pub use histograms::HistogramColumns;
pub use waits::WaitsColumns;

/// The most rows of calls: a service has fewer, even if each of its groups has one of peers without
/// rows of their own.
const MOST_CALLS: usize = 4096;

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

impl Stat {
    /// Puts groups into columns, and drops what the part does not have.
    pub fn shorten(&mut self, to: StatPart) {
        if to < StatPart::Whole {
            self.thread_total = self.thread_count();
            self.threads = Vec::new();
        }
        for calls in &mut self.calls {
            calls.times = std::mem::take(&mut calls.times).at_scale(to.scale());
        }
        self.columns = Some(Box::new(GroupColumns::of(std::mem::take(&mut self.groups), to)));
    }

    /// Restores the rows of groups from their columns. Returns the number of groups that were left
    /// out because they are more than `most`.
    pub fn expand(&mut self, most: usize) -> usize {
        let all = self.columns.as_ref().map_or(self.groups.len(), |columns| columns.id.len());
        match self.columns.take() {
            Some(columns) => self.groups = columns.rows().take(most).collect(),
            None => self.groups.truncate(most),
        }
        self.calls.truncate(MOST_CALLS);
        all.saturating_sub(most)
    }
}

#[cfg(test)]
mod tests;
