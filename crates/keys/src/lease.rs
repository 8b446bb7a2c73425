//! Counted enabling: a key stays on while a lease on it is held.

use std::time::Duration;

use dormouse_sys::rendezvous;

use crate::hold::{self, Holder};
use crate::key::Key;
use crate::plan::Change;
use crate::room::collect;
use crate::{Batch, BatchReport, Error, timer};

/// Keeps its keys on until it is dropped or released. The objects that contain the keys stay loaded
/// for good.
///
/// Dropping gives all keys back in one batch. If that is refused (it was possible when the lease
/// was taken, so something has changed since), the keys stay on, and it is tried again every
/// second; [`Lease::release`] returns the error instead. A signal handler that interrupted a batch
/// of its thread can give nothing back: keys of leases that it drops stay on for good.
///
/// In a forked child, a lease that the parent took keeps nothing on.
///
/// # Cost
///
/// Taking a lease and giving it back each cost a [`Batch`] over those keys that change their state.
#[derive(Debug)]
#[must_use = "the keys go off when the lease is dropped"]
pub struct Lease {
    keys: Vec<&'static Key>,
    report: BatchReport,
    dwell: Option<Duration>,
    /// The number of forks behind the process that took it.
    forks: u32,
}

impl Lease {
    /// Takes a lease on `keys`, in one batch. A key that is named twice is counted once.
    pub fn of(keys: impl IntoIterator<Item = &'static Key>) -> Result<Self, Error> {
        Batch::new().acquire(keys)
    }

    /// The keys that are held.
    pub fn keys(&self) -> &[&'static Key] {
        if self.forks == rendezvous::forks() { &self.keys } else { &[] }
    }

    /// The report of the batch that took the lease.
    pub fn report(&self) -> BatchReport {
        self.report
    }

    /// Has the keys stay on for `dwell` when they are given back; if they are acquired again
    /// meanwhile, nothing is patched ([`Batch::dwell`]). On error the lease is dropped.
    ///
    /// ```
    /// # dormouse_keys::static_key! { static DEBUG: "http.debug" = false; }
    /// # fn main() -> Result<(), dormouse_keys::Error> {
    /// // The text changes at most twice in five seconds, however often this runs.
    /// let lease = DEBUG.acquire()?.dwell(std::time::Duration::from_secs(5))?;
    /// # drop(lease);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dwell(mut self, dwell: Duration) -> Result<Self, Error> {
        hold::check(dwell)?;
        let dwell = Some(dwell).filter(|d| !d.is_zero());
        if dwell.is_some() {
            // Now, because here an error can be returned.
            timer::start_timer()?;
        }
        self.dwell = dwell;
        Ok(self)
    }

    /// Keeps the keys on for `length` in place of the lease: see [`Batch::enable_for`]. On error
    /// the lease is still held and is returned with the error.
    ///
    /// # Cost
    ///
    /// A lock; nothing is patched.
    pub fn keep_for(mut self, length: Duration) -> Result<(), Box<ReleaseError>> {
        let batch = Batch::new().hold_all(self.keys().iter().copied(), Holder::Program, length);
        // The hold's length counts now.
        let dwell = self.dwell.take();
        match batch.apply_releasing(&mut [&mut self], |_| true) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.dwell = dwell;
                Err(Box::new(ReleaseError { lease: self, error }))
            }
        }
    }

    /// Gives the keys back and reports the effect. On error the lease is still held and is returned
    /// with the error.
    pub fn release(mut self) -> Result<BatchReport, Box<ReleaseError>> {
        match self.release_where(|_| true) {
            Ok(report) => Ok(report),
            Err(error) => Err(Box::new(ReleaseError { lease: self, error })),
        }
    }

    /// Gives back the keys for which `chosen` returns true; the others stay held. On error all stay
    /// held.
    pub fn release_where(&mut self, chosen: impl Fn(&Key) -> bool) -> Result<BatchReport, Error> {
        Batch::new().apply_releasing(&mut [self], chosen)
    }
}

impl Key {
    /// Keeps the key on until the lease is dropped.
    ///
    /// # Cost
    ///
    /// The cost of a [`Batch`] of one key if the key was off, otherwise of a lock.
    pub fn acquire(&'static self) -> Result<Lease, Error> {
        Lease::of([self])
    }
}

impl Batch {
    /// Carries the batch out and takes a lease on `keys` in the same transaction.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn acquire(self, keys: impl IntoIterator<Item = &'static Key>) -> Result<Lease, Error> {
        let mut keys = collect(keys)?;
        keys.sort_unstable_by_key(|k| k.address());
        keys.dedup_by_key(|k| k.address());
        let report = self.change_all(keys.iter().copied(), Change::Acquire).apply()?;
        Ok(Lease { keys, report, dwell: None, forks: rendezvous::forks() })
    }

    /// Carries the batch out and gives back those keys of `leases` for which `chosen` returns true,
    /// in one transaction. On error the leases hold what they held.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn apply_releasing(
        mut self,
        leases: &mut [&mut Lease],
        chosen: impl Fn(&Key) -> bool,
    ) -> Result<BatchReport, Error> {
        // First, so that the other changes of a key hold for one that is given back, too.
        let others = std::mem::take(&mut self.changes);
        for lease in &*leases {
            let given_back = lease.keys().iter().copied().filter(|key| chosen(key));
            self.changes.add(given_back, Change::Release(lease.dwell));
        }
        self.changes.append(others);
        let report = self.apply()?;
        for lease in leases {
            lease.keys.retain(|key| !chosen(key));
        }
        Ok(report)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.keys().is_empty() || self.release_where(|_| true).is_ok() {
            return;
        }
        // Left to the timer, which keeps trying. A key that cannot even be left to it, because the
        // key's memory cannot be read any more, does not keep the others from being given back, and
        // there is no caller to return an error to.
        self.dwell = Some(self.dwell.unwrap_or_default());
        let mut refused: Vec<Error> = Vec::new();
        let is_refused = |refused: &[Error], key: &Key| refused.iter().any(|error| error.concerns(key));
        while let Err(error) = self.release_where(|key| !is_refused(&refused, key)) {
            refused.push(error);
            if self.keys.iter().all(|key| is_refused(&refused, key)) {
                break;
            }
        }
    }
}

/// A lease that could not be given back, and the reason.
#[derive(Debug, thiserror::Error)]
#[error("the lease on {} keys is still held: {error}", lease.keys().len())]
pub struct ReleaseError {
    /// The lease, still held.
    pub lease: Lease,
    /// The reason.
    #[source]
    pub error: Error,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{registry, static_key};
    use dormouse_testkit::in_child;

    static_key! { static KEY: "lease.key" = true; }

    #[test]
    fn a_lease_beyond_the_count_is_refused() {
        in_child(|| {
            KEY.publish(registry::lock().unwrap().patch_lock(), true, u32::MAX - 1);
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
            // A hold that takes a lease's place needs no other.
            last.keep_for(Duration::from_secs(1)).unwrap();
            assert_eq!((KEY.leases(), timer::holds().len()), (u32::MAX, 1));
        });
    }
}
