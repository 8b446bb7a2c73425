//! All other architectures: no trustworthy counter, so only the syscall tier is available.

use std::cell::Cell;

/// No clock source of the kernel's is a counter that can be read.
pub(crate) const CLOCK_SOURCES: &[&[u8]] = &[];

/// Nanoseconds of the monotonic clock, in place of a counter.
pub fn rdtsc() -> u64 {
    dormouse_sys::clock::monotonic_ns()
}

pub(crate) fn tsc_readable() -> Result<(), &'static str> {
    Err("no time stamp counter is known on this architecture")
}

pub(crate) fn advance(cell: &Cell<u64>, old: u64, new: u64) -> bool {
    let same = cell.get() == old;
    if same {
        cell.set(new);
    }
    same
}
