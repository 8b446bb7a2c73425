//! When to read a meter again.
//!
//! A meter cannot move faster than the processors that it can use at once, so no reading is needed
//! before `remaining / processors` has passed. A meter nearly always moves more slowly, and
//! readings at exactly those times would take ever smaller steps towards the target. So the wait is
//! longer where the rate at the last reading leaves time, bounded by the cost of a wrong guess:
//! [`MOVING`], or an eighth of the budget. A meter that stood still is read ever more rarely: the
//! budget may end late by twice the time for which it stood still, up to [`STILL`]. Meters at that
//! limit are read together, so that a thousand of them wake the timer hardly more often than one. A
//! measured thread may end, so no wait is longer than [`LONGEST`].

use std::time::Duration;

/// The lateness that a moving meter may have, if it moves on all its processors from now on.
pub(super) const MOVING: Duration = Duration::from_millis(1);
/// The wait for a meter that stood still, and that is expected to use less than a sixteenth of one
/// processor.
pub(super) const STILL: Duration = Duration::from_millis(32);

/// The end of a measured thread is noticed after that.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// A share of the budget that being late may cost.
const SHARE: u64 = 8;

/// How fast a meter can move, and how much of it matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Processors that it can use at once, at most.
    pub(super) processors: u64,
    /// The whole budget, in nanoseconds.
    pub(super) budget_ns: u64,
}

/// The result of the last reading, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Until the target.
    pub(super) remaining: u64,
    /// How long ago the reading before it was; 0: there was none.
    pub(super) elapsed: u64,
    /// How much the meter has moved since that.
    pub(super) moved: u64,
}

impl Pace {
    /// The time of the next reading, after the result at `now`.
    pub(super) fn next(self, now: u64, seen: Seen) -> u64 {
        let Seen { remaining, elapsed, moved } = seen;
        let (still, longest) = (nanoseconds(STILL), nanoseconds(LONGEST));
        let safe = remaining / self.processors;
        if elapsed == 0 {
            return now + safe.min(longest);
        }
        let share = self.budget_ns / SHARE / self.processors;
        let late =
            if moved < elapsed / 16 { elapsed.saturating_mul(2).min(still) } else { nanoseconds(MOVING) };
        let expected = u128::from(remaining) * u128::from(elapsed) / u128::from(moved.max(1));
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        let wait = expected.clamp(safe, safe.saturating_add(late.max(share))).min(longest);
        let next = now + wait;
        // With that much time to choose from, all meters choose the same moments.
        if wait >= safe.saturating_add(still) { next - next % (still / 2) } else { next }
    }
}

fn nanoseconds(short: Duration) -> u64 {
    short.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates readings of a meter that moves at the rate `rate` (nanoseconds per nanosecond, by
    /// time) until its target is reached. Returns the number of readings, and how far past the
    /// target the meter is then.
    fn readings(processors: u64, budget_ns: u64, rate: impl Fn(u64) -> f64) -> (u32, u64) {
        let pace = Pace { processors, budget_ns };
        let (mut now, mut used, mut readings) = (0, 0_u64, 0);
        let mut wait = pace.next(0, Seen { remaining: budget_ns, ..Seen::default() });
        loop {
            // No timer is more precise.
            wait = wait.max(20_000);
            let moved = (wait as f64 * rate(now)) as u64;
            now += wait;
            used += moved;
            readings += 1;
            if used >= budget_ns {
                return (readings, used - budget_ns);
            }
            wait = pace.next(now, Seen { remaining: budget_ns - used, elapsed: wait, moved }) - now;
        }
    }

    #[test]
    fn a_running_thread_is_looked_at_in_time() {
        for (budget, expected) in [(MS / 10, 1), (MS, 1), (50 * MS, 1), (1000 * MS, 1), (10_000 * MS, 10)] {
            assert_eq!(readings(1, budget, |_| 1.0), (expected, 0));
        }
    }

    #[test]
    fn a_running_group_is_not_late() {
        for processors in [2, 8, 128] {
            for budget in [MS, 50 * MS, 10_000 * MS] {
                for threads in [1.0, 2.0] {
                    let (read, late) = readings(processors, budget, |_| threads);
                    assert!(late <= 100_000, "{processors} {budget} {threads}: {late} ns late");
                    assert!(read < 400, "{processors} {budget} {threads}: {read} readings");
                }
            }
        }
    }

    #[test]
    fn all_processors_at_once_cost_no_more() {
        for processors in [1, 2, 8, 128] {
            for budget in [MS, 50 * MS, 10_000 * MS] {
                let pace = Pace { processors, budget_ns: budget };
                for (moved, late) in [(0, STILL), (MS / 16, MOVING), (10 * MS, MOVING)] {
                    for remaining in [1, MS / 2, budget / 2, budget] {
                        let wait = pace.next(MS, Seen { remaining, elapsed: MS, moved }) - MS;
                        let most = (nanoseconds(late) * processors).max(budget / SHARE);
                        assert!(wait * processors <= remaining + most, "{pace:?} {remaining} {moved}");
                    }
                }
            }
        }
    }

    #[test]
    fn still_meters_are_looked_at_rarely_and_together() {
        let pace = Pace { processors: 1, budget_ns: MS };
        let at_rest = |mut now: u64| {
            let mut elapsed = MS / 2;
            for _ in 0..12 {
                let next = pace.next(now, Seen { remaining: MS / 2, elapsed, moved: 0 });
                assert!(next - now <= MS / 2 + (2 * elapsed).min(32 * MS), "{elapsed}");
                (now, elapsed) = (next, next - now);
            }
            assert_eq!((elapsed, now % (16 * MS)), (32 * MS, 0));
        };
        (0..100).for_each(|began| at_rest(began * MS * 7 / 3));
        // A long one: an eighth of it, above the time in which it cannot be used up.
        let long = Pace { processors: 2, budget_ns: 1600 * MS };
        let due = long.next(0, Seen { remaining: MS, elapsed: MS, moved: 0 });
        assert_eq!(due, 96 * MS);
        let far = Pace { processors: 1, budget_ns: u64::MAX };
        assert_eq!(far.next(7, Seen { remaining: u64::MAX, elapsed: 0, moved: 0 }), 1000 * MS + 7);
        assert_eq!(far.next(7, Seen { remaining: u64::MAX, elapsed: 1000 * MS, moved: MS }), 1000 * MS + 7);
        // And the next reading after it has moved is soon.
        assert_eq!(pace.next(0, Seen { remaining: MS / 4, elapsed: 8 * MS, moved: 8 * MS }), MS / 4);
    }
}
