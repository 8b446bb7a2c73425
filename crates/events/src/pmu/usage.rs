//! Switches and faults of the calling thread, which the kernel is asked for only if they can have
//! changed.
//!
//! `getrusage` takes some 300 ns, and an eager poll needs two readings. But in less time than a
//! page fault takes none has happened, and a switch to another thread takes longer still. So while
//! two readings are closer together than a *short gap*, the second one is the first: what is known
//! from a call is good for any number of short gaps in a row.
//!
//! The short gap is a third of the quickest of some page faults, measured when the first of these
//! events begins to be counted: the processor may run faster later than it did then. Where the
//! counter cannot be trusted ([`dormouse_clock::Tier::Syscall`]), each reading is a call.
//!
//! # Invariants
//!
//! 1. `seen` is 0, or the thread has had neither a fault nor a switch nor a signal from the call
//!    that returned `kept` until the counter stood at `seen`.
//!
//! # Safety
//!
//! The unsafe code is a call of the C library, and a mapping of its own.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use dormouse_clock::{Tier, rdtsc};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Pages of the measurement.
const PAGES: usize = 64;
/// Short gaps in a fault.
const PARTS: u64 = 3;

/// A short gap in ticks; 0: not measured.
static SHORT_GAP: AtomicU64 = AtomicU64::new(0);

/// Counts of one thread.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) switches: u64,
    pub(super) faults: u64,
    pub(super) major_faults: u64,
}

/// The last answer of the kernel to a thread.
struct Known {
    kept: Cell<Usage>,
    seen: Cell<u64>,
}

thread_local! {
    static KNOWN: Known = const {
        Known { kept: Cell::new(Usage { switches: 0, faults: 0, major_faults: 0 }), seen: Cell::new(0) }
    };
}

impl Usage {
    /// The counts of the calling thread.
    #[inline]
    pub(super) fn now() -> Self {
        KNOWN.with(|known| known.read(SHORT_GAP.load(Ordering::Relaxed), rdtsc, Self::asked))
    }

    fn asked() -> Self {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: `usage` is a valid place. The call fails for an unknown `who` or a bad address
        // only; then `usage` stays zero, and a count that seems to go back adds nothing.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init()
        };
        Self {
            switches: usage.ru_nvcsw.cast_unsigned() + usage.ru_nivcsw.cast_unsigned(),
            faults: usage.ru_minflt.cast_unsigned() + usage.ru_majflt.cast_unsigned(),
            major_faults: usage.ru_majflt.cast_unsigned(),
        }
    }
}

impl Known {
    #[inline]
    fn read(&self, short: u64, counter: impl Fn() -> u64, ask: impl Fn() -> Usage) -> Usage {
        let before = self.seen.get();
        if before != 0 {
            // Before the counter is read: a handler that comes later leaves newer counts.
            let kept = self.kept.get();
            compiler_fence(Ordering::SeqCst);
            let now = counter();
            if now.wrapping_sub(before) <= short {
                self.seen.set(now);
                return kept;
            }
        }
        self.ask(short, counter, ask)
    }

    #[cold]
    fn ask(&self, short: u64, counter: impl Fn() -> u64, ask: impl Fn() -> Usage) -> Usage {
        self.seen.set(0);
        // The thread may not read the counter, or not trust it.
        if short == 0 || dormouse_clock::tier() == Tier::Syscall {
            return ask();
        }
        let start = counter();
        let usage = ask();
        compiler_fence(Ordering::SeqCst);
        self.kept.set(usage);
        compiler_fence(Ordering::SeqCst);
        let now = counter();
        // Else a fault, a switch or a signal may have come after the kernel had counted, and a
        // handler may have kept newer counts before these.
        self.seen.set(if now.wrapping_sub(start) <= PARTS * short { now } else { 0 });
        usage
    }
}

/// Measures the short gap, if it was not measured before.
pub(super) fn measure() {
    if SHORT_GAP.load(Ordering::Relaxed) == 0 && dormouse_clock::tier() != Tier::Syscall {
        SHORT_GAP.store(quickest_fault().unwrap_or(0) / PARTS, Ordering::Relaxed);
    }
}

/// The ticks of the quickest of some page faults; `None` if not every page faulted.
fn quickest_fault() -> Option<u64> {
    let page = rustix::param::page_size();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping overlaps no other.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGES * page, protection, flags) }.ok()?;
    let before = Usage::asked().faults;
    let touch = |number: usize| {
        let from = rdtsc();
        // SAFETY: inside the mapping. The first read of a page maps the kernel's page of zeros,
        // which is the least that a fault can do.
        unsafe { start.cast::<u8>().add(number * page).read_volatile() };
        rdtsc().wrapping_sub(from)
    };
    let quickest = (0..PAGES).map(touch).min();
    let faults = Usage::asked().faults - before;
    // SAFETY: the mapping is our own, and nothing refers to it.
    let _unmapped = unsafe { munmap(start, PAGES * page) };
    quickest.filter(|_| faults >= PAGES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: u64 = 100;

    /// A thread whose calls take two short gaps.
    struct Thread {
        known: Known,
        now: Cell<u64>,
        faults: Cell<u64>,
        asked: Cell<u32>,
        call: Cell<u64>,
    }

    impl Thread {
        fn new() -> Self {
            let known = Known { kept: Cell::default(), seen: Cell::new(0) };
            let (now, call) = (Cell::new(5_000), Cell::new(2 * SHORT));
            Self { known, now, faults: Cell::new(7), asked: Cell::new(0), call }
        }

        fn pass(&self, ticks: u64) {
            self.now.set(self.now.get() + ticks);
        }

        fn read(&self) -> u64 {
            let ask = || {
                self.asked.set(self.asked.get() + 1);
                let usage = Usage { faults: self.faults.get(), ..Usage::default() };
                self.pass(self.call.get());
                usage
            };
            self.known.read(SHORT, || self.now.get(), ask).faults
        }
    }

    #[test]
    fn short_gaps_in_a_row_need_one_call() {
        if dormouse_clock::tier() == Tier::Syscall {
            return dormouse_testkit::skip("the counter cannot be trusted here");
        }
        let thread = Thread::new();
        for _ in 0..50 {
            assert_eq!(thread.read(), 7);
            thread.pass(SHORT);
        }
        assert_eq!(thread.asked.get(), 1);
        thread.pass(1);
        thread.faults.set(8);
        assert_eq!((thread.read(), thread.asked.get()), (8, 2));
    }

    #[test]
    fn a_call_with_a_possible_fault_is_forgotten() {
        let thread = Thread::new();
        thread.call.set(PARTS * SHORT + 1);
        for asked in 1..5 {
            thread.read();
            assert_eq!(thread.asked.get(), asked);
        }
    }

    #[test]
    fn no_page_fault_fits_into_a_short_gap() {
        if dormouse_clock::tier() == Tier::Syscall {
            return dormouse_testkit::skip("the counter cannot be trusted here");
        }
        measure();
        let (short, later) = (SHORT_GAP.load(Ordering::Relaxed), quickest_fault());
        assert!(short > 0 && later.is_some_and(|fault| fault > short), "{short} ticks, {later:?}");
        // A reading has all faults since the one before, however close they are.
        for _ in 0..100 {
            let before = Usage::now().faults;
            assert!(quickest_fault().is_some());
            assert!(Usage::now().faults >= before + PAGES as u64);
        }
    }
}
