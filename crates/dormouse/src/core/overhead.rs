//! The time that dormouse takes on the service's threads, measured there: one call of [`ONE_IN`] is
//! timed by the counter, with caches and system calls as they are in the service.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::{stamp, ticks_to_ns};

/// A prime: the calls of one request repeat, and each has its turn in some request.
const ONE_IN: u64 = 61;

/// A call that seems to take longer was interrupted, and is left out.
const LONGEST_NS: u64 = 50_000;

/// The time that calls of a kind have taken so far.
#[derive(Debug, Default)]
pub(crate) struct Spent(AtomicU64);

/// Beginnings, polls and ends of tasks, entries of groups, and outgoing calls.
pub(crate) static TASKS: Spent = Spent(AtomicU64::new(0));
/// Records of probes.
pub(crate) static RECORDS: Spent = Spent(AtomicU64::new(0));

thread_local! {
    /// How many calls of the thread come before the next one that is timed.
    static BEFORE: Cell<u64> = const { Cell::new(0) };
}

impl Spent {
    /// In nanoseconds: an estimate.
    pub(crate) fn ns(&self) -> u64 {
        ticks_to_ns(self.0.load(Ordering::Relaxed).saturating_mul(ONE_IN))
    }
}

/// A call of dormouse's on a thread of the service, which may be timed.
///
/// # Async-signal-safety
///
/// A handler may time calls of its own. Its time is also in that of the call that it interrupts.
#[derive(Debug)]
#[must_use = "a call is timed until `end`"]
pub(crate) struct Timed {
    /// The stamp at its beginning, or when it went on; 0: it is not timed.
    since: u64,
    /// Ticks before that.
    ticks: u64,
}

impl Timed {
    const NOT: Self = Self { since: 0, ticks: 0 };

    /// Two sleeping instructions while nothing is counted and no times are taken.
    #[inline]
    pub(crate) fn begin() -> Self {
        let is_awake = dormouse_events::is_counting() || dormouse_waits::are_times_taken();
        if is_awake { Self::begin_awake() } else { Self::NOT }
    }

    #[inline(never)]
    pub(crate) fn begin_awake() -> Self {
        let before = BEFORE.get();
        BEFORE.set(before.checked_sub(1).unwrap_or(ONE_IN - 1));
        if before > 0 { Self::NOT } else { Self { since: begun(), ticks: 0 } }
    }

    /// Does `f`, the service's own work.
    #[inline]
    pub(crate) fn without<T>(&mut self, f: impl FnOnce() -> T) -> T {
        if self.since != 0 {
            self.pause();
        }
        let done = f();
        if self.since != 0 {
            self.since = begun();
        }
        done
    }

    #[inline]
    pub(crate) fn end(mut self, of: &Spent) {
        if self.since != 0 {
            self.pause();
            of.add(self.ticks);
        }
    }

    #[cold]
    fn pause(&mut self) {
        self.ticks += stamp().saturating_sub(self.since);
    }
}

impl Spent {
    #[cold]
    fn add(&self, ticks: u64) {
        if ticks_to_ns(ticks) < LONGEST_NS {
            self.0.fetch_add(ticks, Ordering::Relaxed);
        }
    }
}

/// The present stamp, and the time that it takes to read one: so a call that does nothing takes no
/// time.
#[cold]
fn begun() -> u64 {
    let before = stamp();
    let now = stamp();
    now.saturating_add(now.saturating_sub(before)).max(1)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::time::{Duration, Instant};

    use dormouse_clock::ns_to_ticks;

    use super::*;
    use crate::core::group::Group;

    fn spin(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {}
    }

    #[cfg(not(dormouse_fallback))]
    #[test]
    fn the_services_own_work_is_not_in_it() {
        dormouse_testkit::in_child(|| {
            let group = Group::new("spins");
            let work = Duration::from_micros(40);
            let calls = || (0..3 * ONE_IN).for_each(|_| group.scope(|| spin(work)));
            calls();
            assert_eq!(TASKS.ns(), 0, "nothing is counted");
            let _waiting = dormouse_waits::Waiting::start().unwrap();
            calls();
            let worked = work.as_nanos() as u64 * 3 * ONE_IN;
            assert!((1..worked).contains(&TASKS.ns()), "{} of {worked}", TASKS.ns());
        });
    }

    #[test]
    fn an_interrupted_call_is_left_out() {
        let spent = Spent::default();
        spent.add(ns_to_ticks(2 * LONGEST_NS));
        assert_eq!(spent.ns(), 0);
        spent.add(ns_to_ticks(LONGEST_NS / 2));
        assert!(spent.ns().abs_diff(ONE_IN * LONGEST_NS / 2) < ONE_IN * 2, "{}", spent.ns());
    }
}
