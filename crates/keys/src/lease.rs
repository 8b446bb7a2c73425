//! Counted enabling: a key stays on as long as anybody holds a lease on it.

use crate::batch::Change;
use crate::error::ReleaseError;
use crate::key::Key;
use crate::{Batch, BatchReport, Error, registry};

/// Keeps its keys on until it is dropped or released. The objects that the keys live in stay loaded, also after
/// that.
///
/// Dropping gives all keys back in one batch. If that is refused (it was possible when the lease was taken,
/// so something has changed since), the keys stay on and keep counting the lease; [`Lease::release`] reports
/// it instead.
///
/// # Cost
///
/// Taking and giving back is a [`Batch`] over those keys that change their state.
#[derive(Debug)]
#[must_use = "the keys go off when the lease is dropped"]
pub struct Lease {
    keys: Vec<&'static Key>,
    report: BatchReport,
}

impl Lease {
    /// Takes a lease on `keys`, in one batch. A key that is named twice is counted once.
    pub fn of(keys: impl IntoIterator<Item = &'static Key>) -> Result<Self, Error> {
        Self::in_batch(Batch::new(), keys.into_iter().collect())
    }

    pub(crate) fn in_batch(batch: Batch, mut keys: Vec<&'static Key>) -> Result<Self, Error> {
        keys.sort_unstable_by_key(|k| k.address());
        keys.dedup_by_key(|k| k.address());
        registry::keep(&keys)?;
        let report = batch.change_all(keys.iter().copied(), Change::Acquire).apply()?;
        Ok(Self { keys, report })
    }

    /// The keys that are held.
    pub fn keys(&self) -> &[&'static Key] {
        &self.keys
    }

    /// What taking the lease did.
    pub fn report(&self) -> BatchReport {
        self.report
    }

    /// Gives the keys back and says what that did; on error the lease is still held, and comes back with it.
    pub fn release(mut self) -> Result<BatchReport, Box<ReleaseError>> {
        match self.release_where(|_| true) {
            Ok(report) => Ok(report),
            Err(error) => Err(Box::new(ReleaseError { lease: self, error })),
        }
    }

    /// Gives those keys back that `chosen` holds for; the others stay held. On error all do.
    pub fn release_where(&mut self, chosen: impl Fn(&Key) -> bool) -> Result<BatchReport, Error> {
        Batch::new().apply_releasing(&mut [self], chosen)
    }

    /// Takes keys off the lease that have been given back.
    pub(crate) fn forget_where(&mut self, chosen: impl Fn(&Key) -> bool) {
        self.keys.retain(|key| !chosen(key));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.keys.is_empty() {
            // See the type's documentation for what happens when this is refused.
            let _ = self.release_where(|_| true);
        }
    }
}
