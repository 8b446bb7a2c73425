//! Zeroed memory from the kernel, which is never freed.
//!
//! It does not come from the allocator: threads that serve requests need it, in the midst of a
//! poll, and an allocator without memory ends the process. It is mapped as an allocator maps a
//! large block, and no other call is made: a filter of system calls that ends the process for this
//! one would end it for a large allocation, too.
//!
//! # Safety
//!
//! The unsafe code maps memory, and unmaps it where no other code has its address.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::resident::{is_mapped, is_unmapped};

/// Types for which every byte may be zero, and which threads share.
///
/// # Safety
///
/// That is so.
pub unsafe trait Zeroed: Sync + 'static {}

/// The bytes that `count` values take, whose mapping has whole pages.
pub fn size_of_mapping<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(page_size())
}

/// How many values a page has room for; one if a value is larger.
pub fn in_a_page<T>() -> usize {
    (page_size() / size_of::<T>()).max(1)
}

/// The place of `count` values, all of them zero; `None` if the kernel has no memory.
///
/// # Cost
///
/// A system call.
pub fn map<T: Zeroed>(count: usize) -> Option<NonNull<[T]>> {
    let size = size_of_mapping::<T>(count);
    // SAFETY: a new mapping, wherever the kernel likes.
    let start = unsafe {
        mmap_anonymous(ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }
    .ok()?;
    let start = NonNull::new(start.cast())?;
    is_mapped(start.addr().get(), size);
    Some(NonNull::slice_from_raw_parts(start, count))
}

/// Puts a mapping into its place, unless a handler of this thread, or another thread, was quicker:
/// false then, and it is gone.
pub fn put<T>(place: &AtomicPtr<T>, made: NonNull<[T]>) -> bool {
    let start = made.cast::<T>().as_ptr();
    // Release: other threads find it whole.
    let is_put = place.compare_exchange(ptr::null_mut(), start, Ordering::Release, Ordering::Relaxed).is_ok();
    if !is_put {
        let size = size_of_mapping::<T>(made.len());
        is_unmapped(start.addr(), size);
        // SAFETY: a mapping that `map` made and no other code has seen.
        let _gone = unsafe { munmap(start.cast(), size) };
    }
    is_put
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resident::mapped_bytes;

    // SAFETY: an atomic, of which zero is a value.
    unsafe impl Zeroed for AtomicPtr<u8> {}

    #[test]
    fn mappings_count_with_whole_pages() {
        dormouse_testkit::in_child(|| {
            let before = mapped_bytes();
            map::<AtomicPtr<u8>>(1).unwrap();
            assert_eq!(mapped_bytes() - before, page_size());
        });
    }

    #[test]
    fn a_handler_that_was_quicker_stays() {
        static PLACE: AtomicPtr<AtomicPtr<u8>> = AtomicPtr::new(ptr::null_mut());
        let made = map::<AtomicPtr<u8>>(1).unwrap();
        // As a handler in between does.
        assert!(put(&PLACE, map::<AtomicPtr<u8>>(1).unwrap()));
        let there = PLACE.load(Ordering::Relaxed);
        assert!(!put(&PLACE, made));
        assert_eq!(PLACE.load(Ordering::Relaxed), there);
    }
}
