//! The function that is called for hits.
//!
//! # Safety
//!
//! The unsafe code calls a function through the pointer that [`on_hit`] has stored.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicPtr, Ordering};

static HOOK: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets `hook` to be called with the number of [`WatchSpec::event`](crate::WatchSpec::event) at
/// each hit that passes its filters, on the thread that hit. There is one hook: a second replaces
/// the first.
///
/// The hook is part of a signal handler, with all signals blocked but faults: it must not allocate,
/// lock, unwind, or branch on a static key.
pub fn on_hit(hook: fn(u32)) {
    // Pairs with the load in `hit`.
    HOOK.store(hook as *mut (), Ordering::Release);
}

static STRAY: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

/// Sets `hook` to be called with the number of a group's watch when it is hit on a thread that runs
/// no task of the group: the watch stayed armed there after such a task ended. A hook that calls
/// [`sched_out`](crate::sched_out) spares the thread further hits. The rules are those of
/// [`on_hit`].
pub fn on_stray(hook: fn(u32)) {
    // Pairs with the load in `stray`.
    STRAY.store(hook as *mut (), Ordering::Release);
}

/// Tells of a hit outside of the group.
pub(super) fn stray(number: u32) {
    // Pairs with the store in `on_stray`.
    let hook = STRAY.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `on_stray` stores there, an `fn(u32)`.
        unsafe { std::mem::transmute::<*mut (), fn(u32)>(hook)(number) };
    }
}

/// Tells of a hit.
pub(super) fn hit(number: u32) {
    // Pairs with the store in `on_hit`.
    let hook = HOOK.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `on_hit` stores there, an `fn(u32)`.
        unsafe { std::mem::transmute::<*mut (), fn(u32)>(hook)(number) };
    }
}
