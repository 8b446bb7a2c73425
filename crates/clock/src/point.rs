//! Time stamps, and what turns them into time.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::arch::{self, rdtsc};
use crate::kernel::{monotonic_ns, realtime_ns};
use crate::tsc::{self, Pair};

const COUNTER: u8 = 1;
const CLOCK: u8 = 2;
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// A time stamp: the counter where it may be read, else nanoseconds of the monotonic clock. [`point`] and
/// [`ticks_to_ns`] go with it.
#[inline]
pub fn stamp() -> u64 {
    match SOURCE.load(Ordering::Relaxed) {
        COUNTER => rdtsc(),
        CLOCK => monotonic_ns(),
        _ => choose_source(),
    }
}

#[cold]
fn choose_source() -> u64 {
    // Only a counter that faults is left alone: one that is not invariant still orders records.
    let source = if arch::tsc_faults() { CLOCK } else { COUNTER };
    SOURCE.store(source, Ordering::Relaxed);
    stamp()
}

/// How long `ticks` of the counter take, in nanoseconds; the ticks themselves before the first calibration.
#[inline]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    match tsc::rate() {
        0 => ticks,
        rate => u64::try_from((u128::from(ticks) * u128::from(rate)) >> 32).unwrap_or(u64::MAX),
    }
}

/// A moment on the counter and on the kernel's clocks: what turns time stamps into time.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The counter, as [`stamp`] reads it.
    pub tsc: u64,
    /// Ticks per second.
    pub hz: f64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// `CLOCK_REALTIME`, in nanoseconds since 1970.
    pub realtime_ns: u64,
}

/// A conversion point for now.
///
/// # Cost
///
/// About a microsecond; one millisecond at the first call in a process.
pub fn point() -> Point {
    tsc::calibrate();
    let now = Pair::now(monotonic_ns);
    let offset = realtime_ns().saturating_sub(monotonic_ns());
    // Against the clock that the stamps are turned into, slewed as it may be.
    let hz = tsc::anchor().map(|anchor| anchor.monotonic).map_or(1e9, |since| {
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
