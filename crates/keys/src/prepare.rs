//! Preparation for batches: steps that are slow the first time, or that a sandbox may refuse later.

use crate::Error;

/// Prepares the process for batches. Call it before the process gives up privileges.
///
/// - Registers the process for core synchronisation. Where that is refused, batches wait instead.
///   With `DORMOUSE_KEYS=int3`, which cannot work without it, the refusal is an error.
/// - Opens `/proc/thread-self/maps` and `/proc/thread-self/mem`, which stay open until `exec` and
///   are closed in forked children. A batch reads from the first with which permissions code is
///   mapped, and needs the second where code must not become writable. A process that sees no
///   `/proc`, has no descriptor left, or (`mem`) is not dumpable, can no longer open them. A
///   refusal is no error: see [`capability`](crate::capability).
/// - With `DORMOUSE_KEYS=int3`: installs the handler for SIGTRAP.
///
/// # Cost
///
/// The first call in a process with more than one thread waits for a grace period: several
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

/// Does nothing where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn prepare() -> Result<(), Error> {
    Ok(())
}
