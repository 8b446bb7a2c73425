//! Leases are a process's own: a forked child has none.
//!
//! Nothing can be freed and no lock waited for in a forked child, so leases are not given back there, they are made
//! void: leases, counts and the table of holds carry the *generation* in which they were made, and a fork begins
//! another. What the child can do at once it does: it puts the keys to sleep that only leases kept on.
//!
//! # Async-signal-safety
//!
//! [`forget_leases`] allocates nothing and waits for nothing.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::registry;

/// How many forks lie between the process that loaded this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The generation of this process.
pub(crate) fn present() -> u32 {
    // It changes while a process has one thread, which has just been made.
    GENERATION.load(Ordering::Relaxed)
}

/// Has forked children forget the leases of this process. Called before the first is taken.
pub(crate) fn forget_leases_in_children() {
    // Without a place among the hooks, keys that are on by a lease stay on in a child.
    dormouse_sys::thread::on_fork_child(in_child);
}

/// A batch that another thread was at when this child was forked is for ever half done, and its text is left alone.
fn in_child() {
    if !crate::batch::unless_under_way(forget_leases) {
        begin();
    }
}

fn begin() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// In a forked child, while no batch is under way: makes all leases void, and puts the keys to sleep that were on by
/// leases alone. One that cannot be put to sleep stays on until a batch changes it.
///
/// # Cost
///
/// Nothing worth a word without leases; else two system calls for each site that they keep awake.
pub(crate) fn forget_leases() {
    begin();
    // A lease is taken by a batch, and a batch makes the index.
    let Some(index) = registry::cached() else { return };
    for key in index.keys().filter(|key| key.is_enabled() && !key.baseline()) {
        if index.put_to_sleep(key) {
            key.publish(false, 0);
        }
    }
}
