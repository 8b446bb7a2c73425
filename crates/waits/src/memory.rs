//! Zeroed memory of the kernel's, which never goes.
//!
//! It does not come from the allocator: threads that serve requests ask for it, in the midst of a
//! poll, and an allocator without memory ends the process.
//!
//! # Safety
//!
//! The unsafe code makes references to mappings of its own, which stay.
#![allow(unsafe_code)]

use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Types for which every byte may be zero, and which threads share.
///
/// # Safety
///
/// That is so.
pub(crate) unsafe trait Zeroed: Sync + 'static {}

/// The contents in a forked child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InChild {
    /// The parent's values.
    Copied,
    /// Zeroes.
    Wiped,
}

/// `count` values, all of them zero; `None` if the kernel has no memory.
///
/// # Cost
///
/// One or two system calls.
pub(crate) fn map<T: Zeroed>(count: usize, in_child: InChild) -> Option<&'static [T]> {
    let size = count * size_of::<T>();
    // SAFETY: a new mapping, wherever the kernel likes.
    let start = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    // SAFETY: our own pages, which nobody has seen.
    if in_child == InChild::Wiped && unsafe { madvise(start, size, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above.
        let _gone = unsafe { munmap(start, size) };
        return None;
    }
    // SAFETY: zeroed, aligned to a page, as long as asked for, and never unmapped.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<T>(), count) })
}
