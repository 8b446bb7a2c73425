//! One transaction over any number of keys.
//!
//! A batch takes the locks in `plan/guards.rs`. Under them it waits for nothing else, the loader
//! least of all (see `patch_lock`). So everything that needs the loader is done before: keys that
//! are held are pinned, the timer's thread is started, and a copy that sets traps is made to stay
//! loaded.

use std::time::{Duration, Instant};

use crate::hold::Holder;
use crate::key::Key;
use crate::plan::{self, Change, Changes, Guards};
use crate::{BatchReport, Error, Protocol, timer};

/// One transaction over any number of keys: all sites are checked, then all are written, then the
/// new states become visible. If anything is refused, keys and text stay as they were, except for
/// sites that could not be put back ([`Error::HalfWritten`]).
///
/// # Protocol
///
/// By default *flip* (see [`Protocol`]): verify all → store one byte per site → one
/// `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. The two instructions of a site differ only in their
/// first byte, so a processor that fetches the site meanwhile sees the old or the new one. After
/// the barrier none runs the old one. Nothing traps, stops or gets a signal. Where the kernel
/// refuses the barrier, the batch waits a moment instead ([`BatchReport::barriers`] is 0).
///
/// Between the first store and the return, one thread may see a key on and another see it off.
///
/// # Cost
///
/// Verifying and storing takes a few nanoseconds for each site. The rest is fixed for each batch:
/// two changes of page permissions for each run of pages, and one barrier, each an interrupt to the
/// processors that run this process.
#[derive(Debug, Default, Clone)]
#[must_use = "a batch does nothing until it is applied"]
pub struct Batch {
    pub(crate) changes: Changes,
    protocol: Option<Protocol>,
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
    pub fn enable_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.change_all(keys, Change::Baseline(true))
    }

    /// Sets the baselines of many keys off.
    pub fn disable_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.change_all(keys, Change::Baseline(false))
    }

    /// Sets the baselines of many keys to those at the start of the process ([`Key::initial`]).
    pub fn reset_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.change_all(keys, Change::Reset)
    }

    /// Suspends many keys: they are off until [`Batch::resume_all`], and keep their baselines,
    /// leases and holds meanwhile.
    pub fn suspend_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.change_all(keys, Change::Suspend(true))
    }

    /// Resumes keys that were suspended: those go on that have a baseline or a lease by now.
    pub fn resume_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.change_all(keys, Change::Suspend(false))
    }

    /// Keeps a key on for `length` from the moment at which the batch is complete. A key that is
    /// held already stays on until the later of the two ends: holds of one holder do not add up.
    ///
    /// The process needs no agent for that: a thread of this crate, which the first hold starts and
    /// which sleeps between the ends of holds, switches the keys off.
    pub fn enable_for(self, key: &'static Key, length: Duration) -> Self {
        self.hold_all([key], Holder::Program, length)
    }

    /// Keeps many keys on for a time on behalf of a holder: see [`Batch::enable_for`]. One holder
    /// cannot shorten another's hold.
    pub fn hold_all(
        self,
        keys: impl IntoIterator<Item = &'static Key>,
        holder: Holder,
        length: Duration,
    ) -> Self {
        self.change_all(keys, Change::Hold(holder, length))
    }

    /// Ends the holds of `holder`, or all holds if `None`. The holds of [`Holder::Nobody`] are
    /// dwell times, also of keys that this batch gives back.
    pub fn end_all(self, keys: impl IntoIterator<Item = &'static Key>, holder: Option<Holder>) -> Self {
        self.change_all(keys, Change::End(holder))
    }

    /// Keys that this batch switches off or gives back stay on for `dwell` first. If they are
    /// switched on again meanwhile, the text is not touched. So a key is patched at most twice in
    /// that time, however often it is switched: use this where others may toggle keys. Zero means
    /// no dwell time.
    pub fn dwell(mut self, dwell: Duration) -> Self {
        self.changes.dwell = Some(dwell).filter(|d| !d.is_zero());
        self
    }

    /// Changes the text by this protocol instead of [`Protocol::of_process`].
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    pub(crate) fn change_all(mut self, keys: impl IntoIterator<Item = &'static Key>, change: Change) -> Self {
        self.changes.add(keys, change);
        self
    }

    /// Carries the batch out. If it names several changes of one key's baseline, the last one
    /// counts.
    ///
    /// # Cost
    ///
    /// See [`Batch`].
    pub fn apply(mut self) -> Result<BatchReport, Error> {
        if cfg!(dormouse_off) {
            return Err(Error::Off);
        }
        let start = Instant::now();
        self.changes.check()?;
        if self.changes.may_hold() {
            timer::start_timer()?;
        }
        let protocol = self.protocol.unwrap_or_else(Protocol::of_process);
        let mut commit = || plan::commit(&mut Guards::lock_for(&self.changes)?, &mut self.changes, protocol);
        let mut report = protocol.carry_out(&mut commit).map_err(Error::outside)?;
        report.elapsed = start.elapsed();
        Ok(report)
    }
}

impl Key {
    /// Sets the key's baseline on.
    ///
    /// # Cost
    ///
    /// The cost of a [`Batch`] of one key; use one batch for many keys.
    pub fn enable(&'static self) -> Result<BatchReport, Error> {
        Batch::new().enable(self).apply()
    }

    /// Sets the key's baseline off. The key stays on while there are leases.
    ///
    /// # Cost
    ///
    /// The cost of a [`Batch`] of one key; use one batch for many keys.
    pub fn disable(&'static self) -> Result<BatchReport, Error> {
        Batch::new().disable(self).apply()
    }

    /// Keeps the key on for a time: see [`Batch::enable_for`].
    ///
    /// # Cost
    ///
    /// The cost of a [`Batch`] of one key if the key was off, otherwise of a lock. The first hold
    /// of a process starts a thread.
    pub fn enable_for(&'static self, length: Duration) -> Result<BatchReport, Error> {
        Batch::new().enable_for(self, length).apply()
    }
}
