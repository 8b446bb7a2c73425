//! Whether the time stamp counter can be trusted, and its rate.
//!
//! The processor's own statement (CPUID) is missing or wrong in many guests, and does not cover a
//! counter that the kernel has found to be unstable. So the rate is measured against
//! `CLOCK_MONOTONIC_RAW`, which is never slewed: at first over one millisecond, and from then on
//! over the whole time since. At every resync of a thread's clock the two are compared with the
//! pair that the thread saw before. If they differ by more than one in a thousand, the counter was
//! changed (live migration, suspend, a processor out of step) and is no longer used by clocks of
//! CPU time. Stamps are still by it, and keep the last rate from before. Readers of stamps compare
//! the rate since the start, since a process that is only traced has no resyncs. If the kernel
//! gives the counter up later without such a difference, it is still good enough for a millisecond,
//! the longest time without a call to the kernel. So only the first test opens a file.
//!
//! # Invariants
//!
//! 1. All state that threads share is one word, or is set once: no thread finds it half-written,
//!    after a fork or a handler that did not return either.
//!
//! # Async-signal-safety
//!
//! [`holds`] is signal-safe, and makes no system call where the kernel's clock source has none.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::perf::is_filtered;
use dormouse_sys::sync::OnceBox;

use crate::arch;
use crate::kernel::raw_ns;
use crate::stamp::{are_ticks, stamp};

/// The time of the first measurement, in nanoseconds.
const FIRST: u64 = 1_000_000;
/// The longest time of the first measurement, if shorter ones are not precise enough.
const LONGEST_FIRST: u64 = 16_000_000;
/// The distance between counter and clock that is always allowed, in nanoseconds.
const SLACK: u64 = 20_000;
/// The longest time between two measurements, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;
/// The counter has jumped if its rate has changed by more than this part: one in 64. The first rate
/// is right to one in a thousand, or less exactly where the thread was interrupted all the time.
const MOST_CHANGE: u64 = 64;

const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Nanoseconds per tick, in 2^-32.
static RATE: AtomicU64 = AtomicU64::new(0);
static BROKEN: AtomicBool = AtomicBool::new(false);
static ANCHOR: OnceBox<Anchor> = OnceBox::new();
/// The moment, by the raw clock, from which on the rate is measured again.
static RENEWAL: AtomicU64 = AtomicU64::new(u64::MAX);

/// A moment on the counter and on a clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) tsc: u64,
    pub(crate) ns: u64,
    /// Ticks between which the clock was read.
    width: u64,
}

/// The first pairs, from which all later ones are measured.
#[derive(Debug)]
pub(crate) struct Anchor {
    raw: Pair,
    pub(crate) monotonic: Pair,
}

/// A pair that a thread has seen some time ago: the pairs that it sees later must fit.
pub(crate) struct Reference {
    /// Moves when anybody begins to write, a signal handler included.
    writes: Cell<u32>,
    /// There is one, and it is whole.
    is_whole: Cell<bool>,
    tsc: Cell<u64>,
    ns: Cell<u64>,
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

    /// Whether the widths of the two pairs are less than half of the tolerated error of a rate
    /// between them: an interruption in each of the tries leaves a wide pair.
    fn is_sharp_since(self, earlier: Self) -> bool {
        self.width.saturating_add(earlier.width) < self.tsc.wrapping_sub(earlier.tsc) / 2048
    }

    /// Whether it is known well enough for later ones to be compared with it.
    fn is_narrow(self) -> bool {
        (u128::from(self.width) * u128::from(rate())) >> 32 < u128::from(SLACK / 4)
    }

    /// Whether the counter has run at `rate` since `earlier`, as far as this pair can show.
    fn fits(self, earlier: Self, rate: u64) -> bool {
        let ns = |ticks: i64| (i128::from(ticks) * i128::from(rate)) >> 32;
        let by_counter = ns(self.tsc.wrapping_sub(earlier.tsc).cast_signed());
        let by_clock = i128::from(self.ns.wrapping_sub(earlier.ns).cast_signed());
        let allowed = i128::from(SLACK) + ns(self.width.cast_signed()) + by_clock / 1024;
        (by_counter - by_clock).abs() <= allowed
    }
}

impl Reference {
    pub(crate) const fn new() -> Self {
        Self { writes: Cell::new(0), is_whole: Cell::new(false), tsc: Cell::new(0), ns: Cell::new(0) }
    }

    fn get(&self) -> Option<Pair> {
        let writes = self.writes.get();
        compiler_fence(Ordering::SeqCst);
        let whole = self.is_whole.get().then(|| Pair { tsc: self.tsc.get(), ns: self.ns.get(), width: 0 });
        compiler_fence(Ordering::SeqCst);
        // Else a handler has come in between, and the cells may be half of each pair.
        whole.filter(|_| self.writes.get() == writes)
    }

    fn set(&self, pair: Pair) {
        let writes = self.writes.get().wrapping_add(1);
        self.writes.set(writes);
        self.is_whole.set(false);
        compiler_fence(Ordering::SeqCst);
        self.tsc.set(pair.tsc);
        self.ns.set(pair.ns);
        compiler_fence(Ordering::SeqCst);
        // A handler's pair from the middle of this one may be whole, or not: the next resync writes
        // again.
        self.is_whole.set(self.writes.get() == writes);
    }
}

/// Whether a clock can be built on the counter here.
pub(crate) fn test() -> Result<(), String> {
    arch::tsc_readable()?;
    // A filter may end the process for opening a file.
    if !is_filtered() && !kernel_offers_it() {
        return Err("the kernel does not offer the TSC as a clock source: it has found it unstable".into());
    }
    if is_broken() {
        return Err("the TSC has changed its rate".into());
    }
    if !are_ticks() {
        return Err("the thread that took the first time stamp may not read the TSC".into());
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
/// One millisecond at the first call in a process; more where the thread is interrupted all the
/// time.
pub(crate) fn calibrate() -> bool {
    if ANCHOR.get().is_none() {
        if !is_filtered() {
            dormouse_sys::clock::look();
        }
        let mut length = FIRST;
        let (anchor, end) = loop {
            let anchor = Anchor { raw: Pair::now(raw_ns), monotonic: Pair::now(monotonic_ns) };
            let start = raw_ns();
            // A clock that a filter refuses stands at 0.
            while start > 0 && raw_ns().wrapping_sub(start) < length {
                std::hint::spin_loop();
            }
            let end = Pair::now(raw_ns);
            if end.is_sharp_since(anchor.raw) || start == 0 || length == LONGEST_FIRST {
                break (anchor, end);
            }
            length *= 2;
        };
        publish(anchor, end);
    }
    rate() > 0 && !is_broken()
}

/// The first measurement. Threads that measured at once publish one after the other: any of their
/// rates goes with any of their anchors.
fn publish(anchor: Anchor, end: Pair) {
    if let Some(rate) = end.rate_since(anchor.raw) {
        RATE.store(rate, Ordering::Relaxed);
        RENEWAL.store(next_renewal(&anchor, end), Ordering::Relaxed);
    }
    // Last, and releasing: a thread that finds the anchor finds the rate.
    let _ours_or_anothers = ANCHOR.get_or_init(|| Box::new(anchor));
}

/// After twice the time since the anchor.
fn next_renewal(anchor: &Anchor, now: Pair) -> u64 {
    now.ns.saturating_add(now.ns.saturating_sub(anchor.raw.ns).clamp(FIRST, LONGEST))
}

/// The pairs from which the rate is measured.
pub(crate) fn anchor() -> Option<&'static Anchor> {
    ANCHOR.get()
}

/// Whether the counter still runs as it has since the thread last looked; measures the rate again
/// if enough time has passed.
pub(crate) fn holds(reference: &Reference) -> bool {
    let pair = Pair::once(raw_ns);
    if pair.ns == 0 {
        return !is_broken();
    }
    match reference.get() {
        Some(earlier) if !pair.fits(earlier, rate()) => {
            give_up();
            return false;
        }
        // Long enough that a rate which is a little wrong shows.
        Some(earlier) if pair.ns.saturating_sub(earlier.ns) < LONGEST => {}
        _ if pair.is_narrow() => reference.set(pair),
        _ => {}
    }
    if pair.ns >= RENEWAL.load(Ordering::Relaxed) {
        renew();
    }
    !is_broken()
}

#[cold]
fn renew() {
    let Some(anchor) = anchor() else { return };
    let due = RENEWAL.load(Ordering::Relaxed);
    let pair = Pair::now(raw_ns);
    // Else the next resync measures. A counter that was changed keeps its rate: over a jump there
    // is none.
    if is_broken() || pair.ns < due || !pair.is_sharp_since(anchor.raw) {
        return;
    }
    let Some(new) = pair.rate_since(anchor.raw) else { return };
    let before = rate();
    if new.abs_diff(before) > before / MOST_CHANGE {
        return give_up();
    }
    let next = next_renewal(anchor, pair);
    if RENEWAL.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        RATE.store(new, Ordering::Relaxed);
    }
}

/// Gives the counter up if its rate since the anchor is another one, as after a jump.
pub(crate) fn compare() {
    let Some(anchor) = anchor() else { return };
    let (pair, before) = (Pair::now(raw_ns), rate());
    // Without a clock to compare it with, nothing is known.
    if before == 0 || pair.ns == 0 || is_broken() || !pair.is_sharp_since(anchor.raw) {
        return;
    }
    let is_other = |new: u64| new.abs_diff(before) > before / MOST_CHANGE;
    // Without a rate it has begun again.
    if pair.rate_since(anchor.raw).is_none_or(is_other) {
        give_up();
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

/// Whether the kernel could use the counter as its clock; it does not use one that it has found
/// unstable. True where the kernel does not report it.
fn kernel_offers_it() -> bool {
    fs::read(SOURCES).map_or(true, |list| lists_tsc(&list))
}

fn lists_tsc(sources: &[u8]) -> bool {
    sources.split(u8::is_ascii_whitespace).any(|source| arch::CLOCK_SOURCES.contains(&source))
}

#[cfg(test)]
mod tests {
    use dormouse_testkit::in_child;

    use super::*;

    /// One tick a nanosecond.
    const ONE: u64 = 1 << 32;

    fn pair(tsc: u64, ns: u64, width: u64) -> Pair {
        Pair { tsc, ns, width }
    }

    /// The rate is as if the clock had gone half as far as the counter.
    #[cfg(not(miri))] // Needs real time.
    fn jumps(reference: &Reference) {
        let before = rate() * 2;
        RATE.store(before, Ordering::Relaxed);
        let begun = raw_ns();
        while raw_ns() - begun < FIRST {}
        // A thread that was preempted between counter and clock measures nothing.
        dormouse_testkit::eventually(|| {
            RENEWAL.store(0, Ordering::Relaxed);
            !holds(reference)
        });
        assert!(is_broken());
        assert_eq!(rate(), before);
        let hz = 1e9 / (before as f64 / ONE as f64);
        assert!((crate::point().hz - hz).abs() < 1.0, "as stamps are converted");
    }

    #[cfg(not(miri))]
    #[test]
    fn no_rate_is_measured_over_a_jump() {
        in_child(|| {
            assert!(calibrate());
            let reference = Reference::new();
            reference.set(Pair::now(raw_ns));
            jumps(&reference);
        });
        in_child(|| {
            assert!(calibrate());
            jumps(&Reference::new());
        });
    }

    #[cfg(not(miri))]
    #[test]
    fn a_point_finds_a_jump_by_itself() {
        in_child(|| {
            assert!(calibrate());
            let before = rate() * 2;
            RATE.store(before, Ordering::Relaxed);
            // A thread that was preempted between counter and clock measures nothing.
            dormouse_testkit::eventually(|| {
                crate::point();
                is_broken()
            });
            let hz = 1e9 / (before as f64 / ONE as f64);
            assert!((crate::point().hz - hz).abs() < 1.0);
        });
    }

    #[test]
    fn a_counter_that_jumps_does_not_fit() {
        let start = pair(1_000_000_000, 0, 0);
        assert!(pair(1_000_500_000, 510_000, 30).fits(start, ONE));
        assert!(!pair(1_000_500_000, 550_000, 30).fits(start, ONE), "stood still for 50 us");
        assert!(!pair(5, 100_000, 30).fits(start, ONE), "began again");
        assert!(!pair(2_002_000_000, 1_000_000_000, 30).fits(start, ONE), "two parts in a thousand");
        assert!(pair(2_000_500_000, 1_000_000_000, 30).fits(start, ONE));
    }

    #[test]
    fn an_interrupted_pair_is_no_evidence() {
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
    fn a_counter_given_up_is_not_listed() {
        for own in arch::CLOCK_SOURCES {
            assert!(lists_tsc(&[b"kvm-clock ", *own, b"\n"].concat()));
            assert!(lists_tsc(&[*own, b" kvm-clock \n"].concat()));
        }
        assert!(!lists_tsc(b"kvm-clock acpi_pm \n") && !lists_tsc(b"hyperv_clocksource_tsc_page\n"));
    }

    #[cfg(not(miri))]
    #[test]
    fn a_second_measurement_gives_the_same_rate() {
        assert_eq!(test(), Ok(()));
        let before = rate();
        let (start, reference) = (raw_ns(), Reference::new());
        while raw_ns() < start + 20 * FIRST {
            assert!(holds(&reference));
        }
        assert!(rate().abs_diff(before) <= before / 1000, "{} after {before}", rate());
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no counter")]
    fn a_late_first_measurement_does_no_harm() {
        in_child(|| {
            let measured = || {
                let anchor = Anchor { raw: Pair::now(raw_ns), monotonic: Pair::now(monotonic_ns) };
                let start = raw_ns();
                while raw_ns() < start + LONGEST_FIRST {}
                (anchor, Pair::now(raw_ns))
            };
            let (late, in_time) = (measured(), measured());
            publish(in_time.0, in_time.1);
            // A thread that was preempted before it could publish.
            publish(late.0, late.1);
            let (before, start, reference) = (rate(), raw_ns(), Reference::new());
            while raw_ns() < start + 20 * FIRST {
                assert!(holds(&reference));
            }
            assert!(rate().abs_diff(before) <= before / 1000, "{} after {before}", rate());
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no counter")]
    fn a_thread_notices_a_counter_that_jumps() {
        in_child(|| {
            assert_eq!(test(), Ok(()));
            let reference = Reference::new();
            while reference.get().is_none() {
                assert!(holds(&reference));
            }
            let there = reference.get().unwrap();
            // As if the counter had been 10 ms ahead then.
            reference.set(Pair { tsc: there.tsc.wrapping_add(((10 * FIRST) << 32) / rate()), ..there });
            // An interruption in the middle of a check excuses it.
            assert!((0..1000).any(|_| !holds(&reference)));
        });
    }

    #[test]
    fn a_reference_with_a_handler_inside_is_none() {
        let reference = Reference::new();
        reference.set(pair(1, 2, 0));
        assert_eq!(reference.get().map(|seen| (seen.tsc, seen.ns)), Some((1, 2)));
        // As a handler leaves it that came after the first store of the write that it interrupted.
        reference.is_whole.set(false);
        assert!(reference.get().is_none());
    }
}
