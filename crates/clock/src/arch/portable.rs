//! Everywhere else: no counter that could be trusted, so the syscall tier is all there is.

use std::cell::Cell;

/// Nanoseconds of the monotonic clock, standing in for a counter.
pub fn rdtsc() -> u64 {
    dormouse_sys::clock::monotonic_ns()
}

pub(crate) fn tsc_faults() -> bool {
    false
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
