//! What is better done early: what is slow the first time, and what a sandbox may refuse later.

use crate::Error;

/// Makes ready for batches: call it before the process gives up rights.
///
/// - Registers the process for core synchronisation; a refusal is the error, since nothing works without.
/// - Opens `/proc/self/mem` and keeps it, closed on `exec` and in forked children. A batch needs it where code must
///   not become writable; a process that is not dumpable, or sees no `/proc`, can no longer open it. A
///   refusal is no error: see [`capability`](crate::capability).
/// - With `DORMOUSE_KEYS=int3`: installs the handler for SIGTRAP.
///
/// # Cost
///
/// The first call of a process with more than one thread waits for a grace period: several milliseconds.
#[cfg(dormouse_patching)]
pub fn prepare() -> Result<(), Error> {
    let protocol = crate::Protocol::of_process();
    let _turn = crate::batch::Turn::to_write(protocol)?;
    crate::barrier::register()?;
    let _ = crate::text::open_memory();
    match protocol {
        crate::Protocol::Flip => Ok(()),
        crate::Protocol::Int3 { .. } => crate::text::take_signal(),
    }
}

/// Nothing to make ready where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn prepare() -> Result<(), Error> {
    Ok(())
}
