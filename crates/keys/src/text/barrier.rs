//! The heavy barrier for machine code ([`dormouse_sys::barrier`]), with this crate's error.
//!
//! *Flip* needs it only to guarantee that no thread runs old bytes when a batch returns: a fetch
//! before the barrier gets one instruction or the other, and the barrier comes after the store. So
//! where the kernel refuses it, flip waits instead ([`barrier::settle`], which has the time for
//! each processor). *Int3* must not store bytes before other processors have seen earlier ones, and
//! no vendor documents a time after which they have. So where the barrier is refused, int3 is
//! refused.

use std::io;

use dormouse_sys::barrier;

use crate::Error;

/// Registers the process. Every batch calls this before it writes: a forked child, and a filter of
/// system calls that came since the last batch, are met before the first byte and not after it.
pub(crate) fn register() -> Result<(), Error> {
    barrier::register_sync_core().map_err(denied)
}

/// Has every thread serialise, or waits where that is refused. Returns the number of barriers used.
pub(super) fn sync_or_wait() -> usize {
    if barrier::sync_core().is_ok() {
        return 1;
    }
    barrier::settle();
    0
}

pub(super) fn denied(source: io::Error) -> Error {
    Error::Denied {
        what: "membarrier(SYNC_CORE)",
        source,
        setting: "use the flip protocol, or allow the membarrier system call (seccomp profile; Linux 4.16 or later)",
    }
}
