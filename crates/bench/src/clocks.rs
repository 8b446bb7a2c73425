//! The two clocks of the samples.
//!
//! A loop on one thread is timed by that thread's CPU time, so that what else runs on a shared machine takes
//! part through the caches and the other half of the core alone. What waits for other processors is
//! timed by the wall clock: waiting is the price.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Wall time of `work`.
pub(crate) fn wall<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let result = work();
    (begin.elapsed(), result)
}

/// CPU time of the calling thread over `work`.
pub(crate) fn cpu<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = thread_cpu_ns();
    let result = work();
    (Duration::from_nanos(thread_cpu_ns() - begin), result)
}

/// CPU time of the calling thread as the kernel tells it, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
