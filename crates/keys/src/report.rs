//! The result of a batch.

use std::time::Duration;

/// The effects of a batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchReport {
    /// Keys that changed their state.
    pub keys: usize,
    /// Sites written.
    pub sites: usize,
    /// Sites that lie in no object's code, and so could not be written.
    pub skipped: usize,
    /// Pages that hold the sites written.
    pub pages: usize,
    /// Core synchronisations; 0 where the kernel refuses them and the batch has waited instead.
    pub barriers: usize,
    /// Traps taken by threads that ran into a site meanwhile; none by
    /// [`Protocol::Flip`](crate::Protocol::Flip).
    pub traps: u64,
    /// Pages that could not be made read-only again (out of memory for the mapping).
    pub unsealed: usize,
    /// Wall time, the wait for other batches included.
    pub elapsed: Duration,
}
