//! Whether the time stamp counter can be trusted, and its rate.
//!
//! The processor's own claim (CPUID) is absent or wrong in many guests, and it says nothing of a counter
//! that the kernel has found to be unstable. So the rate is measured against `CLOCK_MONOTONIC_RAW`, which
//! nobody slews: at first over one millisecond, and from then on over the whole time since. At every resync
//! of a thread's clock the two are compared; where they part by more than one in a thousand, or where the
//! kernel stops offering the counter as a clock source, it was changed under us (live migration, suspend, a
//! processor out of step) and is given up for good.
//!
//! # Async-signal-safety
//!
//! [`holds`] is signal-safe.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::arch;
use crate::kernel::{monotonic_ns, raw_ns};
use crate::point::stamp;

/// How long the first measurement takes.
const FIRST: Duration = Duration::from_millis(1);
/// How long it takes at most, where nothing shorter is sharp.
const LONGEST_FIRST: Duration = Duration::from_millis(16);
/// How far counter and clock may be apart at any distance, in nanoseconds.
const SLACK: u64 = 20_000;
/// The longest time between two measurements, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;

const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Nanoseconds per tick, in 2^-32.
static RATE: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);
static ANCHOR: OnceLock<Anchor> = OnceLock::new();
static REFERENCE: Reference =
    Reference { version: AtomicU32::new(0), tsc: AtomicU64::new(0), ns: AtomicU64::new(0) };

/// A moment on the counter and on a clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) tsc: u64,
    pub(crate) ns: u64,
    /// Ticks between which the clock was read.
    width: u64,
}

/// What all later pairs are measured from.
#[derive(Debug)]
pub(crate) struct Anchor {
    raw: Pair,
    pub(crate) monotonic: Pair,
}

/// The latest measurement, under a version that is odd while somebody writes.
struct Reference {
    version: AtomicU32,
    tsc: AtomicU64,
    ns: AtomicU64,
}

impl Pair {
    fn once(clock: fn() -> u64) -> Self {
        let before = stamp();
        let ns = clock();
        let width = stamp().wrapping_sub(before);
        Self { tsc: before.wrapping_add(width / 2), ns, width }
    }

    /// The tightest of a few, so that an interrupt in one of them does no harm.
    pub(crate) fn now(clock: fn() -> u64) -> Self {
        (0..4).fold(Self::once(clock), |best, _| {
            let next = Self::once(clock);
            if next.width < best.width { next } else { best }
        })
    }

    fn rate_since(self, earlier: Self) -> Option<u64> {
        let ticks = self.tsc.checked_sub(earlier.tsc).filter(|&t| t > 0)?;
        let ns = self.ns.checked_sub(earlier.ns)?;
        u64::try_from((u128::from(ns) << 32) / u128::from(ticks)).ok().filter(|&r| r > 0)
    }

    /// Whether what is not known of the two moments is less than half of what a rate from one to the other may be off
    /// by and still be held for the counter's: an interruption in each of the tries leaves a wide pair.
    fn is_sharp_since(self, earlier: Self) -> bool {
        self.width.saturating_add(earlier.width) < self.tsc.wrapping_sub(earlier.tsc) / 2048
    }

    /// Whether the counter has run at `rate` since `earlier`, as far as this pair can tell.
    fn fits(self, earlier: Self, rate: u64) -> bool {
        let ns = |ticks: i64| (i128::from(ticks) * i128::from(rate)) >> 32;
        let by_counter = ns(self.tsc.wrapping_sub(earlier.tsc).cast_signed());
        let by_clock = i128::from(self.ns.wrapping_sub(earlier.ns).cast_signed());
        let allowed = i128::from(SLACK) + ns(self.width.cast_signed()) + by_clock / 1024;
        (by_counter - by_clock).abs() <= allowed
    }
}

impl Reference {
    /// `None` while somebody writes it.
    fn read(&self) -> Option<Pair> {
        // Pairs with the last store of `write`.
        let version = self.version.load(Ordering::Acquire);
        let (tsc, ns) = (self.tsc.load(Ordering::Relaxed), self.ns.load(Ordering::Relaxed));
        // Pairs with the fence of `write`.
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == version && version.is_multiple_of(2);
        same.then_some(Pair { tsc, ns, width: 0 })
    }

    /// Nothing while somebody else writes.
    fn write(&self, pair: Pair) {
        let version = self.version.load(Ordering::Relaxed) & !1;
        let next = version.wrapping_add(1);
        if self.version.compare_exchange(version, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Pairs with the fence of `read`.
            fence(Ordering::Release);
            self.tsc.store(pair.tsc, Ordering::Relaxed);
            self.ns.store(pair.ns, Ordering::Relaxed);
            // Pairs with the first load of `read`.
            self.version.store(next.wrapping_add(1), Ordering::Release);
        }
    }
}

/// Whether a clock can be built on the counter here.
pub(crate) fn test() -> Result<(), String> {
    arch::tsc_readable()?;
    if !kernel_offers_it() {
        return Err("the kernel does not offer the TSC as a clock source: it has found it unstable".into());
    }
    if is_broken() {
        return Err("the TSC has changed its rate".into());
    }
    if !calibrate() {
        return Err("the TSC does not advance against the kernel's clock".into());
    }
    Ok(())
}

/// Measures the rate for the first time; true when there is one.
///
/// # Cost
///
/// One millisecond at the first call in a process; more where the thread is interrupted all the time.
pub(crate) fn calibrate() -> bool {
    if ANCHOR.get().is_none() {
        let mut length = FIRST;
        let (anchor, end) = loop {
            let anchor = Anchor { raw: Pair::now(raw_ns), monotonic: Pair::now(monotonic_ns) };
            let start = Instant::now();
            while start.elapsed() < length {
                std::hint::spin_loop();
            }
            let end = Pair::now(raw_ns);
            if end.is_sharp_since(anchor.raw) || length == LONGEST_FIRST {
                break (anchor, end);
            }
            length *= 2;
        };
        if let Some(rate) = end.rate_since(anchor.raw) {
            RATE.store(rate, Ordering::Relaxed);
            REFERENCE.write(end);
        }
        // Last: who finds it finds the rate. Another thread's is as good.
        let _ours_or_anothers = ANCHOR.set(anchor);
    }
    rate() > 0 && !is_broken()
}

/// What the rate has been measured from.
pub(crate) fn anchor() -> Option<&'static Anchor> {
    ANCHOR.get()
}

/// Whether the counter still runs as it has; measures again if enough time has passed.
pub(crate) fn holds() -> bool {
    let Some(reference) = REFERENCE.read() else { return !is_broken() };
    let pair = Pair::once(raw_ns);
    if !pair.fits(reference, rate()) {
        give_up();
    } else if let Some(anchor) = anchor() {
        // Twice as long each time.
        let interval = (reference.ns - anchor.raw.ns).min(LONGEST);
        if pair.ns.saturating_sub(reference.ns) > interval {
            renew(anchor);
        }
    }
    !is_broken()
}

#[cold]
fn renew(anchor: &Anchor) {
    if !kernel_offers_it() {
        return give_up();
    }
    let pair = Pair::now(raw_ns);
    // Else the next resync measures.
    if pair.is_sharp_since(anchor.raw)
        && let Some(rate) = pair.rate_since(anchor.raw)
    {
        RATE.store(rate, Ordering::Relaxed);
        REFERENCE.write(pair);
    }
}

/// No clock is built on the counter any more; threads find out when they next ask the kernel.
#[cold]
pub(crate) fn give_up() {
    BROKEN.store(true, Ordering::Relaxed);
}

/// Whether the counter was found to have changed.
pub(crate) fn is_broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Nanoseconds per tick, in 2^-32; 0 before the first calibration.
#[inline]
pub(crate) fn rate() -> u64 {
    RATE.load(Ordering::Relaxed)
}

/// Whether the kernel could use the counter as its clock, which one that it has found unstable is not; yes
/// where it does not say. No allocation: a signal handler may come here.
fn kernel_offers_it() -> bool {
    let mut list = [0; 256];
    rustix::fs::open(SOURCES, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut list))
        .map_or(true, |length| lists_tsc(&list[..length]))
}

/// `tsc-early` is the counter too, until it has been measured against another clock.
fn lists_tsc(sources: &[u8]) -> bool {
    sources.split(u8::is_ascii_whitespace).any(|source| source == b"tsc" || source == b"tsc-early")
}

/// In a fork child nobody goes on writing what another thread of the parent had begun to.
pub(crate) fn forget() {
    let version = REFERENCE.version.load(Ordering::Relaxed);
    if !version.is_multiple_of(2) {
        REFERENCE.version.store(version.wrapping_add(1), Ordering::Relaxed);
        REFERENCE.write(Pair::now(raw_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One tick a nanosecond.
    const ONE: u64 = 1 << 32;

    fn pair(tsc: u64, ns: u64, width: u64) -> Pair {
        Pair { tsc, ns, width }
    }

    #[test]
    fn a_counter_that_jumps_either_way_or_runs_faster_does_not_fit() {
        let start = pair(1_000_000_000, 0, 0);
        assert!(pair(1_000_500_000, 510_000, 30).fits(start, ONE));
        assert!(!pair(1_000_500_000, 550_000, 30).fits(start, ONE), "stood still for 50 us");
        assert!(!pair(5, 100_000, 30).fits(start, ONE), "began again");
        assert!(!pair(2_002_000_000, 1_000_000_000, 30).fits(start, ONE), "two parts in a thousand");
        assert!(pair(2_000_500_000, 1_000_000_000, 30).fits(start, ONE));
    }

    #[test]
    fn a_pair_with_an_interruption_in_it_is_no_evidence() {
        let start = pair(0, 0, 0);
        // 4 ms away after the counter was read and before the clock was.
        assert!(pair(3_000_000, 5_000_000, 4_000_000).fits(start, ONE));
    }

    #[test]
    fn a_rate_from_wide_pairs_is_not_taken() {
        let start = pair(0, 0, 400);
        assert!(pair(2_000_000, 1_000_000, 400).is_sharp_since(start));
        assert!(!pair(2_000_000, 1_000_000, 2_000).is_sharp_since(start));
    }

    #[test]
    fn a_counter_that_the_kernel_has_given_up_is_not_in_its_list() {
        assert!(lists_tsc(b"tsc kvm-clock \n") && lists_tsc(b"kvm-clock tsc-early\n"));
        assert!(!lists_tsc(b"kvm-clock acpi_pm \n") && !lists_tsc(b"hyperv_clocksource_tsc_page\n"));
    }

    #[test]
    fn the_rate_stays_what_it_was_when_it_is_measured_again() {
        assert_eq!(test(), Ok(()));
        let before = rate();
        let start = Instant::now();
        while start.elapsed() < 20 * FIRST {
            assert!(holds());
        }
        assert!(rate().abs_diff(before) <= before / 1000, "{} after {before}", rate());
    }
}
