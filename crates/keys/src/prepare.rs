//! Preparation for batches: the parts that are slow the first time, or that a sandbox may refuse
//! later.

use crate::Error;

/// Makes ready for batches: call it before the process gives up rights.
///
/// - Registers the process for core synchronisation. Batches wait where it is refused; the refusal
///   is an error with `DORMOUSE_KEYS=int3`, which does not work without.
/// - Opens `/proc/thread-self/maps` and `/proc/thread-self/mem`, which stay open until `exec` and
///   are closed in forked children. A batch asks the one with which permissions code is mapped, and
///   needs the other where code must not become writable; a process that sees no `/proc`, has no
///   descriptor left, or (`mem`) is not dumpable, can no longer open them. A refusal is no error:
///   see [`capability`](crate::capability).
/// - With `DORMOUSE_KEYS=int3`: installs the handler for SIGTRAP.
///
/// # Cost
///
/// The first call of a process with more than one thread waits for a grace period: several
/// milliseconds.
#[cfg(dormouse_patching)]
pub fn prepare() -> Result<(), Error> {
    use crate::{Protocol, registry, text};

    let protocol = Protocol::of_process();
    protocol.carry_out(|| {
        let registry = registry::lock()?;
        let lock = registry.patch_lock();
        let registered = text::register();
        text::open_files(lock);
        if protocol == Protocol::Flip { Ok(()) } else { registered.and_then(|()| text::take_signal(lock)) }
    })
}

/// Nothing to make ready where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn prepare() -> Result<(), Error> {
    Ok(())
}
