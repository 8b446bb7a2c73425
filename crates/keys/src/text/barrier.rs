//! The heavy barrier for machine code ([`dormouse_sys::barrier`]), with this crate's error.
//!
//! No other call can take its place. A change of page permissions interrupts other processors on
//! many machines, and not on those that invalidate translations by broadcast. So a batch is refused
//! where the kernel refuses the barrier.

use std::io;

use dormouse_sys::barrier;

use crate::Error;

/// Registers the process. Every batch calls this before it writes: a forked child, and a filter of
/// system calls that came since the last batch, are met before the first byte and not after it.
pub(crate) fn register() -> Result<(), Error> {
    barrier::register_sync_core().map_err(denied)
}

/// Has every thread serialise; the process must be registered.
pub(crate) fn sync() -> Result<(), Error> {
    barrier::sync_core().map_err(denied)
}

fn denied(source: io::Error) -> Error {
    Error::Denied {
        what: "membarrier(SYNC_CORE)",
        source,
        setting: "allow the membarrier system call (seccomp profile; Linux 4.16 or later)",
    }
}
