//! The ways to switch the 56 sites: one by one or in one batch, by either protocol.
//!
//! The 56 sites belong to 56 keys, so the same places can be switched by one [`Batch`] or by 56,
//! one key each: only the batching differs. A batch reports its barriers and traps. A number that
//! its protocol does not allow is a wrong answer, and so is a site in the wrong state afterwards.

use std::time::Duration;

use dormouse::keys::{Batch, BatchReport, Protocol};

use super::sites::{KEYS, SITES, run_sites};
use crate::clocks::wall;
use crate::runner::Failure;

pub(super) const NOT_PATCHED: &str = "sites are not patched in this build: they load the key";

/// The end of the names of rows that were measured under a compile.
pub(super) const BUSY: &str = "/busy";

/// One way to switch all sites.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    protocol: Protocol,
    pub(super) batched: bool,
}

/// The ways, the origin's protocol first, whatever the process would choose by itself.
pub(super) const WAYS: [Way; 4] = [
    Way { name: "one-by-one-int3", protocol: Protocol::INT3, batched: false },
    Way { name: "batch-int3", protocol: Protocol::INT3, batched: true },
    Way { name: "one-by-one-flip", protocol: Protocol::Flip, batched: false },
    Way { name: "batch-flip", protocol: Protocol::Flip, batched: true },
];

/// The price of one or more updates.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Took {
    pub(super) time: Duration,
    pub(super) barriers: usize,
    pub(super) traps: u64,
}

impl Took {
    fn add(&mut self, report: &BatchReport) {
        self.barriers += report.barriers;
        self.traps += report.traps;
    }
}

impl Way {
    /// The price of `updates` updates, on and off in turn; after each, this thread runs the sites
    /// and counts those that are on.
    pub(super) fn updates(self, updates: u32) -> Result<Took, Failure> {
        all_off()?;
        let mut sum = Took::default();
        for number in 0..updates {
            let on = number % 2 == 0;
            let took = self.update(on)?;
            sum.time += took.time;
            sum.barriers += took.barriers;
            sum.traps += took.traps;
            check(on, run_sites())?;
        }
        Ok(sum)
    }

    fn update(self, on: bool) -> Result<Took, Failure> {
        let empty = || Batch::new().protocol(self.protocol);
        let switched = |batch: Batch, key| if on { batch.enable(key) } else { batch.disable(key) };
        let mut took = Took::default();
        let (time, done) = wall(|| {
            if self.batched {
                took.add(&KEYS.iter().fold(empty(), |batch, key| switched(batch, key())).apply()?);
            } else {
                for key in &KEYS {
                    took.add(&switched(empty(), key()).apply()?);
                }
            }
            Ok::<_, Failure>(())
        });
        done?;
        took.time = time;
        self.allows(&took)?;
        Ok(took)
    }

    /// Whether an update took the barriers of its protocol, and traps only if the protocol lays
    /// traps.
    fn allows(self, took: &Took) -> Result<(), Failure> {
        let barriers_of = |sites: usize| match self.protocol {
            Protocol::Int3 { capacity } => 3 * sites.div_ceil(capacity.get()),
            _ => 1,
        };
        let barriers = if self.batched { barriers_of(SITES) } else { SITES * barriers_of(1) };
        if took.barriers != barriers {
            return Err(Failure::wrong(format!(
                "{} took {} barriers, not {barriers}",
                self.name, took.barriers
            )));
        }
        if self.protocol == Protocol::Flip && took.traps != 0 {
            return Err(Failure::wrong(format!("{} took {} traps", self.name, took.traps)));
        }
        Ok(())
    }
}

/// The state in which every row begins, however the one before has ended.
fn all_off() -> Result<(), Failure> {
    Batch::new().protocol(Protocol::Flip).disable_all(KEYS.iter().map(|key| key())).apply()?;
    Ok(())
}

/// Whether all sites, or none, were on.
pub(super) fn check(on: bool, seen: usize) -> Result<(), Failure> {
    let expected = if on { SITES } else { 0 };
    if seen == expected {
        Ok(())
    } else {
        Err(Failure::wrong(format!("{seen} sites were on, not {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_switches_the_same_sites() {
        if !dormouse::keys::PATCHING {
            return dormouse_testkit::skip(NOT_PATCHED);
        }
        dormouse_testkit::in_child(|| {
            for switch_on in WAYS {
                for switch_off in WAYS {
                    switch_on.update(true).unwrap();
                    assert_eq!(run_sites(), SITES, "{}", switch_on.name);
                    switch_off.update(false).unwrap();
                    assert_eq!(run_sites(), 0, "{}", switch_off.name);
                }
            }
        });
    }

    #[test]
    fn sites_in_wrong_states_are_wrong_answers() {
        assert_eq!(check(true, SITES), Ok(()));
        assert_eq!(check(false, 0), Ok(()));
        assert!(matches!(check(true, SITES - 1), Err(Failure::Wrong(_))));
    }

    #[test]
    fn forbidden_barriers_and_traps_are_wrong_answers() {
        for (way, barriers) in WAYS.into_iter().zip([168, 3, 56, 1]) {
            let took = |barriers, traps| Took { barriers, traps, ..Took::default() };
            assert_eq!(way.allows(&took(barriers, 0)), Ok(()), "{}", way.name);
            assert!(matches!(way.allows(&took(barriers + 1, 0)), Err(Failure::Wrong(_))), "{}", way.name);
            let trapped = way.allows(&took(barriers, 1));
            assert_eq!(trapped.is_ok(), way.name.ends_with("int3"), "{}", way.name);
        }
    }
}
