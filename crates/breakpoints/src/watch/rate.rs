//! Storm control: a watch that is hit more often than its rate allows rests for a while.
//!
//! Each hit costs its thread some ten microseconds. So hits are paid for at the configured rate,
//! [`BURST_NS`] in advance: a watch whose hits are paid for longer ahead than that is in a *storm*,
//! and rests until all are paid. Over any longer time there are no more hits than the rate allows,
//! however late the checking thread is. Consecutive storms double the shortest rest, from
//! [`REST_NS`] to [`LONGEST_REST_NS`]. A watch that was calm for as long as it had rested before
//! starts again with the shortest.
//!
//! No timer checks a watch. Each check sets the count of hits at which the next one is due (the
//! *alarm*), and the hit with this number requests it. A watch without hits costs nothing, and one
//! below its rate is checked once for each [`BURST_NS`] worth of hits.
//!
//! A thread that blocks SIGTRAP makes hits that request no check; they are noticed when the
//! kernel's count is read for a report.
//!
//! | state | look: within the rate | look: storm | look: rest is over |
//! |---|---|---|---|
//! | armed | armed, new alarm | resting | |
//! | resting | | | armed, new alarm |
//!
//! Time is an argument: nanoseconds of one clock, which never goes back.

/// How far ahead of the rate a watch may be: as many hits as the rate allows in this time may come
/// at once.
pub(crate) const BURST_NS: u64 = 10_000_000;
/// The least rest after a storm that follows none.
pub(crate) const REST_NS: u64 = 20_000_000;
/// The most that storms in a row make of it.
pub(crate) const LONGEST_REST_NS: u64 = 4_000_000_000;

const SECOND_NS: u128 = 1_000_000_000;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Armed: check again when there were more hits than this in all.
    Hits(u64),
    /// Disarmed: check again at that time.
    RestUntil(u64),
}

/// The storm control of one watch, armed at first.
#[derive(Debug, Clone)]
pub(crate) struct Throttle {
    /// Hits a second, at least 1.
    rate: u64,
    /// Hits that earlier checks have seen.
    hits: u64,
    /// When these are paid for.
    paid_at: u64,
    /// The last check.
    looked_at: u64,
    state: State,
    /// The least rest of the last storm; 0 after a calm.
    last_rest: u64,
    rests: u32,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Armed { since: u64 },
    Resting { until: u64 },
}

impl Throttle {
    /// One for a watch that is armed now.
    pub(crate) fn new(rate: u32, now: u64) -> Self {
        let state = State::Armed { since: now };
        let rate = u64::from(rate.max(1));
        Self { rate, hits: 0, paid_at: now, looked_at: now, state, last_rest: 0, rests: 0 }
    }

    /// Looks at all hits so far.
    pub(crate) fn look(&mut self, now: u64, hits: u64) -> Allowance {
        // Hits are paid for one after the other, the first of the new ones since the last check at
        // the earliest: it is not known when they came.
        let new = hits.saturating_sub(self.hits);
        self.paid_at = self.paid_at.max(self.looked_at).saturating_add(self.time_of(new));
        self.hits = self.hits.max(hits);
        self.looked_at = now;
        match self.state {
            State::Armed { since } if self.paid_at > now.saturating_add(self.burst_ns()) => {
                self.rest(now, since)
            }
            State::Resting { until } if now < until => Allowance::RestUntil(until),
            // Late hits are paid for, too.
            State::Resting { .. } if now < self.paid_at => {
                self.state = State::Resting { until: self.paid_at };
                Allowance::RestUntil(self.paid_at)
            }
            State::Resting { .. } => {
                self.state = State::Armed { since: now };
                self.next_alarm(now)
            }
            State::Armed { .. } => self.next_alarm(now),
        }
    }

    /// Looks at all hits so far, and has the watch rest in any case.
    pub(crate) fn rest_now(&mut self, now: u64, hits: u64) -> Allowance {
        match (self.look(now, hits), self.state) {
            (Allowance::Hits(_), State::Armed { since }) => self.rest(now, since),
            (rests, _) => rests,
        }
    }

    /// How often the watch rested.
    pub(crate) fn rests(&self) -> u32 {
        self.rests
    }

    fn rest(&mut self, now: u64, armed_since: u64) -> Allowance {
        let was_calm = now.saturating_sub(armed_since) >= self.last_rest;
        let least = if was_calm { REST_NS } else { (2 * self.last_rest).min(LONGEST_REST_NS) };
        let until = self.paid_at.max(now.saturating_add(least));
        self.last_rest = least;
        self.rests = self.rests.saturating_add(1);
        self.state = State::Resting { until };
        Allowance::RestUntil(until)
    }

    /// The hits that may come at this moment without a storm.
    fn next_alarm(&self, now: u64) -> Allowance {
        let ahead = self.paid_at.saturating_sub(now);
        let room = u128::from(self.burst_ns().saturating_sub(ahead)) * u128::from(self.rate) / SECOND_NS;
        Allowance::Hits(self.hits.saturating_add(room as u64))
    }

    /// [`BURST_NS`], or the time of one hit where that is longer.
    fn burst_ns(&self) -> u64 {
        self.time_of(1).max(BURST_NS)
    }

    /// How long `hits` hits take at the rate.
    fn time_of(&self, hits: u64) -> u64 {
        let time = u128::from(hits) * SECOND_NS / u128::from(self.rate);
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A program that would make a hit every `gap` nanoseconds, from 0 to `end`, under a keeper
    /// that comes `late` nanoseconds after it is called. Gives the hits and the time armed.
    fn run(throttle: &mut Throttle, gap: u64, end: u64, late: u64) -> (u64, u64) {
        let (mut now, mut hits, mut armed_ns) = (0, 0, 0);
        let mut allowance = throttle.look(0, 0);
        while now < end {
            match allowance {
                Allowance::Hits(alarm) => {
                    let took = (alarm + 1 - hits) * gap + late;
                    let took = took.min(end - now);
                    hits += took / gap;
                    armed_ns += took;
                    now += took;
                }
                Allowance::RestUntil(until) => now = until + late,
            }
            allowance = throttle.look(now, hits);
        }
        (hits, armed_ns)
    }

    #[test]
    fn a_rate_below_the_limit_never_rests() {
        let mut throttle = Throttle::new(10_000, 0);
        // 9,901 hits a second.
        let (hits, armed_ns) = run(&mut throttle, 101_000, 1_000 * MS, 3 * MS);
        assert_eq!((throttle.rests(), armed_ns), (0, 1_000 * MS));
        assert!(hits.abs_diff(9_901) < 100, "{hits}");
    }

    #[test]
    fn storms_in_a_row_rest_longer() {
        let mut throttle = Throttle::new(10_000, 0);
        let (mut now, mut hits, mut rests) = (0, 0, Vec::new());
        while rests.len() < 11 {
            match throttle.look(now, hits) {
                Allowance::Hits(alarm) => hits = alarm + 1,
                Allowance::RestUntil(until) => {
                    rests.push((until - now) / MS);
                    now = until;
                }
            }
        }
        assert_eq!(rests, [20, 40, 80, 160, 320, 640, 1_280, 2_560, 4_000, 4_000, 4_000]);
    }

    #[test]
    fn a_calm_makes_rests_short_again() {
        let mut throttle = Throttle::new(10_000, 0);
        let (_, armed_ns) = run(&mut throttle, 10_000, 10_000 * MS, 0);
        assert!(throttle.rests() >= 8 && armed_ns < 100 * MS, "{throttle:?}");
        let mut now = throttle.paid_at + LONGEST_REST_NS;
        let mut hits = throttle.hits;
        let Allowance::Hits(_) = throttle.look(now, hits) else { panic!("{throttle:?}") };
        now += LONGEST_REST_NS;
        hits += 1_000_000;
        let Allowance::RestUntil(paid) = throttle.look(now, hits) else { panic!("{throttle:?}") };
        // A million hits are paid for in 100 s, of which 4 have gone by.
        assert_eq!(paid, now + 96_000 * MS);
        let now = paid;
        let Allowance::Hits(_) = throttle.look(now, hits) else { panic!("{throttle:?}") };
        let Allowance::RestUntil(until) = throttle.look(now, hits + 101) else { panic!("{throttle:?}") };
        assert_eq!(until, now + 2 * REST_NS, "this storm followed the other at once");
    }

    #[test]
    fn late_hits_are_paid_for_before_the_end() {
        let mut throttle = Throttle::new(1_000, 0);
        let Allowance::RestUntil(until) = throttle.look(0, 11) else { panic!("{throttle:?}") };
        assert_eq!(until, 20 * MS);
        let Allowance::RestUntil(until) = throttle.look(until, 111) else { panic!("{throttle:?}") };
        // From the first check on 100 more, behind the 11.
        assert_eq!(until, 111 * MS);
        assert_eq!((throttle.look(until, 111), throttle.rests()), (Allowance::Hits(121), 1));
    }

    #[test]
    fn a_rate_below_one_is_one() {
        let mut throttle = Throttle::new(0, 0);
        assert_eq!(throttle.look(0, 0), Allowance::Hits(1));
        assert_eq!(throttle.look(1, 2), Allowance::RestUntil(2_000 * MS));
    }

    proptest! {
        #[test]
        fn no_program_makes_more_hits_than_paid(
            rate in prop_oneof![1_u32..100, 1_000_u32..1_000_000, Just(u32::MAX)],
            gap in 10_000_u64..10_000_000,
            late in 0_u64..20_000_000,
        ) {
            let end = 20_000 * MS;
            let mut throttle = Throttle::new(rate, 0);
            let (hits, armed_ns) = run(&mut throttle, gap, end, late);
            // Hits that come at once, before the keeper does, and by the rate.
            let burst = u64::from(rate) / 100 + 1;
            let most = 2 * burst + 2 + late / gap + end / 1_000 * u64::from(rate) / 1_000_000;
            prop_assert!(hits <= most, "{hits} of {most}, {throttle:?}");
            // And the other way: no program below the rate is ever missed.
            if u64::from(rate) * gap >= 1_000 * MS {
                prop_assert_eq!((throttle.rests(), armed_ns), (0, end));
            }
        }
    }
}
