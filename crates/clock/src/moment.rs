//! Moments: how old a published value is.
//!
//! A moment is a [`stamp`]: one source for the whole life of the process. A read of the thread clock has just
//! read the counter, so its moment costs nothing. A moment is never taken for more than the age of something:
//! one that jumps makes a value look old, and it is renewed.

use crate::point::{stamp, ticks_to_ns};
use crate::tsc;

/// This moment.
pub(crate) fn now() -> u64 {
    stamp()
}

/// The nanoseconds of a difference between two moments.
pub(crate) fn to_ns(difference: u64) -> u64 {
    ticks_to_ns(difference)
}

/// How far apart two moments are between which `ns` nanoseconds pass.
pub(crate) fn from_ns(ns: u64) -> u64 {
    match tsc::rate() {
        0 => ns,
        // The short way for what a resync asks.
        rate if ns >> 32 == 0 => (ns << 32) / rate,
        rate => u64::try_from((u128::from(ns) << 32) / u128::from(rate)).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;

    #[test]
    fn moments_are_as_far_apart_as_the_clock_says() {
        assert!(tsc::calibrate());
        let (began, before) = (now(), kernel::monotonic_ns());
        while kernel::monotonic_ns() < before + 5_000_000 {}
        let apart = to_ns(now() - began);
        assert!((4_900_000..100_000_000).contains(&apart), "{apart} ns");
        assert!(to_ns(from_ns(1_000_000)).abs_diff(1_000_000) < 1000);
    }
}
