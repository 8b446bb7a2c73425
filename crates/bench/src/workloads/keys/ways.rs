//! The ways to switch the 56 sites: one by one or in one batch, by either protocol.
//!
//! The 56 sites belong to 56 keys, so the same places can be switched by one [`Batch`] or by 56, one key each:
//! all that differs is the batching. A batch reports its barriers and traps, and a number that its protocol does
//! not allow is a wrong answer, as is a site in the wrong state afterwards.

use std::time::Duration;

use dormouse::keys::{Batch, BatchReport, Protocol};

use super::SITES;
use super::sites::{KEYS, run_sites};
use crate::clocks::wall;
use crate::runner::Failure;

/// One way to switch all sites.
#[derive(Debug, Clone, Copy)]
pub(super) struct Way {
    pub(super) name: &'static str,
    protocol: Protocol,
    pub(super) batched: bool,
}

/// The ways, the origin's protocol first. What the process would choose by itself plays no part.
pub(super) const WAYS: [Way; 4] = [
    Way { name: "one-by-one-int3", protocol: Protocol::INT3, batched: false },
    Way { name: "batch-int3", protocol: Protocol::INT3, batched: true },
    Way { name: "one-by-one-flip", protocol: Protocol::Flip, batched: false },
    Way { name: "batch-flip", protocol: Protocol::Flip, batched: true },
];

/// What one or more updates took.
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
    /// What `updates` updates take, on and off in turn; after each, this thread runs the sites and counts
    /// those that are on.
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

    /// Whether an update took the barriers that its protocol takes, and traps only where that lays traps.
    fn allows(self, took: &Took) -> Result<(), Failure> {
        let barriers_of = |sites: usize| match self.protocol {
            Protocol::Int3 { capacity } => 3 * sites.div_ceil(capacity.get()),
            _ => 1,
        };
        let barriers = if self.batched { barriers_of(SITES) } else { SITES * barriers_of(1) };
        if took.barriers != barriers {
            return Err(Failure::Wrong(format!(
                "{} took {} barriers, not {barriers}",
                self.name, took.barriers
            )));
        }
        if self.protocol == Protocol::Flip && took.traps != 0 {
            return Err(Failure::Wrong(format!("{} took {} traps", self.name, took.traps)));
        }
        Ok(())
    }
}

/// Where every row begins, however the one before has ended.
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
        Err(Failure::Wrong(format!("{seen} sites were on, not {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::keys::child::in_child;

    #[test]
    fn every_way_switches_the_same_sites() {
        in_child("workloads::keys::ways::tests::every_way_switches_the_same_sites", || {
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
    fn a_site_in_the_wrong_state_is_a_wrong_answer() {
        assert_eq!(check(true, SITES), Ok(()));
        assert_eq!(check(false, 0), Ok(()));
        assert!(matches!(check(true, SITES - 1), Err(Failure::Wrong(_))));
    }

    #[test]
    fn barriers_and_traps_that_the_protocol_does_not_allow_are_a_wrong_answer() {
        for (way, barriers) in WAYS.into_iter().zip([168, 3, 56, 1]) {
            let took = |barriers, traps| Took { barriers, traps, ..Took::default() };
            assert_eq!(way.allows(&took(barriers, 0)), Ok(()), "{}", way.name);
            assert!(matches!(way.allows(&took(barriers + 1, 0)), Err(Failure::Wrong(_))), "{}", way.name);
            let trapped = way.allows(&took(barriers, 1));
            assert_eq!(trapped.is_ok(), way.name.ends_with("int3"), "{}", way.name);
        }
    }
}
