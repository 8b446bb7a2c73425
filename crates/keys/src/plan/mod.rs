//! The states that a batch gives to its keys: first computed, then written to the text, and only
//! then visible.

mod changes;
mod guards;
mod order;

use std::collections::TryReserveError;
use std::time::Duration;

pub(crate) use changes::{Change, Changes};
pub(crate) use guards::Guards;

use crate::hold::{Holder, Holds, KeyHold};
use crate::key::Key;
use crate::patch_lock::PatchLock;
use crate::room::{self, collect};
use crate::{BatchReport, Error, Protocol, clock};

/// The most that a key can count.
const MOST_LEASES: u64 = u32::MAX as u64;

/// The states of the keys after a batch.
struct Plan {
    /// In order of address, each key once.
    keys: Vec<KeyPlan>,
    /// The holds of some of them, in the same order.
    holds: Vec<HoldPlan>,
    /// How many of the keys are switched.
    switched: usize,
}

/// The state of one key after a batch. Small, because a batch can name very many.
struct KeyPlan {
    key: &'static Key,
    /// Leases in hand, as against holds.
    leases: u32,
    baseline: bool,
    suspended: bool,
    /// The state that it is switched to, if it is.
    switch: Option<bool>,
    /// Whether the next of [`Plan::holds`] is this key's.
    has_holds: bool,
}

/// The holds of one key after a batch.
#[derive(Default)]
struct HoldPlan {
    /// Holds that stay.
    stay: Vec<KeyHold>,
    /// Holds that begin or are extended when the batch is complete, by these lengths.
    extend: Vec<(Holder, Duration)>,
}

/// The state of one key, while its changes are worked out.
struct Draft {
    key: &'static Key,
    baseline: bool,
    suspended: bool,
    /// Leases in hand, as against holds.
    leases: u64,
    holds: Option<HoldPlan>,
}

/// Carries changes out, or none of them.
pub(crate) fn commit(
    guards: &mut Guards,
    changes: &mut Changes,
    protocol: Protocol,
) -> Result<BatchReport, Error> {
    changes.sort()?;
    guards.registry.check_there(changes.keys())?;
    let plan = Plan::of(changes, &guards.holds)?;
    // All memory for the new states is allocated before the first byte is written.
    guards.holds.reserve(plan.holds.len())?;
    let mut report = guards.registry.write(plan.switched(), plan.switched, protocol)?;
    report.keys = plan.switched;
    plan.publish(guards.registry.patch_lock(), &mut guards.holds);
    Ok(report)
}

impl Draft {
    fn of(key: &'static Key) -> Self {
        let (baseline, suspended) = (key.baseline(), key.is_suspended());
        Self { key, baseline, suspended, leases: u64::from(key.leases()), holds: None }
    }

    /// Takes the key's holds out of its leases.
    fn split(&mut self, stay: &[KeyHold]) -> Result<(), TryReserveError> {
        // Each hold is counted; but a fork by a signal handler over this batch makes the counts of
        // its child void, and a file that is written anew takes those of its keys away.
        self.leases = self.leases.saturating_sub(stay.len() as u64);
        self.holds = Some(HoldPlan { stay: collect(stay.iter().copied())?, extend: Vec::new() });
        Ok(())
    }

    /// The number of leases after the batch, holds included.
    fn count(&self) -> u64 {
        self.leases + self.holds.as_ref().map_or(0, HoldPlan::holders) as u64
    }

    fn change(&mut self, change: Change, dwell: Option<Duration>) -> Result<(), Error> {
        match change {
            Change::Baseline(on) => self.set(on, dwell)?,
            Change::Reset => self.set(self.key.initial(), dwell)?,
            Change::Acquire => self.leases += 1,
            Change::Release(own) => {
                // Only a `Lease` releases, and only what it holds; `of` documents which counts may
                // be gone.
                self.leases = self.leases.saturating_sub(1);
                self.dwell(own.max(dwell))?;
            }
            Change::Hold(holder, length) => self.extend(holder, length)?,
            Change::End(holder) => {
                let has_ended = self.holds.as_mut().is_some_and(|holds| holds.end(holder));
                self.dwell(dwell.filter(|_| has_ended))?;
            }
            Change::Suspend(suspended) => self.suspended = suspended,
        }
        match self.count() {
            0..=MOST_LEASES => Ok(()),
            leases => Err(Error::TooManyLeases { key: self.key.name(), leases: (leases - 1) as u32 }),
        }
    }

    fn set(&mut self, on: bool, dwell: Option<Duration>) -> Result<(), TryReserveError> {
        let dwell = dwell.filter(|_| self.baseline && !on);
        self.baseline = on;
        self.dwell(dwell)
    }

    fn dwell(&mut self, dwell: Option<Duration>) -> Result<(), TryReserveError> {
        dwell.map_or(Ok(()), |dwell| self.extend(Holder::Nobody, dwell))
    }

    fn extend(&mut self, holder: Holder, length: Duration) -> Result<(), TryReserveError> {
        self.holds.get_or_insert_default().extend(holder, length)
    }
}

impl HoldPlan {
    /// The number of holders after the batch.
    fn holders(&self) -> usize {
        let is_new = |&&(holder, _): &&(Holder, Duration)| self.stay.iter().all(|hold| hold.holder != holder);
        self.stay.len() + self.extend.iter().filter(is_new).count()
    }

    /// Ends a holder's hold, or all; whether there was one.
    fn end(&mut self, holder: Option<Holder>) -> bool {
        let before = self.stay.len() + self.extend.len();
        let goes = |of: Holder| holder.is_none_or(|holder| holder == of);
        self.stay.retain(|hold| !goes(hold.holder));
        self.extend.retain(|&(of, _)| !goes(of));
        before > self.stay.len() + self.extend.len()
    }

    fn extend(&mut self, holder: Holder, length: Duration) -> Result<(), TryReserveError> {
        match self.extend.iter_mut().find(|(of, _)| *of == holder) {
            Some((_, longest)) => *longest = length.max(*longest),
            None => room::extend(&mut self.extend, [(holder, length)])?,
        }
        // The holds that they become.
        self.stay.try_reserve(self.extend.len())
    }
}

impl Plan {
    fn of(changes: &Changes, holds: &Holds) -> Result<Self, Error> {
        let mut plan = Self { keys: Vec::new(), holds: Vec::new(), switched: 0 };
        plan.keys.try_reserve_exact(changes.named().len())?;
        for of_one in changes.named().chunk_by(|(a, _), (b, _)| std::ptr::eq(*a, *b)) {
            let mut draft = Draft::of(of_one[0].0);
            let stay = holds.of(draft.key);
            if !stay.is_empty() {
                draft.split(stay)?;
            }
            for &(_, number) in of_one {
                draft.change(changes.change(number), changes.dwell)?;
            }
            plan.push(&mut draft)?;
        }
        Ok(plan)
    }

    /// By reference: a draft that is moved costs more than all else that a batch does for a key.
    #[inline]
    fn push(&mut self, draft: &mut Draft) -> Result<(), TryReserveError> {
        let enabled = (draft.baseline || draft.count() > 0) && !draft.suspended;
        let &mut Draft { key, baseline, suspended, leases, .. } = draft;
        let switch = Some(enabled).filter(|&on| on != key.is_enabled());
        self.switched += usize::from(switch.is_some());
        let has_holds = draft.holds.is_some();
        if has_holds {
            room::extend(&mut self.holds, draft.holds.take())?;
        }
        self.keys.push(KeyPlan { key, leases: leases as u32, baseline, suspended, switch, has_holds });
        Ok(())
    }

    /// The keys that are switched, each with its state after the batch.
    fn switched(&self) -> impl Iterator<Item = (&'static Key, bool)> {
        self.keys.iter().filter_map(|plan| Some((plan.key, plan.switch?)))
    }

    /// Makes the new states visible; from here on no key is switched any more. Holds begin now, so
    /// that none is shorter than asked for.
    fn publish(self, lock: PatchLock<'_>, holds: &mut Holds) {
        let now = clock::now();
        let mut first = None;
        let mut hold_plans = self.holds.into_iter();
        for KeyPlan { key, leases, baseline, suspended, has_holds, .. } in self.keys {
            key.set_suspended(lock, suspended);
            let Some(HoldPlan { mut stay, extend }) = has_holds.then(|| hold_plans.next()).flatten() else {
                key.publish(lock, baseline, leases);
                continue;
            };
            for (holder, length) in extend {
                let until = now + length;
                first = Some(first.map_or(until, |first| until.min(first)));
                match stay.iter_mut().find(|hold| hold.holder == holder) {
                    Some(hold) if hold.until >= until => {}
                    Some(hold) => *hold = KeyHold::new(holder, until),
                    None => stay.push(KeyHold::new(holder, until)),
                }
            }
            key.publish(lock, baseline, leases + stay.len() as u32);
            holds.set(key, stay);
        }
        if let Some(first) = first {
            holds.expect(first);
        }
    }
}
