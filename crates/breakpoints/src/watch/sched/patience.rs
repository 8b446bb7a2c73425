//! Waiting for threads that are in a place for microseconds, and may be descheduled there.

use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::futex;
use rustix::time::Timespec;

/// How often the waiting thread yields before it sleeps: a real-time thread that only yielded would
/// keep the processor from the others.
const YIELDS: u32 = 64;
/// How long one sleep is.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A number of sleeps short enough to keep other threads waiting.
pub(super) const SHORT: u32 = 20;
/// More than a thread can be descheduled for: ten seconds. A thread that is not back by then has
/// left by `siglongjmp`.
pub(super) const LONG: u32 = 10_000;

/// Waits until `is_so`, which depends on `word`; false if it does not become so.
pub(super) fn until(word: &AtomicU32, sleeps: u32, is_so: impl Fn() -> bool) -> bool {
    for round in 0..YIELDS + sleeps {
        if is_so() {
            return true;
        }
        if round < YIELDS {
            std::thread::yield_now();
        } else {
            // Nobody wakes us. Refused by a filter, it is one round less.
            let _ = futex::wait(word, word.load(Ordering::Relaxed), Some(&SLEEP));
        }
    }
    false
}
