//! The module that gives loom's types in place of std's under `cfg(loom)`, and the two barriers
//! between a reader and a writer. Other crates choose by the macros of `dormouse-sys`, of which
//! this crate is independent.
//!
//! # Barriers
//!
//! A reader writes the address of a snapshot into a slot and then loads the published address
//! again. A writer publishes another address and then loads the slots. Each stores first and loads
//! second, and a processor may let a load overtake an older store: then the reader would see the
//! old address, the writer an empty slot, and the writer would free what the reader reads. A
//! barrier between store and load on *both* sides rules that out: the reader sees the new address,
//! or the writer sees the slot.
//!
//! - The reader's is the [`light_barrier`], a part of each look-up.
//! - The writer's is the [`heavy_barrier`], a part of each update.
//!
//! (The names are those of the crate `seize`, which can make the light one free by a system call in
//! the heavy one. Here both sides pay: `docs/design/maps.md` has the reasons.) Stores and loads
//! around a barrier are sequentially consistent, so the barriers themselves are no instruction: all
//! such accesses have one order. (On x86 the store is an exchange, which is a full barrier; on
//! arm64 a later load that acquires does not overtake a store that releases.) Loom treats
//! sequentially consistent accesses as acquiring and releasing ones and implements that order only
//! for fences, so there each barrier is a fence.

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};

/// A reader's, between the store to its slot and the load of the published address.
#[inline(always)]
pub(crate) fn light_barrier() {
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}

/// A writer's, between the store of the published address and the loads of the slots.
#[inline(always)]
pub(crate) fn heavy_barrier() {
    #[cfg(all(test, loom))]
    fence(std::sync::atomic::Ordering::SeqCst);
}

/// A `const fn`, except under loom, whose types cannot be made at compile time.
macro_rules! const_unless_loom {
    ($(#[$attribute:meta])* $seen:vis fn $($rest:tt)*) => {
        #[cfg(not(all(test, loom)))]
        $(#[$attribute])*
        $seen const fn $($rest)*
        #[cfg(all(test, loom))]
        $(#[$attribute])*
        $seen fn $($rest)*
    };
}
pub(crate) use const_unless_loom;
