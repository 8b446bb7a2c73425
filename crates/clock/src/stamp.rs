//! Time stamps: the counter where it can be read. The source never changes in the life of the
//! process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, Ordering};

use dormouse_sys::clock::monotonic_ns;

use crate::arch::{rdtsc, tsc_faults};

const COUNTER: u8 = 1;
const CLOCK: u8 = 2;
static SOURCE: AtomicU8 = AtomicU8::new(0);

/// A time stamp: the counter where it can be read, otherwise nanoseconds of the monotonic clock.
/// [`crate::point`] and [`crate::ticks_to_ns`] convert it.
#[inline]
pub fn stamp() -> u64 {
    match SOURCE.load(Ordering::Relaxed) {
        COUNTER => rdtsc(),
        CLOCK => monotonic_ns(),
        _ => choose_source(),
    }
}

/// Whether the source of stamps is known, so that a stamp makes no system call for it.
pub(crate) fn is_chosen() -> bool {
    SOURCE.load(Ordering::Relaxed) != 0
}

/// Whether stamps are those of the counter, so that its rate can be measured by them. The thread of
/// the first stamp may have forbidden itself the counter.
pub(crate) fn are_ticks() -> bool {
    stamp();
    SOURCE.load(Ordering::Relaxed) == COUNTER
}

thread_local! {
    /// The counter at the last read of the thread's clock that did not ask the kernel, if it came
    /// since [`begin_sharing`]; else 0.
    static SHARED: Cell<u64> = const { Cell::new(0) };
}

/// From now on the stamp of each clock read of the thread is kept for [`shared_stamp`].
#[inline]
pub fn begin_sharing() {
    SHARED.set(0);
}

/// The thread's clock was read at this stamp.
#[inline]
pub(crate) fn share(stamp: u64) {
    SHARED.set(stamp);
}

/// The stamp of the thread's last clock read since [`begin_sharing`], or a new stamp if there was
/// none. So two measurements of one moment read the counter once.
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
    // That of the first thread stays: another one may be forbidden to read the counter.
    let _chosen = SOURCE.compare_exchange(0, source, Ordering::Relaxed, Ordering::Relaxed);
    stamp()
}
