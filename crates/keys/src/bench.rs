//! A batch by int3 that stops half-way, for a bench; not part of the public interface.
//!
//! # Safety
//!
//! The caller is responsible for the addresses at which threads continue.
#![allow(unsafe_code)]

use crate::{Error, Protocol, registry, text};

/// The look-up that the trap handler makes: see `text/int3/midway.rs`.
pub fn look_up(address: usize) -> Option<usize> {
    text::look_up(address)
}

/// Runs `work` in the middle of a batch of the caller's own sites: see `text/int3/midway.rs`.
///
/// # Safety
///
/// A thread that executes an `int3` at a site must be able to continue at the address paired with
/// it.
pub unsafe fn midway<T>(sites: &[(usize, usize)], mut work: impl FnMut() -> T) -> Result<(T, u64), Error> {
    Protocol::INT3.carry_out(|| {
        let registry = registry::lock()?;
        // SAFETY: the caller's promise.
        unsafe { text::midway(registry.patch_lock(), sites, &mut work) }
    })
}
