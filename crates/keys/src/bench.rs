//! A batch by int3 that stays half-way; no part of the interface.
//!
//! # Safety
//!
//! The caller answers for the addresses at which threads go on.
#![allow(unsafe_code)]

use crate::{Error, Protocol, registry, text};

/// The trap handler's question: see `text/int3/midway.rs`.
pub fn look_up(address: usize) -> Option<usize> {
    text::look_up(address)
}

/// Runs `work` in the middle of a batch of the caller's own sites: see `text/int3/midway.rs`.
///
/// # Safety
///
/// A thread that executes an `int3` at a site can go on at the address beside it.
pub unsafe fn midway<T>(sites: &[(usize, usize)], mut work: impl FnMut() -> T) -> Result<(T, u64), Error> {
    Protocol::INT3.carry_out(|| {
        let registry = registry::lock()?;
        // SAFETY: the caller's promise.
        unsafe { text::midway(registry.patch_lock(), sites, &mut work) }
    })
}
