//! Time stamps: the counter where it may be read, and one source for the whole life of the process.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::arch::{rdtsc, tsc_faults};
use crate::kernel::monotonic_ns;

const COUNTER: u8 = 1;
const CLOCK: u8 = 2;
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// A time stamp: the counter where it may be read, else nanoseconds of the monotonic clock.
/// [`crate::point`] and [`crate::ticks_to_ns`] go with it.
#[inline]
pub fn stamp() -> u64 {
    match SOURCE.load(Ordering::Relaxed) {
        COUNTER => rdtsc(),
        CLOCK => monotonic_ns(),
        _ => choose_source(),
    }
}

#[cold]
fn choose_source() -> u64 {
    // Only a counter that faults is left alone: one that is not invariant still orders records.
    let source = if tsc_faults() { CLOCK } else { COUNTER };
    SOURCE.store(source, Ordering::Relaxed);
    stamp()
}
