//! Making every thread of the process execute a serialising instruction: `membarrier(SYNC_CORE)`.
//!
//! On return, no thread runs on instructions that it fetched before the call (Linux: `membarrier(2)`,
//! `kernel/sched/membarrier.c`). Threads that are not running serialise on their way back to user mode.

use crate::Error;

/// Registers the process for core synchronisation, so that the first batch need not.
///
/// # Cost
///
/// The first call of a process with more than one thread waits for a grace period: several milliseconds.
#[cfg(dormouse_patching)]
pub fn register() -> Result<(), Error> {
    use std::sync::atomic::{AtomicBool, Ordering};

    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Relaxed) {
        membarrier(rustix::thread::MembarrierCommand::RegisterPrivateExpeditedSyncCore)?;
        // Only ever saves a second registration, so there is nothing to order.
        DONE.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Nothing to prepare where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn register() -> Result<(), Error> {
    Ok(())
}

/// Has every thread serialise; the process must be registered.
#[cfg(dormouse_patching)]
pub(crate) fn sync() -> Result<(), Error> {
    membarrier(rustix::thread::MembarrierCommand::PrivateExpeditedSyncCore)
}

#[cfg(dormouse_patching)]
fn membarrier(command: rustix::thread::MembarrierCommand) -> Result<(), Error> {
    rustix::thread::membarrier(command).map_err(|errno| Error::Denied {
        what: "membarrier(SYNC_CORE)",
        source: errno.into(),
        setting: "allow the membarrier system call (seccomp profile; Linux 4.16 or later)",
    })
}
