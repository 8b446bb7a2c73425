//! Leases are a process's own: a forked child has none.
//!
//! Nothing can be freed in a forked child, so leases are not given back there, they are made void: leases, counts
//! and the table of holds carry the *generation* in which they were made, and a fork begins another
//! ([`crate::fork`]).

use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation of this process.
pub(crate) fn present() -> u32 {
    // It changes while a process has one thread, which has just been made.
    GENERATION.load(Ordering::Relaxed)
}

/// In a forked child: makes all leases void.
#[cfg(not(all(test, loom)))]
pub(crate) fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
