//! The rows of tasks and of processes that hand a token round: sizes and events.

use dormouse_sys::perf::KernelEvent;

use crate::row::Spec;

/// Tasks or processes in a ring, as in the origin's table.
pub(super) const SIZES: [usize; 3] = [2, 8, 32];

/// The origin's events: four of the processor's, four of the kernel's.
pub(super) const HARDWARE: [KernelEvent; 8] = [
    KernelEvent::Cycles,
    KernelEvent::Instructions,
    KernelEvent::CacheReferences,
    KernelEvent::CacheMisses,
    KernelEvent::TaskClock,
    KernelEvent::ContextSwitches,
    KernelEvent::CpuMigrations,
    KernelEvent::PageFaults,
];

/// A row of a ring.
pub(super) fn spec(name: String, unit: &'static str, size: usize, events: &[&str]) -> Spec {
    Spec::new(name, unit).per("switch").with("ring", size).with("events", events)
}
