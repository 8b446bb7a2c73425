//! The tiers, and threads that are forced into one.

use dormouse::clock::{Tier, force, tier};

use crate::runner::Failure;

/// The tiers that read without a system call.
pub(super) const QUICK: [Tier; 3] = [Tier::Rseq, Tier::Page, Tier::Gap];
pub(super) const ALL: [Tier; 4] = [Tier::Rseq, Tier::Page, Tier::Gap, Tier::Syscall];

/// Has this thread, and the threads that it starts, read by `wanted`.
pub(super) fn only(wanted: Tier) -> Result<(), Failure> {
    force(Some(wanted))?;
    has(wanted)
}

/// Whether this thread reads by `wanted`.
pub(super) fn has(wanted: Tier) -> Result<(), Failure> {
    match tier() {
        tier if tier == wanted => Ok(()),
        other => Err(Failure::from(format!("this thread could only have the tier {other}"))),
    }
}

/// Held by tests that force a tier: it is forced for the whole process.
#[cfg(test)]
pub(super) static FORCING: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_tier_is_used_or_said_missing() {
        let _alone = FORCING.lock();
        for tier in ALL {
            match only(tier) {
                Ok(()) => assert_eq!(dormouse::clock::tier(), tier),
                Err(Failure::Unavailable(reason)) => assert!(reason.contains("tier"), "{reason}"),
                Err(wrong) => panic!("{wrong:?}"),
            }
        }
        force(None).unwrap();
    }
}
