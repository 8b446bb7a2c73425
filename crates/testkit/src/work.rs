//! Work of a known size, and a check whether it was charged.
#![allow(clippy::disallowed_methods, reason = "tests run under no such filter, and ask as hosts do")]

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How far a charge may be off: what a noisy machine takes away inside an epoch of the clock.
const SLACK: Duration = Duration::from_millis(8);

/// The CPU time of the calling thread by the kernel's clock.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The CPU time of this process, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Uses this much CPU time on the calling thread.
pub fn spin_for(time: Duration) {
    let end = thread_cpu() + time;
    while thread_cpu() < end {}
}

/// Asserts that `charged` is `work`, give or take 8 ms.
#[track_caller]
pub fn assert_about(charged: Duration, work: Duration) {
    assert!(charged.abs_diff(work) <= SLACK, "{charged:?} for {work:?} of work");
}
