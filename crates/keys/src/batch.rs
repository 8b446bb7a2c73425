//! One transaction over any number of keys.
//!
//! # Locking
//!
//! A batch has a [`Turn`]: the patch lock of the process, which all copies of dormouse in it share, with what this
//! copy knows ([`registry::lock`]), then this copy's holds. Concurrent batches wait for completion. Nothing else is
//! waited for meanwhile, the loader least of all (its lock is held by constructors that may be waiting for the patch
//! lock), and no foreign code is called. So whatever a batch needs of the loader is done before its turn: keys that
//! are held for a time are pinned, the timer's thread is started, a copy that lays traps is made to stay.
//!
//! Holds have a mutex of their own because the timer's thread must wait with it; it alone takes it without the
//! patch lock, and takes nothing inside it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use crate::hold::{Holder, Holds, LONGEST_HOLD};
use crate::key::Key;
use crate::primitive::{Mutex, MutexGuard, shared};
#[cfg(not(all(test, loom)))]
use crate::registry::Registry;
use crate::{Error, Lease, Protocol, plan, registry, timer};

shared! {
    /// What ends by time.
    static HOLDS: Mutex<Holds> = Mutex::new(Holds::new());
}

/// One transaction over any number of keys: all sites are checked, then all are written, then the new states
/// become visible. If anything is refused, the text and the keys are as they were.
///
/// # Protocol
///
/// By default *flip* (see [`Protocol`]): verify all → store one byte per site → one
/// `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`. A site's two instructions differ in their first byte alone, so a
/// processor that fetches one meanwhile sees the old or the new instruction. After the barrier none runs on the old. No
/// trap, no stop, no signal.
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
    dwell: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Baseline(bool),
    Acquire,
    /// Gives a lease back; the key lingers for so long.
    Release(Option<Duration>),
    /// Begins a hold of so long, or extends it.
    Hold(Holder, Duration),
    /// Ends a hold, or all.
    End(Option<Holder>),
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

    /// Keeps a key on for `length` from the moment at which the batch is complete. A key that is kept on already is
    /// kept on until the later of the two times: such holds do not add up.
    ///
    /// The process needs no agent for that: a thread of this crate, which is started by the first hold and sleeps
    /// between the ends of holds, switches the keys off.
    pub fn enable_for(self, key: &'static Key, length: Duration) -> Self {
        self.hold_all([key], Holder::Program, length)
    }

    /// Keeps many keys on for a time, on somebody's behalf: see [`Batch::enable_for`]. Nothing of what one holder does
    /// shortens the hold of another.
    pub fn hold_all(
        self,
        keys: impl IntoIterator<Item = &'static Key>,
        holder: Holder,
        length: Duration,
    ) -> Self {
        self.change_all(keys, Change::Hold(holder, length))
    }

    /// Ends what is held for a time on behalf of `holder`, or of everybody.
    pub fn end_all(self, keys: impl IntoIterator<Item = &'static Key>, holder: Option<Holder>) -> Self {
        self.change_all(keys, Change::End(holder))
    }

    /// Has keys that linger go off now, with those that this batch gives back.
    pub fn flush_all(self, keys: impl IntoIterator<Item = &'static Key>) -> Self {
        self.end_all(keys, Some(Holder::Nobody))
    }

    /// What this batch switches off or gives back stays on for `dwell` all the same, lingering. Switched on again
    /// meanwhile, the text is not touched at all, so however often a key is switched, it is patched at most twice
    /// in that time: use it where others may toggle keys. Zero is no dwell time.
    pub fn dwell(mut self, dwell: Duration) -> Self {
        self.dwell = Some(dwell).filter(|d| !d.is_zero());
        self
    }

    /// Changes the text by this protocol, not by the process's own choice.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Whether something may begin that ends by time.
    fn may_hold(&self) -> bool {
        let holds = |change: &Change| matches!(change, Change::Hold(..) | Change::Release(Some(_)));
        self.dwell.is_some() || self.changes.iter().any(|(_, change)| holds(change))
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
        self.changes.iter().try_for_each(|(_, change)| change.check())?;
        check(self.dwell.unwrap_or_default())?;
        let protocol = self.protocol.unwrap_or_else(Protocol::of_process);
        if self.may_hold() {
            // Nobody keeps the keys' objects for the timer, which comes back to the keys.
            let keys: Vec<_> = self.changes.iter().map(|(key, _)| *key).collect();
            registry::keep(&keys)?;
            timer::start()?;
        }
        let mut turn = Turn::to_write(protocol)?;
        let done = plan::commit(&mut turn, self.changes, self.dwell, protocol);
        drop(turn);
        let mut report = done.map_err(Error::outside)?;
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

impl Change {
    fn check(&self) -> Result<(), Error> {
        match *self {
            Self::Hold(_, Duration::ZERO) => {
                Err(Error::HoldLength { asked: Duration::ZERO, longest: LONGEST_HOLD })
            }
            Self::Hold(_, length) => check(length),
            _ => Ok(()),
        }
    }
}

/// Whether keys can be held for so long.
pub(crate) fn check(length: Duration) -> Result<(), Error> {
    if length > LONGEST_HOLD {
        return Err(Error::HoldLength { asked: length, longest: LONGEST_HOLD });
    }
    Ok(())
}

/// What ends by time, alone: for the timer's thread, and for a fork.
pub(crate) fn lock_holds() -> MutexGuard<'static, Holds> {
    // A panic cannot come from inside, but a poisoned lock would still protect nothing that could be half done.
    let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
    holds.of_this_process();
    holds
}

/// A thread's turn to patch. A batch that a signal handler starts inside that of its thread is told so: the patch
/// lock knows its owner.
pub(crate) struct Turn {
    // Given up in this order.
    pub(crate) holds: MutexGuard<'static, Holds>,
    /// With the patch lock; a model has the holds' alone.
    #[cfg(not(all(test, loom)))]
    pub(crate) registry: Registry,
}

#[cfg(not(all(test, loom)))]
impl Turn {
    pub(crate) fn take() -> Result<Self, Error> {
        let registry = registry::lock()?;
        Ok(Self { holds: lock_holds(), registry })
    }

    /// A turn in which this protocol can be used: by int3, threads come back into this copy's code long after a batch,
    /// so its object stays.
    pub(crate) fn to_write(protocol: Protocol) -> Result<Self, Error> {
        loop {
            let turn = Self::take()?;
            let traps = protocol != Protocol::Flip || turn.registry.index().needs_int3();
            if !traps || dormouse_sys::rendezvous::stays() {
                return Ok(turn);
            }
            drop(turn);
            dormouse_sys::rendezvous::stay()?;
        }
    }
}

#[cfg(all(test, loom))]
impl Turn {
    #[expect(clippy::unnecessary_wraps, reason = "the same shape as where there is a patch lock")]
    pub(crate) fn take() -> Result<Self, Error> {
        Ok(Self { holds: lock_holds() })
    }

    pub(crate) fn to_write(_: Protocol) -> Result<Self, Error> {
        Self::take()
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
        mut self,
        leases: &mut [&mut Lease],
        chosen: impl Fn(&Key) -> bool,
    ) -> Result<BatchReport, Error> {
        // First, so that what else the batch says of a key holds for what is given back, too.
        let given = leases.iter().flat_map(|lease| lease.giving_back(&chosen));
        self.changes.splice(0..0, given);
        let report = self.apply()?;
        for lease in leases {
            lease.forget_where(&chosen);
        }
        Ok(report)
    }
}
