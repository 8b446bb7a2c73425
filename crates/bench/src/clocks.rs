//! The clocks of the samples.
//!
//! A loop on one thread is timed by that thread's CPU time, so that other work on a shared machine
//! only has an effect through the caches and the other half of the core. A row that waits for other
//! processors is timed by the wall clock: waiting is its price.

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

/// CPU time of the calling thread by the kernel, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    kernel_ns(ClockId::ThreadCPUTime)
}

/// CPU time of the first thread of this process whose name begins so.
pub(crate) fn thread_cpu_by_name(name: &str) -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let mut named = threads.flatten().filter(|thread| {
        std::fs::read(thread.path().join("comm")).is_ok_and(|comm| comm.starts_with(name.as_bytes()))
    });
    let tid = named.next()?.file_name().to_str()?.parse().ok()?;
    dormouse::clock::thread_cpu_ns_of(tid).map(Duration::from_nanos)
}

/// A clock of the kernel, in nanoseconds.
#[allow(clippy::disallowed_methods, reason = "that of the C library is what others would call")]
pub(crate) fn kernel_ns(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The distance of `time` from the truth, which lies between `least` and `most`; `None` if these
/// are more than `narrow` apart and `time` is between them: such a sample shows nothing.
pub(crate) fn error(least: u64, time: u64, most: u64, narrow: u64) -> Option<u64> {
    if most - least <= narrow {
        return Some(time.abs_diff(least.midpoint(most)));
    }
    let outside = least.saturating_sub(time).max(time.saturating_sub(most));
    (outside > 0).then_some(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_need_narrow_brackets() {
        assert_eq!(error(1000, 1200, 1600, 1000), Some(100));
        assert_eq!(error(1000, 1200, 9000, 1000), None);
        assert_eq!(error(1000, 700, 9000, 1000), Some(300));
        assert_eq!(error(1000, 9500, 9000, 1000), Some(500));
    }
}
