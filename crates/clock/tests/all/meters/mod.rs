//! Meters for the budgets of tests.

use dormouse_clock::{CpuMeter, process_exact, thread_cpu_ns_of};

/// CPU time of a thread of this process while it is there, a little behind the kernel's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OfThread(pub(crate) u32);

impl OfThread {
    pub(crate) fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_pid().cast_unsigned())
    }
}

impl CpuMeter for OfThread {
    fn cpu_ns(&self) -> Option<u64> {
        thread_cpu_ns_of(self.0).map(|ns| ns.saturating_sub(20_000))
    }

    fn processors(&self) -> usize {
        1
    }
}

/// CPU time of this process; where a filter refuses the list of its threads, the kernel's plain
/// answer.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "each test program uses a part")]
pub(crate) struct OfProcess;

impl CpuMeter for OfProcess {
    fn cpu_ns(&self) -> Option<u64> {
        process_exact().ok()
    }
}
