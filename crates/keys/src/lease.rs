//! Counted enabling: a key stays on as long as anybody holds a lease on it.

use std::time::Duration;

use crate::batch::{Change, check};
use crate::error::ReleaseError;
use crate::hold::Holder;
use crate::key::Key;
use crate::{Batch, BatchReport, Error, generation, registry, timer};

/// Keeps its keys on until it is dropped or released. The objects that the keys live in stay loaded, also after
/// that.
///
/// Dropping gives all keys back in one batch. If that is refused (it was possible when the lease was taken,
/// so something has changed since), the keys stay on, and it is tried again every second; [`Lease::release`]
/// reports it instead. A signal handler that interrupted a batch of its thread can give nothing back: what it
/// drops stays on for good.
///
/// In a forked child a lease of its parent holds nothing.
///
/// # Cost
///
/// Taking and giving back is a [`Batch`] over those keys that change their state.
#[derive(Debug)]
#[must_use = "the keys go off when the lease is dropped"]
pub struct Lease {
    keys: Vec<&'static Key>,
    report: BatchReport,
    dwell: Option<Duration>,
    generation: u32,
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
        Ok(Self { keys, report, dwell: None, generation: generation::present() })
    }

    /// The keys that are held.
    pub fn keys(&self) -> &[&'static Key] {
        if self.generation == generation::present() { &self.keys } else { &[] }
    }

    /// What taking the lease did.
    pub fn report(&self) -> BatchReport {
        self.report
    }

    /// Has the keys linger when they are given back: they stay on for `dwell`, and if they are acquired again
    /// meanwhile, nothing is patched ([`Batch::dwell`]; [`Key::flush`] ends it). On error the lease is dropped.
    ///
    /// ```
    /// # dormouse_keys::static_key! { static DEBUG: "http.debug" = false; }
    /// # fn main() -> Result<(), dormouse_keys::Error> {
    /// // However often somebody asks for this, the text changes at most twice in five seconds.
    /// let lease = DEBUG.acquire()?.dwell(std::time::Duration::from_secs(5))?;
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dwell(mut self, dwell: Duration) -> Result<Self, Error> {
        check(dwell)?;
        // Now, where a refusal can be told.
        timer::start()?;
        self.dwell = Some(dwell).filter(|d| !d.is_zero());
        Ok(self)
    }

    /// Leaves the keys on for a time, without anybody to hold them: see [`Batch::enable_for`]. On error the lease
    /// is still held, and comes back with it.
    ///
    /// # Cost
    ///
    /// A lock: nothing is patched.
    pub fn keep_for(mut self, length: Duration) -> Result<(), Box<ReleaseError>> {
        let batch = Batch::new().hold_all(self.keys().to_vec(), Holder::Program, length);
        // It is the hold's length that counts now.
        let dwell = self.dwell.take();
        match batch.apply_releasing(&mut [&mut self], |_| true) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.dwell = dwell;
                Err(Box::new(ReleaseError { lease: self, error }))
            }
        }
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

    /// The changes that give keys back.
    pub(crate) fn giving_back(
        &self,
        chosen: impl Fn(&Key) -> bool,
    ) -> impl Iterator<Item = (&'static Key, Change)> {
        let change = Change::Release(self.dwell);
        self.keys().iter().filter(move |key| chosen(key)).map(move |&key| (key, change))
    }

    /// Takes keys off the lease that have been given back.
    pub(crate) fn forget_where(&mut self, chosen: impl Fn(&Key) -> bool) {
        self.keys.retain(|key| !chosen(key));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.keys().is_empty() || self.release_where(|_| true).is_ok() {
            return;
        }
        // Left to the timer, which tries on. Refused that too, there is nobody to tell.
        self.dwell = Some(self.dwell.unwrap_or_default());
        let _ = self.release_where(|_| true);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::static_key;
    use crate::tests::in_child;

    static_key! { static KEY: "lease.key" = true; }

    #[test]
    fn a_lease_more_than_can_be_counted_is_refused_and_changes_nothing() {
        in_child("lease::tests::a_lease_more_than_can_be_counted_is_refused_and_changes_nothing", || {
            KEY.publish(true, u32::MAX - 1);
            let last = KEY.acquire().unwrap();
            for error in [
                KEY.acquire().unwrap_err(),
                Lease::of([KEY.key(), KEY.key()]).unwrap_err(),
                KEY.enable_for(Duration::from_secs(1)).unwrap_err(),
                Batch::new().disable(&KEY).acquire([KEY.key()]).unwrap_err(),
            ] {
                assert!(matches!(error, Error::TooManyLeases { leases: u32::MAX, .. }), "{error}");
            }
            assert_eq!((KEY.leases(), KEY.baseline(), timer::holds().len()), (u32::MAX, true, 0));
            // What takes a lease's place needs no other.
            last.keep_for(Duration::from_secs(1)).unwrap();
            assert_eq!((KEY.leases(), timer::holds().len()), (u32::MAX, 1));
        });
    }
}
