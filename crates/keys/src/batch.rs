//! One transaction over any number of keys.
//!
//! # Locking
//!
//! The patch lock ([`registry::lock`]) is held over the whole of a batch; concurrent batches wait for
//! completion. Nothing else is waited for inside it, the loader least of all, and no foreign code is called.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::key::Key;
use crate::registry::{self, Index};
use crate::{Error, Lease, Protocol};

/// One transaction over any number of keys: all sites are checked, then all are written, then the new states
/// become visible. If anything is refused, the text and the keys are as they were.
///
/// # Protocol
///
/// By default *flip* (see [`Protocol`]): verify all → store one byte per site → one `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. A site's two
/// instructions differ in their first byte alone, so a processor that fetches one meanwhile sees the old or
/// the new instruction. After the barrier none runs on the old. No trap, no stop, no signal.
///
/// Between the first store and the return, one thread may see a key on and another see it off.
///
/// # Cost
///
/// Verifying and storing is a few nanoseconds a site. What costs is fixed per batch: two changes of page
/// permissions for each run of pages, and one barrier, each an interrupt to the processors that run this
/// process.
#[derive(Debug, Default, Clone)]
#[must_use = "a batch does nothing until it is applied"]
pub struct Batch {
    changes: Vec<(&'static Key, Change)>,
    protocol: Option<Protocol>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Baseline(bool),
    Acquire,
    Release,
}

/// What a batch did.
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
    /// Core synchronisations.
    pub barriers: usize,
    /// Traps taken by threads that ran into a site meanwhile; none by [`Protocol::Flip`].
    pub traps: u64,
    /// Pages that could not be made read-only again (out of memory for the mapping).
    pub unsealed: usize,
    /// Wall time, waiting for other batches included.
    pub elapsed: Duration,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key's baseline on.
    pub fn enable(self, key: &'static Key) -> Self {
        self.enable_all([key])
    }

    /// Sets a key's baseline off. The key stays on while there are leases.
    pub fn disable(self, key: &'static Key) -> Self {
        self.disable_all([key])
    }

    /// Sets the baselines of many keys on.
    pub fn enable_all(mut self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.changes.extend(keys.into_iter().map(|key| (key, Change::Baseline(true))));
        self
    }

    /// Sets the baselines of many keys off.
    pub fn disable_all(mut self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.changes.extend(keys.into_iter().map(|key| (key, Change::Baseline(false))));
        self
    }

    /// Changes the text by this protocol, not by the process's own choice.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    pub(crate) fn change_all(mut self, keys: impl IntoIterator<Item = &'static Key>, change: Change) -> Self {
        self.changes.extend(keys.into_iter().map(|key| (key, change)));
        self
    }

    /// Carries the batch out. Of several changes of one key's baseline the last counts.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn apply(self) -> Result<BatchReport, Error> {
        let start = Instant::now();
        let protocol = self.protocol.unwrap_or_else(Protocol::of_process);
        protocol.prepare()?;
        let registry = registry::lock()?;
        let plan = Plan::of(&self.changes)?;
        let mut report = plan.write(registry.index(), protocol)?;
        report.keys = plan.switched().count();
        if report.keys > 0 {
            registry.set_switched();
        }
        plan.publish();
        report.elapsed = start.elapsed();
        Ok(report)
    }

    /// Carries the batch out and takes a lease on `keys` in the same transaction.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn acquire(self, keys: impl IntoIterator<Item = &'static Key>) -> Result<Lease, Error> {
        Lease::in_batch(self, keys.into_iter().collect())
    }
}

impl Batch {
    /// Carries the batch out, and gives back those keys of `leases` that `chosen` holds for, all in one
    /// transaction. On error the leases hold what they held.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn apply_releasing(
        self,
        leases: &mut [&mut Lease],
        chosen: impl Fn(&Key) -> bool,
    ) -> Result<BatchReport, Error> {
        let given = leases.iter().flat_map(|lease| lease.keys()).copied().filter(|key| chosen(key));
        let report = self.change_all(given.collect::<Vec<_>>(), Change::Release).apply()?;
        for lease in leases {
            lease.forget_where(&chosen);
        }
        Ok(report)
    }
}

/// What the keys are to be.
struct Plan {
    /// By address, so that a key which is named twice is changed once.
    keys: BTreeMap<usize, Desired>,
}

struct Desired {
    key: &'static Key,
    baseline: bool,
    leases: u32,
}

impl Desired {
    fn enabled(&self) -> bool {
        self.baseline || self.leases > 0
    }
}

impl Plan {
    fn of(changes: &[(&'static Key, Change)]) -> Result<Self, Error> {
        let mut keys = BTreeMap::new();
        for &(key, change) in changes {
            let desired = keys.entry(key.address()).or_insert_with(|| Desired {
                key,
                baseline: key.baseline(),
                leases: key.leases(),
            });
            match change {
                Change::Baseline(on) => desired.baseline = on,
                Change::Acquire => {
                    desired.leases = desired
                        .leases
                        .checked_add(1)
                        .ok_or(Error::TooManyLeases { key: key.name(), leases: desired.leases })?;
                }
                // Only a `Lease` releases, and it holds what it releases.
                Change::Release => desired.leases = desired.leases.saturating_sub(1),
            }
        }
        Ok(Self { keys })
    }

    fn switched(&self) -> impl Iterator<Item = &Desired> {
        self.keys.values().filter(|d| d.enabled() != d.key.is_enabled())
    }

    #[cfg(dormouse_patching)]
    fn write(&self, index: &Index, protocol: Protocol) -> Result<BatchReport, Error> {
        let (mut patches, mut skipped) = (Vec::new(), 0);
        for desired in self.switched() {
            let (key, enabled, before) = (desired.key.name(), desired.enabled(), patches.len());
            let sites = index.sites_of(desired.key);
            patches.extend(sites.iter().filter_map(|&site| crate::text::Patch::new(site, key, enabled)));
            skipped += before + sites.len() - patches.len();
            if let Some(first) = sites.first().filter(|_| patches.len() == before) {
                return Err(Error::NotText { key, addr: first.code });
            }
        }
        let written = crate::text::write(&mut patches, index.segments(), protocol)?;
        Ok(BatchReport {
            sites: patches.len(),
            skipped,
            pages: written.pages,
            barriers: written.barriers,
            traps: written.traps,
            unsealed: written.unsealed,
            ..BatchReport::default()
        })
    }

    #[cfg(not(dormouse_patching))]
    #[expect(clippy::unnecessary_wraps, reason = "the same shape as where text is patched")]
    fn write(&self, index: &Index, _: Protocol) -> Result<BatchReport, Error> {
        let sites = self.switched().map(|d| index.site_count_of(d.key)).sum();
        Ok(BatchReport { sites, ..BatchReport::default() })
    }

    /// Makes the new states visible; from here on nothing is `switched` any more.
    fn publish(&self) {
        for desired in self.keys.values() {
            desired.key.publish(desired.baseline, desired.leases);
        }
    }
}
