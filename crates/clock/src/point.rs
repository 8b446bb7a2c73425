//! Converting time stamps to time.

use dormouse_sys::clock::monotonic_ns;

use crate::kernel::realtime_ns;
use crate::tsc::{self, Pair};

/// The duration of `ticks` ticks of the counter, in nanoseconds; before the first calibration,
/// `ticks` itself.
#[inline]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    match tsc::rate() {
        0 => ticks,
        rate => u64::try_from((u128::from(ticks) * u128::from(rate)) >> 32).unwrap_or(u64::MAX),
    }
}

/// One moment, on the counter and on the kernel's clocks, from which time stamps are converted to
/// time.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The counter, as [`crate::stamp`] returns it.
    pub tsc: u64,
    /// Ticks per second.
    pub hz: f64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// The ticks of the counter in `ns` nanoseconds; the nanoseconds themselves before the first
/// calibration.
pub fn ns_to_ticks(ns: u64) -> u64 {
    match tsc::rate() {
        0 => ns,
        // The fast path, for the spans that a resync converts.
        rate if ns >> 32 == 0 => (ns << 32) / rate,
        rate => u64::try_from((u128::from(ns) << 32) / u128::from(rate)).unwrap_or(u64::MAX),
    }
}

/// A conversion point for the present moment.
///
/// # Cost
///
/// About a microsecond; at the first call in a process one millisecond.
pub fn point() -> Point {
    tsc::calibrate();
    // No thread that reads its CPU time need have looked since the counter jumped.
    tsc::compare();
    let now = Pair::now(monotonic_ns);
    let offset = realtime_ns().saturating_sub(monotonic_ns());
    // Against the clock that the stamps are turned into, slewed as it may be. Over a jump of the
    // counter there is no rate.
    let since = tsc::anchor().filter(|_| !tsc::is_broken()).map(|anchor| anchor.monotonic);
    let last = || (1_u64 << 32) as f64 / (tsc::rate().max(1) as f64) * 1e9;
    let hz = since.map_or_else(last, |since| {
        let (ticks, ns) = (now.tsc.wrapping_sub(since.tsc), now.ns.wrapping_sub(since.ns));
        ticks as f64 / (ns as f64).max(1.0) * 1e9
    });
    Point { tsc: now.tsc, hz, monotonic_ns: now.ns, realtime_ns: now.ns + offset }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it has no counter")]
    fn stamps_differ_as_the_clock_does() {
        assert!(tsc::calibrate());
        let (before, began, after) = (monotonic_ns(), crate::stamp(), monotonic_ns());
        while monotonic_ns() < after + 5_000_000 {}
        let (early, ended, late) = (monotonic_ns(), crate::stamp(), monotonic_ns());
        let (apart, least, most) = (ticks_to_ns(ended - began), early - after, late - before);
        assert!((least / 50 * 49..=most / 50 * 51).contains(&apart), "{least} {apart} {most} ns");
        assert!(ticks_to_ns(ns_to_ticks(1_000_000)).abs_diff(1_000_000) < 1000);
    }

    #[test]
    fn two_points_agree_on_the_time_between_them() {
        let first = point();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let second = point();
        let by_tsc = (second.tsc - first.tsc) as f64 / second.hz * 1e9;
        let by_kernel = (second.monotonic_ns - first.monotonic_ns) as f64;
        assert!((by_tsc - by_kernel).abs() < by_kernel * 0.001, "{by_tsc} against {by_kernel}");
    }
}
