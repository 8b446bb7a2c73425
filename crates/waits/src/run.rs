//! Runs: the time between two moments at which nobody asks for times.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::stamp;

/// See [`run`].
static RUN: AtomicU64 = AtomicU64::new(1);
/// When the present run began, as a stamp.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// The number of the present run, or of the last one: a run begins when times are taken and were
/// not before. The times of a task belong to one run, because what happened between two runs is
/// unknown.
#[inline]
pub(crate) fn run() -> u64 {
    RUN.load(Ordering::Relaxed)
}

/// When that run began, as a stamp.
#[inline]
pub(crate) fn run_begun() -> u64 {
    BEGUN.load(Ordering::Relaxed)
}

/// Begins another run.
pub(crate) fn next_run() {
    BEGUN.store(stamp(), Ordering::Relaxed);
    RUN.fetch_add(1, Ordering::Relaxed);
}
