//! The time that dormouse takes on the service's threads, measured there: one call of [`ONE_IN`] is
//! timed by the counter, with caches and system calls as they are in the service.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::point::ticks_to_ns;
use crate::stamp::stamp;
use crate::tier;

/// A prime: the calls of one request repeat, and each has its turn in some request.
const ONE_IN: u64 = 61;

/// A call that seems to take longer was interrupted, and is left out.
const LONGEST_NS: u64 = 50_000;

/// The time that calls of a kind have taken so far.
#[derive(Debug, Default)]
pub struct Overhead(AtomicU64);

/// Polls, entries, beginnings and ends of tasks, and outgoing calls.
pub static TASKS: Overhead = Overhead(AtomicU64::new(0));
/// Records of probes.
pub static RECORDS: Overhead = Overhead(AtomicU64::new(0));

thread_local! {
    /// How many calls of the thread come before the next one that is timed.
    static BEFORE: Cell<u64> = const { Cell::new(0) };
}

impl Overhead {
    /// In nanoseconds: an estimate.
    pub fn ns(&self) -> u64 {
        ticks_to_ns(self.0.load(Ordering::Relaxed).saturating_mul(ONE_IN))
    }

    /// A call of this kind begins, and ends with the guard. It may be timed, after
    /// [`prepare`](crate::prepare): before that the thread may have forbidden itself the counter.
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
        let before = BEFORE.get();
        if before > 0 {
            BEFORE.set(before - 1);
            return Timed { of: self, since: 0 };
        }
        self.begin_timed()
    }

    #[cold]
    fn begin_timed(&'static self) -> Timed {
        BEFORE.set(ONE_IN - 1);
        if !tier::is_prepared() {
            return Timed { of: self, since: 0 };
        }
        // Less the time that it takes to read a stamp.
        let before = stamp();
        let now = stamp();
        Timed { of: self, since: now.saturating_add(now.saturating_sub(before)).max(1) }
    }

    fn add(&self, ticks: u64) {
        if ticks_to_ns(ticks) < LONGEST_NS {
            self.0.fetch_add(ticks, Ordering::Relaxed);
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
        self.of.add(stamp().saturating_sub(self.since));
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
    use dormouse_testkit::in_child;

    use super::*;
    use crate::point::ns_to_ticks;
    use crate::prepare;

    #[test]
    fn one_call_in_some_is_timed() {
        in_child(|| {
            static CALLS: Overhead = Overhead(AtomicU64::new(0));
            let timed = || (0..10 * ONE_IN).filter(|_| CALLS.begin().since != 0).count();
            assert_eq!((timed(), CALLS.ns()), (0, 0), "the thread may have forbidden itself the counter");
            prepare();
            assert_eq!(timed(), 10);
        });
    }

    #[test]
    fn an_interrupted_call_is_left_out() {
        let calls = Overhead::default();
        calls.add(ns_to_ticks(2 * LONGEST_NS));
        assert_eq!(calls.ns(), 0);
        calls.add(ns_to_ticks(LONGEST_NS / 2));
        assert!(calls.ns().abs_diff(ONE_IN * LONGEST_NS / 2) < ONE_IN * 2, "{}", calls.ns());
    }
}
