//! The clock as a PMU: CPU time is a count of nanoseconds.

use super::Pmu;

/// The calling thread's CPU time, by the cheapest tier of its clock.
#[derive(Debug)]
pub(super) struct ThreadClock;

impl Pmu for ThreadClock {
    fn name(&self) -> &'static str {
        "clock"
    }

    #[inline]
    fn read(&self, _events: &[u32], values: &mut [u64]) {
        values.fill(dormouse_clock::thread_cpu_ns());
    }
}
