//! The time that dormouse takes on the service's threads, measured there: one call in 61 is timed
//! by the counter, with caches and system calls as they are in the service.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::point::ticks_to_ns;
use crate::stamp::{is_chosen, stamp};
use crate::thread::has_counter;
use crate::tier::is_prepared;

/// A prime: the calls of one request repeat, and each has its turn in some request.
const ONE_IN: u64 = 61;

/// A call that seems to take longer was interrupted, and counts as one that was not timed.
const LONGEST_NS: u64 = 50_000;

/// From as many calls on that were timed, others count as their mean.
const ENOUGH: u64 = 16;

/// The time that calls of a kind have taken so far.
#[derive(Debug)]
pub struct Overhead {
    /// The time of the calls that were timed. A counter with ticks longer than a call gives some of
    /// them less than nothing, and others too much.
    ticks: AtomicI64,
    timed: AtomicU64,
    /// Calls whose turn it was, and which could not be timed.
    untimed: AtomicU64,
    /// The most nanoseconds that were returned.
    shown: AtomicU64,
}

/// Polls, entries, beginnings and ends of tasks, outgoing calls, and waits for locks.
pub static TASKS: Overhead = Overhead::new();
/// Records of probes.
pub static RECORDS: Overhead = Overhead::new();

/// How many threads have made their first call.
static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The next call that is timed: 1 is the next one of all. 0: the thread has made none.
    static NEXT: Cell<u64> = const { Cell::new(0) };
}

impl Overhead {
    const fn new() -> Self {
        let [timed, untimed, shown] = [const { AtomicU64::new(0) }; 3];
        Self { ticks: AtomicI64::new(0), timed, untimed, shown }
    }

    /// In nanoseconds: an estimate, in which calls that could not be timed took as long as others.
    /// `None` if none was timed, and some could not be. It never goes back.
    pub fn ns(&self) -> Option<u64> {
        let ticks = self.ticks.load(Ordering::Relaxed).max(0).cast_unsigned();
        let [timed, untimed] = [&self.timed, &self.untimed].map(|of| of.load(Ordering::Relaxed));
        if timed == 0 && untimed > 0 {
            return None;
        }
        let of_others =
            if timed < ENOUGH { 0 } else { u128::from(ticks) * u128::from(untimed) / u128::from(timed) };
        let all = u128::from(ONE_IN) * (u128::from(ticks) + of_others);
        let now = ticks_to_ns(u64::try_from(all).unwrap_or(u64::MAX));
        Some(self.shown.fetch_max(now, Ordering::Relaxed).max(now))
    }

    /// A call of this kind begins, and ends with the guard. It may be timed, where the thread's
    /// clock reads the counter, or after [`prepare`](crate::prepare): any other thread may have
    /// forbidden itself the counter.
    ///
    /// # Cost
    ///
    /// Some five instructions, for code that runs while somebody looks.
    ///
    /// # Async-signal-safety
    ///
    /// For signal handlers, too. Their time is also in that of the call that they interrupt.
    #[inline]
    pub fn begin(&'static self) -> Timed {
        let next = NEXT.get();
        if next > 1 {
            NEXT.set(next - 1);
            return Timed { of: self, since: 0 };
        }
        self.begin_timed(next)
    }

    #[cold]
    fn begin_timed(&'static self, next: u64) -> Timed {
        // A thread's first calls are its slowest. In one thread of some the first of them is timed,
        // in another the second, and so on.
        let is_first = next == 0;
        let next = if is_first { THREADS.fetch_add(1, Ordering::Relaxed) % ONE_IN } else { 0 };
        NEXT.set(if next == 0 { ONE_IN } else { next });
        if next != 0 {
            return Timed { of: self, since: 0 };
        }
        // The first stamp of the process makes a system call, and a filter may kill for it.
        if !is_chosen() || !is_prepared() && !has_counter() {
            self.untimed.fetch_add(1, Ordering::Relaxed);
            return Timed { of: self, since: 0 };
        }
        // Less the time that it takes to read a stamp.
        let before = stamp();
        let now = stamp();
        Timed { of: self, since: now.saturating_add(now.saturating_sub(before)).max(1) }
    }

    fn add(&self, ticks: i64) {
        if ticks_to_ns(ticks.unsigned_abs()) < LONGEST_NS {
            self.ticks.fetch_add(ticks, Ordering::Relaxed);
            self.timed.fetch_add(1, Ordering::Relaxed);
        } else {
            self.untimed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A call of dormouse's on a thread of the service.
#[derive(Debug)]
#[must_use = "the call ends when it is dropped"]
pub struct Timed {
    of: &'static Overhead,
    /// The stamp at its beginning; 0: it is not timed.
    since: u64,
}

impl Timed {
    #[cold]
    fn end(&self) {
        self.of.add(stamp().wrapping_sub(self.since).cast_signed());
    }
}

impl Drop for Timed {
    #[inline]
    fn drop(&mut self) {
        if self.since != 0 {
            self.end();
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use dormouse_testkit::{Filter, in_child, skip};

    use super::*;
    use crate::point::ns_to_ticks;
    use crate::{Tier, prepare, tier};

    static CALLS: Overhead = Overhead::new();

    /// How many of ten times the number of calls are timed of which one is.
    fn timed() -> usize {
        (0..10 * ONE_IN).filter(|_| CALLS.begin().since != 0).count()
    }

    #[test]
    fn one_call_in_some_is_timed() {
        in_child(|| {
            assert_eq!(CALLS.ns(), Some(0), "there was none");
            assert_eq!((timed(), CALLS.ns()), (0, None), "the thread may have forbidden itself the counter");
            prepare();
            assert_eq!(timed(), 10);
        });
    }

    #[test]
    fn first_calls_are_timed_as_often_as_others() {
        in_child(|| {
            prepare();
            let first = || std::thread::spawn(|| CALLS.begin().since != 0).join().unwrap();
            assert_eq!((0..3 * ONE_IN).filter(|_| first()).count(), 3);
        });
    }

    #[test]
    fn calls_are_timed_under_a_filter() {
        in_child(|| {
            Filter::refuse(&[libc::SYS_acct]).install();
            stamp();
            if tier() == Tier::Syscall {
                return skip("the clock does not read the counter");
            }
            assert_eq!(timed(), 10);
        });
    }

    #[test]
    fn calls_not_timed_take_as_long_as_others() {
        let calls = Overhead::new();
        let is_near = |right: u64| {
            let ns = calls.ns().unwrap();
            assert!(ns.abs_diff(ONE_IN * right) <= ns / 100, "{ns} {right}");
        };
        calls.add(ns_to_ticks(2 * LONGEST_NS).cast_signed());
        assert_eq!(calls.ns(), None, "it was interrupted");
        let [slow, fast] = [40_000, 100].map(|ns| ns_to_ticks(ns).cast_signed());
        calls.add(slow);
        is_near(40_000);
        (1..1000).for_each(|_| calls.add(fast));
        let mean = ticks_to_ns((slow + 999 * fast).cast_unsigned()) / 1000;
        is_near(1001 * mean);
        calls.untimed.fetch_add(999, Ordering::Relaxed);
        is_near(2000 * mean);
        (0..1000).for_each(|_| calls.add(0));
        is_near(2000 * mean);
    }

    /// Calls of half a tick each, by a counter that is read in a quarter of one.
    #[test]
    fn calls_shorter_than_a_tick_have_their_mean() {
        let calls = Overhead::new();
        let tick = ns_to_ticks(1_000).cast_signed();
        for phase in 0..400_i64 {
            // When the counter is read before the call, at its beginning and at its end.
            let [before, begun, ended] = [phase, phase + 100, phase + 400].map(|at| at / 400);
            calls.add((ended - begun - (begun - before)) * tick);
        }
        let mean = calls.ns().unwrap() / ONE_IN / 400;
        assert!((490..=510).contains(&mean), "{mean}");
    }
}
