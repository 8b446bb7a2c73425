//! When the keys are switched.
//!
//! A pair is two turns of one length. Which of them has the keys on is random for each pair, and so
//! is the length: nothing that the service does at regular times falls on one state more than on
//! the other. A turn begins with a moment that is not measured, as long as a request, in which most
//! requests end that began in the other state.

use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

/// Pairs of an experiment, about, if its requests are short: what else the machine does differs
/// less between two turns the shorter they are.
const MOST_PAIRS: u32 = 600;
/// Pairs if requests are long. (Of a very long experiment there are more.)
const FEWEST_PAIRS: u32 = 200;
/// If possible, a turn is this many times longer than its requests.
const REQUESTS: u32 = 8;
/// The shortest mean length of a turn: looking takes a part of it.
const SHORTEST: Duration = Duration::from_millis(20);
/// The longest: a longer experiment has more pairs.
const LONGEST: Duration = Duration::from_secs(10);
/// At least and at most this fraction of a turn passes before the first look.
const LEAST_SETTLING: u32 = 10;
const MOST_SETTLING: u32 = 3;

/// The pairs to come.
#[derive(Debug)]
pub(super) struct Plan {
    /// The mean length of a turn.
    mean: Duration,
    request: Duration,
    state: u64,
}

/// The turns of one pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Draw {
    /// Whether the keys are on in the first turn.
    pub(super) on_first: bool,
    /// At the begin of each turn.
    pub(super) settling: Duration,
    /// After that.
    pub(super) length: Duration,
}

impl Plan {
    /// For an experiment of that length, on requests of this length.
    pub(super) fn new(length: Duration, request: Duration) -> Plan {
        let mut seed = [0; 8];
        // Without the kernel's random numbers the clock's are good enough: there is no adversary.
        if !matches!(getrandom(&mut seed, GetRandomFlags::NONBLOCK), Ok(8)) {
            seed = dormouse_sys::clock::monotonic_ns().to_ne_bytes();
        }
        Plan::seeded(length, request, u64::from_ne_bytes(seed))
    }

    pub(super) fn seeded(length: Duration, request: Duration, state: u64) -> Plan {
        let [short, long] = [MOST_PAIRS, FEWEST_PAIRS].map(|pairs| length / (2 * pairs));
        let mean = request.saturating_mul(REQUESTS).clamp(short, long);
        Plan { mean: mean.clamp(SHORTEST, LONGEST), request, state }
    }

    /// The next pair: turns of half to one and a half of the mean.
    pub(super) fn draw(&mut self) -> Draw {
        let whole = self.mean.mul_f64(0.5 + self.next() as f64 / u64::MAX as f64);
        let settling = self.request.clamp(whole / LEAST_SETTLING, whole / MOST_SETTLING);
        Draw { on_first: self.next() >> 63 == 1, settling, length: whole.saturating_sub(settling) }
    }

    /// `splitmix64`.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
