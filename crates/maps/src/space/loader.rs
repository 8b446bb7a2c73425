//! How often the loader has loaded an object into this process or unloaded one.
//!
//! With each object, `dl_iterate_phdr` reports how many were ever added and how many removed: a
//! generation that costs no system call. The loader counts an object as removed a moment after it
//! has unmapped it.
//!
//! # Locking
//!
//! The loader holds a lock of its own while it calls the callback, and other libraries' allocators
//! may run under that lock; so the callback allocates nothing and takes no lock.
//!
//! # Safety
//!
//! The unsafe code is `dl_iterate_phdr`: a description is valid while its callback runs and is not
//! kept, and the callback gets the argument that this file passed.
//!
//! # References
//!
//! `dl_iterate_phdr(3)` on `dlpi_adds` and `dlpi_subs`.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

/// How many objects the loader has added and removed, together: either moves the number, and
/// nothing takes it back.
pub(super) fn count() -> u64 {
    unsafe extern "C" fn of_first(
        info: *mut libc::dl_phdr_info,
        _: libc::size_t,
        count: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and `count` is the pointer that
        // `dl_iterate_phdr` was given below.
        unsafe { *count.cast::<u64>() = (*info).dlpi_adds.wrapping_add((*info).dlpi_subs) };
        // Each object's description has the same count: the first one is enough.
        1
    }
    let mut count = 0_u64;
    // Miri has no loader to ask.
    if !cfg!(miri) {
        // SAFETY: the callback gets the pointer that is passed here, to a number that outlives the
        // call.
        unsafe { libc::dl_iterate_phdr(Some(of_first), (&raw mut count).cast()) };
    }
    count
}
