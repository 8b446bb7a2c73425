//! `fork`: a child finds whole text, free locks, and no leases.
//!
//! The forking thread takes the crate's locks first, so that no batch is under way on another, and parent and child give
//! them up again. Then the child
//!
//! - forgets what it must not use: the file that is its parent's memory, the count of its parent's trap handlers;
//! - begins another generation, in which no lease of its parent counts: who held them lives in the parent. Keys that
//!   only leases kept on go to sleep. One that cannot be put to sleep stays on until a batch names it.
//!
//! The kernel has membarrier's registration inherited; a batch asks for it anyway.
//!
//! A fork by a signal handler over a batch of its own thread takes no lock, since it would wait for itself. Parent
//! and child each go on with that batch (the child's fails if it goes through the memory file), and keys that only
//! leases kept on stay on in the child. A fork that does not go through the C library's `fork` (`_Fork`, a bare `clone`) does
//! none of this: such a child must not switch keys.
//!
//! # Locking
//!
//! The patch lock, then the registry's, as everywhere. They are taken before the allocator's, whose handlers were
//! registered earlier: handlers before a fork run from the last to the first.
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use crate::batch::{self, Busy};
use crate::generation;
use crate::hold::Holds;
use crate::registry::{self, Index};

/// What is held across a fork, in the order in which it is given up.
struct Locks {
    index: MutexGuard<'static, Option<Arc<Index>>>,
    _patch: MutexGuard<'static, Holds>,
    _busy: Busy,
}

thread_local! {
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
    let Ok(busy) = Busy::mark() else { return };
    let patch = batch::lock();
    let locks = Locks { index: registry::lock(), _patch: patch, _busy: busy };
    HELD.set(Some(ManuallyDrop::new(locks)));
}

fn take() -> Option<Locks> {
    HELD.take().map(ManuallyDrop::into_inner)
}

extern "C" fn in_parent() {
    drop(take());
}

extern "C" fn in_child() {
    #[cfg(dormouse_patching)]
    crate::text::in_forked_child();
    generation::begin();
    if let Some(locks) = take()
        // A lease is taken by a batch, and a batch makes the index.
        && let Some(index) = &*locks.index
    {
        sleep_without_leases(index);
    }
}

fn sleep_without_leases(index: &Index) {
    for key in index.keys().filter(|key| key.is_enabled() && !key.baseline()) {
        if index.put_to_sleep(key) {
            key.publish(false, 0);
        }
    }
}
