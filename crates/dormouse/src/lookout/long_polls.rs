//! The tasks that do not come back from a poll.

use std::time::Instant;

/// The watches for long polls.
#[derive(Debug, Default)]
pub(crate) struct LongPolls {}

impl LongPolls {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    /// Looks at the threads.
    pub(super) fn step(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    pub(super) fn end(&mut self, _number: u64) {}
}
