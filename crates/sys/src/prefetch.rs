//! A hint to the processor, for walks over memory that other threads write.
//!
//! # Safety
//!
//! The unsafe code is the hint.
#![allow(unsafe_code)]

/// Fetches the cache line of `line` into all caches, without waiting for it. Does nothing where
/// there is no such hint.
#[inline(always)]
pub fn prefetch<T>(line: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; nothing is accessed, and SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}
