//! The changes that a batch names, and the keys to which they apply.

use std::collections::TryReserveError;
use std::time::Duration;

use super::order::{self, Named};
use crate::Error;
use crate::hold::{Holder, LONGEST_HOLD, check};
use crate::key::Key;
use crate::room::extend;

/// A change of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Baseline(bool),
    /// Sets the baseline to the state at the start of the process.
    Reset,
    Acquire,
    /// Gives a lease back; the key dwells for that time.
    Release(Option<Duration>),
    /// Begins a hold of that length, or extends it.
    Hold(Holder, Duration),
    /// Ends the hold of one holder, or all holds.
    End(Option<Holder>),
    /// Suspends the key, or resumes it.
    Suspend(bool),
}

/// Keys with their changes.
#[derive(Debug, Default, Clone)]
pub(crate) struct Changes {
    named: Vec<Named>,
    /// In the order of their naming: a large batch names many keys for the same.
    distinct: Vec<Change>,
    /// The time for which keys dwell that go off.
    pub(crate) dwell: Option<Duration>,
    /// There was no memory for all that was named: nothing is done.
    is_cut: bool,
}

impl Change {
    fn check(&self) -> Result<(), Error> {
        match *self {
            Self::Hold(_, asked @ Duration::ZERO) => Err(Error::HoldLength { asked, longest: LONGEST_HOLD }),
            Self::Hold(_, length) => check(length),
            _ => Ok(()),
        }
    }

    /// Whether a hold may begin by it.
    fn holds(&self) -> bool {
        matches!(self, Self::Hold(..) | Self::Release(Some(_)))
    }
}

impl Changes {
    pub(crate) fn add(&mut self, keys: impl IntoIterator<Item = &'static Key>, change: Change) {
        self.is_cut |= self.try_add(keys, change).is_err();
    }

    fn try_add(
        &mut self,
        keys: impl IntoIterator<Item = &'static Key>,
        change: Change,
    ) -> Result<(), TryReserveError> {
        if self.distinct.last() != Some(&change) {
            extend(&mut self.distinct, [change])?;
        }
        let number = self.distinct.len() as u32 - 1;
        extend(&mut self.named, keys.into_iter().map(|key| (key, number)))
    }

    /// Adds changes behind these.
    pub(crate) fn append(&mut self, later: Self) {
        let before = self.distinct.len() as u32;
        let moved = later.named.into_iter().map(|(key, number)| (key, before + number));
        let added = extend(&mut self.distinct, later.distinct).and_then(|()| extend(&mut self.named, moved));
        self.is_cut |= later.is_cut || added.is_err();
        self.dwell = later.dwell;
    }

    /// Refuses times that are none, or too long.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.distinct.iter().try_for_each(Change::check)?;
        check(self.dwell.unwrap_or_default())
    }

    /// Whether a hold may begin.
    pub(crate) fn may_hold(&self) -> bool {
        self.dwell.is_some() || self.distinct.iter().any(Change::holds)
    }

    /// The keys to which a lease or the timer comes back, if there may be any: their objects must
    /// stay.
    pub(super) fn lasting(&self) -> Option<impl Iterator<Item = &'static Key> + Clone> {
        let lasts = |change: &Change| self.dwell.is_some() || change.holds() || *change == Change::Acquire;
        let named = self.named.iter().filter(move |(_, number)| lasts(&self.change(*number)));
        self.distinct.iter().any(lasts).then(|| named.map(|(key, _)| *key))
    }

    /// Sorts the keys by address, each key's changes as they were named.
    pub(super) fn sort(&mut self) -> Result<(), Error> {
        if self.is_cut {
            return Err(Error::NoMemory);
        }
        Ok(order::by_address(&mut self.named)?)
    }

    pub(super) fn named(&self) -> &[Named] {
        &self.named
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.named.iter().map(|(key, _)| *key)
    }

    pub(super) fn change(&self, number: u32) -> Change {
        self.distinct[number as usize]
    }
}
