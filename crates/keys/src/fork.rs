//! `fork`: a child finds whole text, free locks, and no leases.
//!
//! The forking thread takes the crate's locks first, so that no batch is under way on another, and parent and child give
//! them up again. Then the child
//!
//! - forgets what it must not use: the file that is its parent's memory, the count of its parent's trap handlers;
//! - is of another generation ([`crate::generation`]), in which no lease of its parent counts: who held them lives in the
//!   parent. Keys that only leases kept on go to sleep. One that cannot be put to sleep stays on until a batch names it.
//!
//! The kernel has membarrier's registration inherited; a batch asks for it anyway.
//!
//! A fork by a signal handler over a batch of its own thread takes no lock, since it would wait for itself. Parent and
//! child each go on with that batch (the child's fails if it goes through the memory file), and keys that only leases
//! kept on stay on in the child. A fork that does not go through the C library's `fork` (`_Fork`, a bare `clone`) does
//! none of this: such a child must not switch keys.
//!
//! # Locking
//!
//! As everywhere: the patch lock, then the registry's and the holds'. The first handler of any copy takes the patch
//! lock, the others find that the fork has it ([`dormouse_sys::lock`]); what each copy takes inside it, nobody holds who
//! waits for the patch lock. They are taken before the allocator's, whose handlers were registered earlier:
//! handlers before a fork run from the last to the first.
//!
//! # Async-signal-safety
//!
//! What runs in the child allocates nothing and waits for nothing.
//!
//! # Safety
//!
//! The unsafe code is `pthread_atfork`.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_sys::rendezvous;

use crate::batch;
use crate::hold::Holds;
use crate::registry::{Index, Registry};

/// What is held across a fork inside the patch lock.
struct Locks {
    registry: Registry,
    _holds: MutexGuard<'static, Holds>,
}

thread_local! {
    /// Whether the thread forks: a handler over that, which forks too, leaves the locks alone.
    static FORKING: Cell<bool> = const { Cell::new(false) };
    /// The locks, while their thread forks. (Nothing to be dropped at the thread's end, so nothing is registered.)
    static HELD: Cell<Option<ManuallyDrop<Locks>>> = const { Cell::new(None) };
}

/// Has forks wait for batches from now on.
pub(crate) fn guard() {
    static GUARDED: AtomicBool = AtomicBool::new(false);
    // Who comes while another thread is at it does not wait: a child forked in that moment might wait for ever.
    if !GUARDED.load(Ordering::Relaxed) && !GUARDED.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions of this object. Without memory for it, forks stay unguarded.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

extern "C" fn before() {
    let Ok(table) = rendezvous::table() else { return };
    // Also the thread's first use of what is its own, which may ask the loader and so does not come under the patch lock.
    if FORKING.replace(true) {
        return;
    }
    if table.patch.before_fork() {
        // What the child finds is as true as what a batch finds.
        let registry = Registry::of_fork(table);
        HELD.set(Some(ManuallyDrop::new(Locks { registry, _holds: batch::lock_holds() })));
    }
}

fn take() -> Option<Locks> {
    FORKING.set(false);
    HELD.take().map(ManuallyDrop::into_inner)
}

extern "C" fn in_parent() {
    if let (Some(locks), Ok(table)) = (take(), rendezvous::table()) {
        drop(locks);
        table.patch.in_parent();
    }
}

extern "C" fn in_child() {
    #[cfg(dormouse_patching)]
    crate::text::in_forked_child();
    // The copies' own handler, registered before this one, has begun another generation and freed the patch lock.
    if let Some(locks) = take() {
        sleep_without_leases(locks.registry.index());
    }
}

fn sleep_without_leases(index: &Index) {
    for key in index.keys().filter(|key| key.is_enabled() && !key.baseline()) {
        if index.put_to_sleep(key) {
            key.publish(false, 0);
        }
    }
}
