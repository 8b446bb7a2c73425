//! A claim on a piece of work for one thread at a time; no thread waits for it.
//!
//! A flag would stay set for good if its thread is cancelled in the middle, or if a signal handler
//! leaves it by `siglongjmp`. So the claim stores the time at which it was made, and expires. Then
//! two threads may do the work at once, which does no harm to the work that is claimed here.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::tick_ns;

/// Nanoseconds after which a claim counts no more; the work under one takes a few milliseconds.
const LONGEST: u64 = 1_000_000_000;

/// A right that one thread has at a time.
#[derive(Debug, Default)]
pub struct Claim {
    /// The time when it was made, by a clock for threads without the counter, too; 0: no thread has
    /// it.
    since: AtomicU64,
}

/// The right, while a thread has it.
#[derive(Debug, Clone, Copy)]
#[must_use = "a claim is in others' way until it is given up"]
pub struct Claimed(u64);

impl Claim {
    /// A right that no thread has.
    pub const fn new() -> Self {
        Self { since: AtomicU64::new(0) }
    }

    /// Takes the right; `None` while another thread has it.
    pub fn take(&self) -> Option<Claimed> {
        let since = self.since.load(Ordering::Relaxed);
        let now = tick_ns().max(1);
        if since != 0 && now.saturating_sub(since) <= LONGEST {
            return None;
        }
        // Pairs with the exchange in `give_up`: the last claimer's work is done.
        let taken = self.since.compare_exchange(since, now, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Claimed(now))
    }

    /// Gives the right back.
    pub fn give_up(&self, claimed: Claimed) {
        // Fails if the claim counts no more. Pairs with the exchange in `take`.
        let _ours = self.since.compare_exchange(claimed.0, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Frees the right in a forked child: the thread that had it exists only in the parent.
    pub fn forget(&self) {
        self.since.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(miri))] // Its clock begins with the program.
    #[test]
    fn one_thread_claims_until_it_is_late() {
        let claim = Claim::new();
        let first = claim.take().unwrap();
        assert!(claim.take().is_none());
        claim.give_up(first);
        let old = Claimed(tick_ns() - LONGEST - 1);
        claim.since.store(old.0, Ordering::Relaxed);
        assert!(claim.take().is_some(), "its owner never came back");
        // Which changes nothing if it comes now.
        claim.give_up(old);
        assert!(claim.take().is_none());
    }
}
