//! The result of a batch.

use std::time::Duration;

/// The effects of a batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchReport {
    /// Number of keys that changed their state.
    pub keys: usize,
    /// Number of sites written.
    pub sites: usize,
    /// Number of sites that lie in no object's code, and so could not be written.
    pub skipped: usize,
    /// Number of pages that hold the written sites.
    pub pages: usize,
    /// Number of core synchronisations; 0 where the kernel refuses them and the batch has waited
    /// instead.
    pub barriers: usize,
    /// Number of traps taken by threads that ran into a site meanwhile; always 0 by
    /// [`Protocol::Flip`](crate::Protocol::Flip).
    pub traps: u64,
    /// Number of pages that could not be made read-only again (out of memory for the mapping).
    pub unsealed: usize,
    /// Wall time, including the wait for other batches.
    pub elapsed: Duration,
}
