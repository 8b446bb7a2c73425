//! What a batch makes of the keys that it names: worked out, written, and only then true.

use std::time::Duration;

use crate::batch::{Change, Turn};
use crate::hold::{Holder, Holds, Term};
use crate::key::Key;
#[cfg(not(all(test, loom)))]
use crate::registry::Index;
use crate::{BatchReport, Error, Protocol, clock, timer};

/// What a key can count.
const MOST_LEASES: u64 = u32::MAX as u64;

/// What the keys are to be.
struct Plan {
    /// In order of address, each key once.
    keys: Vec<Desired>,
}

struct Desired {
    key: &'static Key,
    baseline: bool,
    /// Leases that somebody has in hand, as against holds.
    counted: u64,
    /// What holds it for a time. Few keys have any, and a batch can name very many.
    timed: Option<Box<Timed>>,
}

#[derive(Default)]
struct Timed {
    /// Holds that stay.
    terms: Vec<Term>,
    /// Holds that begin or are extended when the batch is complete, by these lengths.
    extend: Vec<(Holder, Duration)>,
}

/// Carries changes out, or none of them.
pub(crate) fn commit(
    turn: &mut Turn,
    changes: Vec<(&'static Key, Change)>,
    dwell: Option<Duration>,
    protocol: Protocol,
) -> Result<BatchReport, Error> {
    let plan = Plan::of(changes, dwell, &turn.holds)?;
    #[cfg(not(all(test, loom)))]
    let mut report = plan.write(turn.registry.index(), protocol)?;
    #[cfg(all(test, loom))]
    let mut report = plan.write(protocol)?;
    report.keys = plan.switched().count();
    #[cfg(not(all(test, loom)))]
    if report.keys > 0 {
        turn.registry.set_switched();
    }
    plan.publish(&mut turn.holds);
    Ok(report)
}

impl Desired {
    fn of(key: &'static Key, holds: &Holds) -> Self {
        let terms = holds.of(key);
        let counted = u64::from(key.leases()).saturating_sub(terms.len() as u64);
        let timed =
            (!terms.is_empty()).then(|| Box::new(Timed { terms: terms.to_vec(), extend: Vec::new() }));
        Self { key, baseline: key.baseline(), counted, timed }
    }

    /// How many leases there will be.
    fn leases(&self) -> u64 {
        self.counted + self.timed.as_ref().map_or(0, |timed| timed.holders()) as u64
    }

    fn enabled(&self) -> bool {
        self.baseline || self.leases() > 0
    }

    fn change(&mut self, change: Change, dwell: Option<Duration>) -> Result<(), Error> {
        match change {
            Change::Baseline(on) => {
                let dwell = dwell.filter(|_| self.baseline && !on);
                self.baseline = on;
                self.linger(dwell);
            }
            Change::Acquire => self.counted += 1,
            Change::Release(own) => {
                // Only a `Lease` releases, and it holds what it releases.
                debug_assert!(self.counted > 0);
                self.counted = self.counted.saturating_sub(1);
                self.linger(own.max(dwell));
            }
            Change::Hold(holder, length) => self.extend(holder, length),
            Change::End(holder) => {
                let ended = self.timed.as_mut().is_some_and(|timed| timed.end(holder));
                self.linger(dwell.filter(|_| ended));
            }
        }
        match self.leases() {
            0..=MOST_LEASES => Ok(()),
            leases => Err(Error::TooManyLeases { key: self.key.name(), leases: (leases - 1) as u32 }),
        }
    }

    fn linger(&mut self, dwell: Option<Duration>) {
        if let Some(dwell) = dwell {
            self.extend(Holder::Nobody, dwell);
        }
    }

    fn extend(&mut self, holder: Holder, length: Duration) {
        self.timed.get_or_insert_default().extend(holder, length);
    }
}

impl Timed {
    /// For how many holders it will be held.
    fn holders(&self) -> usize {
        let is_new = |&&(holder, _): &&(Holder, Duration)| self.terms.iter().all(|t| t.holder != holder);
        self.terms.len() + self.extend.iter().filter(is_new).count()
    }

    /// Ends a holder's hold, or all; whether there was one.
    fn end(&mut self, holder: Option<Holder>) -> bool {
        let before = self.terms.len() + self.extend.len();
        let goes = |of: Holder| holder.is_none_or(|holder| holder == of);
        self.terms.retain(|term| !goes(term.holder));
        self.extend.retain(|&(of, _)| !goes(of));
        before > self.terms.len() + self.extend.len()
    }

    fn extend(&mut self, holder: Holder, length: Duration) {
        match self.extend.iter_mut().find(|(of, _)| *of == holder) {
            Some((_, longest)) => *longest = length.max(*longest),
            None => self.extend.push((holder, length)),
        }
    }
}

impl Plan {
    fn of(
        mut changes: Vec<(&'static Key, Change)>,
        dwell: Option<Duration>,
        holds: &Holds,
    ) -> Result<Self, Error> {
        // Stable: of what is said of one key, the last counts.
        changes.sort_by_key(|(key, _)| key.address());
        let mut keys = Vec::with_capacity(changes.len());
        for of_one in changes.chunk_by(|(a, _), (b, _)| std::ptr::eq(*a, *b)) {
            let mut desired = Desired::of(of_one[0].0, holds);
            for &(_, change) in of_one {
                desired.change(change, dwell)?;
            }
            keys.push(desired);
        }
        Ok(Self { keys })
    }

    fn switched(&self) -> impl Iterator<Item = &Desired> {
        self.keys.iter().filter(|d| d.enabled() != d.key.is_enabled())
    }

    #[cfg(dormouse_patching)]
    fn write(&self, index: &Index, protocol: Protocol) -> Result<BatchReport, Error> {
        let (mut patches, mut skipped) = (Vec::with_capacity(self.keys.len()), 0);
        let mut sites_of = index.sites_in_order();
        for desired in self.switched() {
            let (key, enabled, before) = (desired.key.name(), desired.enabled(), patches.len());
            let sites = sites_of(desired.key);
            patches.reserve(sites.len());
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

    #[cfg(not(any(dormouse_patching, all(test, loom))))]
    #[expect(clippy::unnecessary_wraps, reason = "the same shape as where text is patched")]
    fn write(&self, index: &Index, _: Protocol) -> Result<BatchReport, Error> {
        let sites = self.switched().map(|d| index.site_count_of(d.key)).sum();
        Ok(BatchReport { sites, ..BatchReport::default() })
    }

    /// Each key has one site, and the keys say whether it can be written.
    #[cfg(all(test, loom))]
    fn write(&self, _: Protocol) -> Result<BatchReport, Error> {
        if let Some(refused) = self.switched().find(|d| d.key.site.is_foreign()) {
            return Err(Error::NotText { key: refused.key.name(), addr: 0 });
        }
        self.switched().for_each(|d| d.key.site.write(d.enabled()));
        Ok(BatchReport { sites: self.switched().count(), ..BatchReport::default() })
    }

    /// Makes the new states visible; from here on nothing is `switched` any more. Holds begin now, so that none is
    /// shorter than asked for.
    fn publish(self, holds: &mut Holds) {
        let now = clock::now();
        let mut first = None;
        for Desired { key, baseline, counted, timed } in self.keys {
            let Some(timed) = timed else {
                key.publish(baseline, counted as u32);
                continue;
            };
            let Timed { mut terms, extend } = *timed;
            for (holder, length) in extend {
                let until = now + length;
                first = Some(first.map_or(until, |first| until.min(first)));
                match terms.iter_mut().find(|term| term.holder == holder) {
                    Some(term) if term.until >= until => {}
                    Some(term) => *term = Term::new(holder, until),
                    None => terms.push(Term::new(holder, until)),
                }
            }
            key.publish(baseline, (counted + terms.len() as u64) as u32);
            holds.set(key, terms);
        }
        if let Some(first) = first {
            timer::expect(holds, first);
        }
    }
}
