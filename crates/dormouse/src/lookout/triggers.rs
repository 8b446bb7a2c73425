//! The rules by which a recorder's file is written.

use std::time::Instant;

use super::long_polls::LongPollWatches;
use super::recording::Recording;

/// The triggers that are armed.
#[derive(Debug, Default)]
pub(crate) struct Triggers {}

impl Triggers {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    /// Judges what has been seen.
    pub(super) fn step(
        &mut self,
        _now: Instant,
        _long_polls: &LongPollWatches,
        _recording: &mut Recording,
    ) -> Option<Instant> {
        None
    }

    pub(super) fn end(&mut self, _number: u64) {}
}
