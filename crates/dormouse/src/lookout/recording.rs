//! The flight recorders, each with the newest records.

use std::time::Instant;

/// The recorders.
#[derive(Debug, Default)]
pub(crate) struct Recording {}

impl Recording {
    pub(super) fn is_empty(&self) -> bool {
        true
    }

    /// Empties the rings.
    pub(super) fn step(&mut self, _now: Instant) -> Option<Instant> {
        None
    }

    pub(super) fn end(&mut self, _number: u64) {}
}
