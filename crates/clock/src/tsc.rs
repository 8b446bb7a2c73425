//! The rate of the time stamp counter, measured against the kernel, and its conversion to time.
//!
//! The processor's own claim (CPUID) is absent or wrong in many guests. So the rate is measured: at first
//! over one millisecond, and from then on over the whole time since, each time a slow path comes by. A rate
//! that moves by more than one part in a hundred means that the counter was changed under us (live migration,
//! suspend): it is given up for good.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arch::{self, rdtsc};
use crate::kernel::{monotonic_ns, realtime_ns};

/// How long the first measurement takes.
const FIRST: Duration = Duration::from_millis(1);

/// Nanoseconds per tick, in 2^-32.
static RATE: AtomicU64 = AtomicU64::new(0);
/// `monotonic_ns` from which on the next measurement is worth while.
static NEXT: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
struct Pair {
    tsc: u64,
    ns: u64,
}

/// The first pair: what all later ones are measured from.
static ANCHOR: OnceLock<Pair> = OnceLock::new();

impl Pair {
    /// The tightest of a few brackets, so that an interrupt in one of them does no harm.
    fn now() -> Self {
        let mut best = (u64::MAX, Self { tsc: 0, ns: 0 });
        for _ in 0..5 {
            let before = stamp();
            let ns = monotonic_ns();
            let after = stamp();
            let width = after.wrapping_sub(before);
            if width < best.0 {
                best = (width, Self { tsc: before + width / 2, ns });
            }
        }
        best.1
    }

    fn rate_since(self, earlier: Self) -> Option<u64> {
        let ticks = self.tsc.checked_sub(earlier.tsc).filter(|&t| t > 0)?;
        let ns = self.ns.checked_sub(earlier.ns)?;
        u64::try_from((u128::from(ns) << 32) / u128::from(ticks)).ok().filter(|&r| r > 0)
    }
}

/// Measures the rate for the first time; true when there is one.
///
/// # Cost
///
/// One millisecond at the first call in a process.
pub(crate) fn calibrate() -> bool {
    let anchor = *ANCHOR.get_or_init(|| {
        let anchor = Pair::now();
        let start = Instant::now();
        while start.elapsed() < FIRST {
            std::hint::spin_loop();
        }
        let end = Pair::now();
        if let Some(rate) = end.rate_since(anchor) {
            RATE.store(rate, Ordering::Relaxed);
            NEXT.store(end.ns + 2 * (end.ns - anchor.ns), Ordering::Relaxed);
        }
        anchor
    });
    anchor.ns > 0 && RATE.load(Ordering::Relaxed) > 0 && !BROKEN.load(Ordering::Relaxed)
}

/// Measures again if enough time has passed; false when the counter can no longer be trusted.
pub(crate) fn refine() -> bool {
    let now = monotonic_ns();
    if now >= NEXT.load(Ordering::Relaxed)
        && let Some(&anchor) = ANCHOR.get()
    {
        let pair = Pair::now();
        let old = RATE.load(Ordering::Relaxed);
        match pair.rate_since(anchor) {
            Some(rate) if rate.abs_diff(old) <= old / 100 => {
                RATE.store(rate, Ordering::Relaxed);
                // Twice as long a base each time, up to every ten seconds.
                let base = (pair.ns - anchor.ns).min(10_000_000_000);
                NEXT.store(pair.ns + base, Ordering::Relaxed);
            }
            _ => BROKEN.store(true, Ordering::Relaxed),
        }
    }
    !BROKEN.load(Ordering::Relaxed)
}

/// Whether the counter was found to have changed its rate.
pub(crate) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

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

const COUNTER: u8 = 1;
const CLOCK: u8 = 2;
static SOURCE: AtomicU8 = AtomicU8::new(0);

#[cold]
fn choose_source() -> u64 {
    // Only a counter that faults is left alone: one that is not invariant still orders records.
    let source = if arch::tsc_faults() { CLOCK } else { COUNTER };
    SOURCE.store(source, Ordering::Relaxed);
    stamp()
}

/// Nanoseconds per tick, in 2^-32.
#[inline]
pub(crate) fn rate() -> u64 {
    RATE.load(Ordering::Relaxed)
}

/// How long `ticks` of the counter take, in nanoseconds; the ticks themselves before the first calibration.
#[inline]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    match rate() {
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
    calibrate();
    refine();
    let pair = Pair::now();
    let offset = realtime_ns().saturating_sub(monotonic_ns());
    let hz = match rate() {
        0 => 1e9,
        rate => 1e9 * 2f64.powi(32) / rate as f64,
    };
    Point { tsc: pair.tsc, hz, monotonic_ns: pair.ns, realtime_ns: pair.ns + offset }
}

#[cfg(test)]
mod tests {
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
