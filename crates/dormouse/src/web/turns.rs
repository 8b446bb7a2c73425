//! A limit on the number of threads of one kind that answer at once.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::process::identity;

/// The number of threads, in the lower half; the upper half counts forks, and identifies the
/// process.
#[derive(Debug)]
pub(crate) struct Turns(AtomicU64);

/// One of those that may be at once.
#[derive(Debug)]
pub(crate) struct Turn {
    of: &'static Turns,
    forks: u32,
}

impl Turns {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Takes one of `at_once` turns; `None` if all are taken.
    pub(crate) fn take(&'static self, at_once: u64) -> Option<Turn> {
        let forks = identity::forks();
        let more = |there: u64| {
            let running = if there >> 32 == u64::from(forks) { there & u64::from(u32::MAX) } else { 0 };
            (running < at_once).then_some(u64::from(forks) << 32 | (running + 1))
        };
        // Not made where there is no room: dropped, it would give back another's.
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        taken.then(|| Turn { of: self, forks })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A parent's is none of its child's.
        let less = |there: u64| (there >> 32 == u64::from(self.forks)).then(|| there - 1);
        let _ = self.of.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}
