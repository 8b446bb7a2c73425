//! Work of a known size, and a check whether it was charged.
#![allow(clippy::disallowed_methods, reason = "tests run under no such filter, and ask as hosts do")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How far a charge may be off: what a noisy machine takes away inside an epoch of the clock.
const SLACK: Duration = Duration::from_millis(8);

/// How much longer than it was asked for work has taken in this process, in nanoseconds. A virtual
/// processor that stands still meanwhile has its time counted as the thread's: by the kernel, and
/// so by dormouse.
static OVERTIME: AtomicU64 = AtomicU64::new(0);
/// A shorter overtime is that of the loop.
const STANDS_STILL: Duration = Duration::from_millis(1);

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
    let mut now = thread_cpu();
    while now < end {
        now = thread_cpu();
    }
    let over = now.saturating_sub(end);
    if over >= STANDS_STILL {
        OVERTIME.fetch_add(over.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// Whether the processor is emulated. To run code for the first time takes long there, and a
/// question to the kernel microseconds.
fn is_emulated() -> bool {
    static IS: LazyLock<bool> = LazyLock::new(|| {
        let mut costs: Vec<_> = (0..51).map(|_| thread_cpu()).collect();
        costs = costs.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        costs.sort_unstable();
        costs[costs.len() / 2] > Duration::from_nanos(1500)
    });
    *IS
}

/// Asserts that `charged` is `work` of [`spin_for`], give or take 8 ms. It may be longer by the
/// overtime of this process, and where the processor is emulated by as much again.
#[track_caller]
pub fn assert_about(charged: Duration, work: Duration) {
    let mut over = Duration::from_nanos(OVERTIME.load(Ordering::Relaxed));
    if is_emulated() {
        over += work;
    }
    assert!(
        charged + SLACK >= work && charged <= work + SLACK + over,
        "{charged:?} for {work:?} of work, and {over:?} of overtime",
    );
}
