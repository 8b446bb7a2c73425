//! Waiting for other threads to leave a place in which they stay for nanoseconds.
//!
//! They may be descheduled there, so the waiting thread sleeps after some rounds: a real-time
//! thread that only yielded would keep the processor from them. They may also never leave, because
//! a signal handler of the host has left their call by `siglongjmp`. So a wait ends after a number
//! of rounds.

use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::futex;
use rustix::time::Timespec;

/// How often the waiting thread yields before it sleeps.
const YIELDS: u32 = 64;

/// How long one sleep is.
const SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How many sleeps are longer than anybody can be descheduled: ten seconds.
pub(super) const LONG: u32 = 10_000;
/// A wait short enough to keep other threads waiting.
pub(super) const SHORT: u32 = 20;

/// Waits until `is_right` accepts `word`. Returns false if that did not happen within `sleeps`
/// rounds.
pub(super) fn until(word: &AtomicU32, sleeps: u32, is_right: impl Fn(u32) -> bool) -> bool {
    for round in 0..YIELDS + sleeps {
        // Sequentially consistent for `cells`; its other uses need acquire.
        let now = word.load(Ordering::SeqCst);
        if is_right(now) {
            return true;
        }
        if round < YIELDS {
            std::thread::yield_now();
        } else {
            // Nobody wakes us. Refused by a filter, it is one round less.
            let _ = futex::wait(word, now, Some(&SLEEP));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_word_or_without() {
        let word = AtomicU32::new(1);
        assert!(!until(&word, 2, |word| word == 0));
        std::thread::scope(|scope| {
            scope.spawn(|| word.store(0, Ordering::SeqCst));
            assert!(until(&word, LONG, |word| word == 0));
        });
    }
}
