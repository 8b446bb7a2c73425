//! SIGTRAP: whether a thread that runs into an `int3` of ours reaches our handler.
//!
//! If a thread blocks SIGTRAP and runs into an `int3`, the kernel kills it, and the process with
//! it. So a batch looks for such threads first, once ([`crate::Protocol`] retries a batch that is
//! refused for that). It cannot see:
//!
//! - a thread that blocks the signal a moment later;
//! - a child between `vfork` and `exec`, which shares the text and is no thread of this process:
//!   with the signal unblocked it traps and goes on like a thread, since its handlers are copies of
//!   ours; with the signal blocked it dies alone. (The children of `posix_spawn` run nothing but
//!   the C library meanwhile. Its *parent* blocks all signals until the `exec`, is seen, and waited
//!   for.)
//!
//! An attached debugger sees every trap before the handler does.

use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_sys::trap::{self, Disposition};
use dormouse_sys::{masks, rendezvous};

use super::resume;
use crate::Error;
use crate::patch_lock::PatchLock;

/// Whether the handler has been installed.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Installs the handler, if it has not been.
pub(crate) fn take_signal(_: PatchLock<'_>) -> Result<(), Error> {
    trap::install(resume::resolve).map_err(|source| Error::Denied {
        what: "a handler for SIGTRAP",
        source,
        setting: "allow rt_sigaction, or use the flip protocol",
    })?;
    TAKEN.store(true, Ordering::Relaxed);
    Ok(())
}

/// The obstacle to the protocol now, if there is one.
pub(crate) fn obstacle(_: PatchLock<'_>) -> Option<Error> {
    if rendezvous::stuck().load(Ordering::Relaxed) {
        return Some(Error::Stuck);
    }
    if TAKEN.load(Ordering::Relaxed)
        && let Some(error) = taken_since()
    {
        return Some(error);
    }
    match masks::blocking(libc::SIGTRAP) {
        Ok(threads) if threads.is_empty() => None,
        Ok(threads) => Some(Error::TrapsBlocked { threads }),
        Err(source) => {
            let setting = "mount /proc, or use the flip protocol";
            Some(Error::Denied { what: "looking for threads that block SIGTRAP", source, setting })
        }
    }
}

/// Whether another handler than ours has the signal.
fn taken_since() -> Option<Error> {
    match trap::disposition() {
        Ok(Disposition::Ours) => None,
        Ok(Disposition::Default | Disposition::Ignored) => Some(Error::SignalTaken { handler: None }),
        Ok(Disposition::Other(address)) => {
            // The name is asked for outside of the patch lock: see `Error::outside`.
            Some(Error::SignalTaken { handler: Some((address, String::new())) })
        }
        Err(source) => {
            let setting = "allow rt_sigaction, or use the flip protocol";
            Some(Error::Denied { what: "finding the handler of SIGTRAP", source, setting })
        }
    }
}

/// Installs the handler, and refuses where a thread that ran into an `int3` would not reach it.
pub(in crate::text) fn prepare(lock: PatchLock<'_>) -> Result<(), Error> {
    take_signal(lock)?;
    obstacle(lock).map_or(Ok(()), Err)
}
