//! `fork`: a child finds whole text, free locks, and no leases.
//!
//! The forking thread takes the crate's locks first ([`dormouse_sys::process::fork`]), so that no
//! batch runs on another thread; parent and child release them afterwards. Before it releases them
//! the child
//!
//! - closes the files of its parent's memory (`/proc/thread-self/mem`, `/proc/thread-self/maps`);
//! - gets another number of forks, with which no lease of its parent counts, because the holder
//!   lives in the parent. Keys that only leases kept on are switched off. A key that cannot be
//!   switched off stays on until a batch names it.
//!
//! The child inherits membarrier's registration from the kernel; a batch registers again anyway.
//!
//! A fork by a signal handler that interrupted a batch of its own thread takes no lock, because it
//! would wait for itself. Parent and child each go on with that batch (the child's fails if it
//! writes through the memory file), and keys that only leases kept on stay on in the child. A fork
//! that does not go through the C library's `fork` (`_Fork`, a bare `clone`) does none of this:
//! such a child must not switch keys.
//!
//! # Async-signal-safety
//!
//! The functions that run in the child allocate nothing and wait for nothing.

use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::rendezvous;

use super::Local;
use crate::patch_lock::PatchLock;

/// The files through which text is written.
static TEXT: Reset = Reset::new(Phase::Text, close_files);

/// Has forks respect the text from now on. (The registry's mutex and that of the holds join by
/// themselves.)
pub(super) fn join() {
    TEXT.join();
}

fn close_files() {
    #[cfg(dormouse_patching)]
    crate::text::close_files();
}

/// Has the child find an index that is as true as a batch's. Without memory it is the last one:
/// keys of objects that have come since stay as they are until a batch names them.
pub(super) fn before(local: &mut Local) {
    if let Some(lock) = lock_of_fork() {
        let _ = local.refresh_index(lock);
    }
}

/// Puts keys to sleep that only leases kept on.
pub(super) fn in_child(local: &mut Local) {
    let Some(lock) = lock_of_fork() else { return };
    let index = &local.index;
    for key in index.keys.iter().map(|used| used.key).filter(|key| key.is_enabled() && !key.baseline()) {
        if index.put_to_sleep(key) {
            key.publish(lock, false, 0);
        }
    }
}

fn lock_of_fork() -> Option<PatchLock<'static>> {
    PatchLock::of_fork(rendezvous::table().ok()?)
}
