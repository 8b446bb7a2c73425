//! The clock as a PMU: CPU time is a count of nanoseconds.

use dormouse_sys::thread::ThreadBlock;

use super::event::{Event, Pmu, Unit};

impl Event {
    /// CPU time of the thread, in nanoseconds.
    pub const TASK_CLOCK: Self = Self::new("task-clock", &ThreadClock, 0);
}

/// The calling thread's CPU time, by the cheapest tier of its clock.
#[derive(Debug)]
struct ThreadClock;

impl Pmu for ThreadClock {
    fn name(&self) -> &'static str {
        "clock"
    }

    #[inline]
    fn read(&self, _events: &[u32], values: &mut [u64]) {
        values.fill(dormouse_clock::thread_cpu_ns_end());
    }

    fn read_of(&self, thread: &ThreadBlock, _events: &[u32], values: &mut [u64]) -> bool {
        // The owner's clock may be a little ahead of the kernel's answer.
        let now = dormouse_clock::thread_cpu_ns_of(thread.tid());
        now.inspect(|&now| values.fill(now)).is_some()
    }

    fn unit(&self, _event: u32) -> Unit {
        Unit::Nanoseconds
    }
}
