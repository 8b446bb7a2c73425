//! The time that dormouse takes on the service's threads, measured there: one call in 61 is timed
//! by the counter, with caches and system calls as they are in the service.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::point::ticks_to_ns;
use crate::stamp::{is_chosen, stamp};
use crate::thread::has_counter;
use crate::tier::is_prepared;

/// A prime: the calls of one request repeat, and each has its turn in some request.
const ONE_IN: u64 = 61;

/// A call that seems to take longer was interrupted, and counts as one that was not timed.
const LONGEST_NS: u64 = 50_000;

/// The time that calls of a kind have taken so far.
#[derive(Debug)]
pub struct Overhead {
    ticks: AtomicU64,
    /// The calls in it.
    calls: AtomicU64,
    /// Calls that could not be timed before any other one was.
    untimed: AtomicU64,
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
        Self { ticks: AtomicU64::new(0), calls: AtomicU64::new(0), untimed: AtomicU64::new(0) }
    }

    /// In nanoseconds: an estimate, in which a call that could not be timed took as long as the
    /// mean of those before it. `None` if none was timed, and some could not be. It never goes
    /// back.
    pub fn ns(&self) -> Option<u64> {
        let [ticks, calls, untimed] =
            [&self.ticks, &self.calls, &self.untimed].map(|of| of.load(Ordering::Relaxed));
        (calls > 0 || untimed == 0).then(|| ticks_to_ns(ticks.saturating_mul(ONE_IN)))
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
            self.pass_over();
            return Timed { of: self, since: 0 };
        }
        // Less the time that it takes to read a stamp.
        let before = stamp();
        let now = stamp();
        Timed { of: self, since: now.saturating_add(now.saturating_sub(before)).max(1) }
    }

    fn add(&self, ticks: u64) {
        if ticks_to_ns(ticks) >= LONGEST_NS {
            return self.pass_over();
        }
        let calls = 1 + self.untimed.swap(0, Ordering::Relaxed);
        self.calls.fetch_add(calls, Ordering::Relaxed);
        self.ticks.fetch_add(calls.saturating_mul(ticks), Ordering::Relaxed);
    }

    /// A call whose turn it was could not be timed.
    fn pass_over(&self) {
        let [ticks, calls] = [&self.ticks, &self.calls].map(|of| of.load(Ordering::Relaxed));
        match ticks.checked_div(calls) {
            Some(mean) => {
                self.ticks.fetch_add(mean, Ordering::Relaxed);
                self.calls.fetch_add(1, Ordering::Relaxed);
            }
            None => _ = self.untimed.fetch_add(1, Ordering::Relaxed),
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
        calls.add(ns_to_ticks(2 * LONGEST_NS));
        assert_eq!(calls.ns(), None, "it was interrupted");
        calls.add(ns_to_ticks(LONGEST_NS / 2));
        let ns = calls.ns().unwrap();
        assert!(ns.abs_diff(ONE_IN * LONGEST_NS) < ONE_IN * 4, "{ns}");
        calls.pass_over();
        calls.pass_over();
        assert!(calls.ns().unwrap().abs_diff(2 * ns) < ONE_IN * 8);
    }
}
