//! Making every thread of the process execute a serialising instruction: `membarrier(SYNC_CORE)`.
//!
//! On return, no thread runs on instructions that it fetched before the call (Linux: `membarrier(2)`,
//! `kernel/sched/membarrier.c`). Threads that are not running serialise on their way back to user mode.
//!
//! There is nothing to fall back on. A change of page permissions interrupts other processors on many machines, and
//! not on those that invalidate translations by broadcast. So where membarrier is refused, so is the batch.

use rustix::thread::MembarrierCommand;

use crate::Error;

/// Registers the process. Asked for by every batch before it writes: once registered, the kernel answers at once, and
/// a forked child, or a filter of system calls that came meanwhile, is met before the first byte, not after.
///
/// # Cost
///
/// The first call of a process with more than one thread waits for a grace period: several milliseconds.
pub(crate) fn register() -> Result<(), Error> {
    membarrier(MembarrierCommand::RegisterPrivateExpeditedSyncCore)
}

/// Has every thread serialise; the process must be registered.
pub(crate) fn sync() -> Result<(), Error> {
    membarrier(MembarrierCommand::PrivateExpeditedSyncCore)
}

fn membarrier(command: MembarrierCommand) -> Result<(), Error> {
    rustix::thread::membarrier(command).map_err(|errno| Error::Denied {
        what: "membarrier(SYNC_CORE)",
        source: errno.into(),
        setting: "allow the membarrier system call (seccomp profile; Linux 4.16 or later)",
    })
}
