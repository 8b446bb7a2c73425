//! The hits that were lost while a watch goes on.
//!
//! The kernel counts a hit a moment before its signal is delivered, and the thread may have to wait
//! for a CPU in between. So of the difference between the two counts only a part is lost: what is
//! more than one hit on the way for each thread and register, and what an earlier reading had
//! counted and is not delivered yet, long after that.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time after which no hit is on its way any more.
const SETTLED_NS: u64 = 200_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The hits of a reading, and its time.
    earlier: Mutex<(u64, u64)>,
    known: AtomicU64,
}

impl Losses {
    /// Looks at the kernel's count of hits, and at those that were delivered a moment later, while
    /// at most `on_way` may be on their way.
    pub(super) fn look(&self, hits: u64, delivered: u64, on_way: u64, now: u64) {
        self.learn(hits.saturating_sub(delivered).saturating_sub(on_way));
        // Another thread that reports has looked. In a forked child it may be none any more.
        let Ok(mut earlier) = self.earlier.try_lock() else { return };
        let (before, at) = *earlier;
        if now.saturating_sub(at) >= SETTLED_NS {
            self.learn(before.saturating_sub(delivered));
            *earlier = (hits, now);
        }
    }

    fn learn(&self, lost: u64) {
        self.known.fetch_max(lost, Ordering::Relaxed);
    }

    /// How many were lost at least, of `missing` at most.
    pub(super) fn of(&self, missing: u64) -> u64 {
        self.known.load(Ordering::Relaxed).min(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_on_their_way_are_not_lost() {
        let (losses, ms) = (Losses::default(), |ms: u64| 1_000_000_000 + ms * 1_000_000);
        losses.look(10, 8, 2, ms(0));
        losses.look(12, 11, 2, ms(1));
        assert_eq!(losses.of(1), 0, "two threads have one each");
        losses.look(15, 11, 2, ms(2));
        assert_eq!(losses.of(4), 2, "but not two each");
        // Of ten hits, all are delivered by now; of sixteen, one is not.
        losses.look(16, 15, 2, ms(300));
        assert_eq!(losses.of(4), 2);
        losses.look(16, 13, 2, ms(499));
        assert_eq!(losses.of(3), 2, "not long after that");
        losses.look(16, 13, 2, ms(500));
        assert_eq!((losses.of(3), losses.of(1)), (3, 1), "the signals came after all");
    }
}
