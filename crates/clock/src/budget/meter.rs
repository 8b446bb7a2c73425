//! Meters: anything whose CPU time only grows can have a budget.

use crate::kernel;

/// Something whose CPU time only grows. A budget reads it on the thread that makes the budget, and
/// later on the timer's thread.
///
/// [`CpuMeter::cpu_ns`] is called up to a thousand times a second and must not block. A meter that
/// panics is treated as ended.
pub trait CpuMeter: Send + Sync {
    /// CPU time so far, in nanoseconds; never less than an earlier answer on any thread. `None`
    /// when no more will come: the measured thing has ended.
    fn cpu_ns(&self) -> Option<u64>;

    /// CPU time at the end, in nanoseconds, where that is known; asked after [`CpuMeter::cpu_ns`]
    /// gave `None`.
    fn final_ns(&self) -> Option<u64> {
        None
    }

    /// How many processors it can use at once, at most. Fewer than it does makes the budget late.
    fn processors(&self) -> usize {
        kernel::processors()
    }
}
