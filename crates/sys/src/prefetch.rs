//! A hint to the processor, for walks over memory that other threads write.

use crate::arch;

/// Fetches the cache line of `line` into all caches, without waiting for it. Does nothing where
/// there is no such hint.
#[inline(always)]
pub fn prefetch<T>(line: &T) {
    arch::prefetch(std::ptr::from_ref(line).cast());
}

/// Fetches the cache line at an address that will be written. Nothing is accessed, so it may be any
/// address.
#[inline(always)]
pub fn prefetch_for_write(line: *const u8) {
    arch::prefetch_for_write(line);
}
