//! Time stamps: the counter where it may be read, and one source for the whole life of the process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use dormouse_sys::clock::monotonic_ns;

use crate::arch::{rdtsc, tsc_faults};

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

thread_local! {
    /// The counter at the last read of the thread's clock that did not ask the kernel, if it came
    /// since [`begin_sharing`]; else 0.
    static SHARED: Cell<u64> = const { Cell::new(0) };
}

/// From here on the thread's reads of its clock are remembered for [`shared_stamp`].
#[inline]
pub fn begin_sharing() {
    SHARED.set(0);
}

/// The thread's clock was read at this stamp.
#[inline]
pub(crate) fn share(stamp: u64) {
    SHARED.set(stamp);
}

/// A stamp of the thread's last read of its clock since [`begin_sharing`], or of now if there was
/// none: two that measure the same moment need not both read the counter.
#[inline]
pub fn shared_stamp() -> u64 {
    match SHARED.get() {
        0 => stamp(),
        shared => shared,
    }
}

#[cold]
fn choose_source() -> u64 {
    // Only a counter that faults is left alone: one that is not invariant still orders records.
    let source = if tsc_faults() { CLOCK } else { COUNTER };
    SOURCE.store(source, Ordering::Relaxed);
    stamp()
}
