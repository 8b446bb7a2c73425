//! The memories of threads ([`ThreadCache`]), in one allocation: a thread's is found by its id.
//!
//! Two threads whose ids are equal in the low bits share one, and evict each other's rules. While
//! one of them walks, and while a handler interrupts a walk of its thread, the other has none, and
//! searches.
//!
//! A handler that does not return (`siglongjmp`) from the middle of a walk leaves the memory taken:
//! later walks of its threads search. So does a fork in another thread's walk, in the child.
//!
//! # Safety
//!
//! The unsafe code allocates the memories, which stay, and uses one while a flag shows that nobody
//! else does.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use dormouse_sys::memory;

use crate::cache::ThreadCache;

/// How many memories there are: 4 MiB of address space, of which the kernel gives what is used.
const MEMORIES: usize = 1024;

/// One thread's memory. Zeros are a free one.
#[repr(align(64))]
struct Memory {
    is_used: AtomicBool,
    /// The cache has been made.
    is_made: AtomicBool,
    cache: UnsafeCell<MaybeUninit<ThreadCache>>,
}

// SAFETY: only the one that has set `is_used` uses the cell.
unsafe impl Sync for Memory {}

static POOL: AtomicPtr<Memory> = AtomicPtr::new(ptr::null_mut());

/// Allocates the memories, if they are not there yet, and if there is room. One thread at a time.
pub(crate) fn prepare() {
    let layout = Layout::new::<[Memory; MEMORIES]>();
    if POOL.load(Ordering::Relaxed).is_null() && memory::is_there(layout.size()) {
        // SAFETY: the type is not empty.
        let pool = unsafe { alloc_zeroed(layout) };
        // Release: pairs with the load in `claim`.
        POOL.store(pool.cast(), Ordering::Release);
    }
}

/// A thread's memory, which is the caller's until this is dropped.
#[derive(Debug)]
pub struct ClaimedCache(&'static Memory);

/// Takes the memory of a thread, unless another walk is at it.
///
/// # Async-signal-safety
///
/// Two loads and an exchange. At a thread's first walk some page faults.
#[inline]
pub fn claim(tid: u32) -> Option<ClaimedCache> {
    // Acquire: pairs with the store in `prepare`.
    let pool = POOL.load(Ordering::Acquire);
    if pool.is_null() {
        return None;
    }
    // SAFETY: the allocation has that many, for which zeros are a value, and stays.
    let memory = unsafe { &*pool.add(tid as usize % MEMORIES) };
    // Acquire: pairs with the store in `drop`.
    if memory.is_used.swap(true, Ordering::Acquire) {
        return None;
    }
    let claimed = ClaimedCache(memory);
    if !memory.is_made.load(Ordering::Relaxed) {
        make(memory);
    }
    Some(claimed)
}

/// A cache that remembers nothing, to be copied.
struct Empty(ThreadCache);

// SAFETY: it is only copied.
unsafe impl Sync for Empty {}

static EMPTY: Empty = Empty(ThreadCache::new());

type Word = MaybeUninit<usize>;
const _: () = assert!(align_of::<ThreadCache>() >= align_of::<Word>());

/// Makes a cache in place, word by word: a handler has no room for one on its stack, and must not
/// call `memcpy`, which a checker may have replaced.
#[cold]
#[inline(never)]
fn make(memory: &Memory) {
    let (from, to) = ((&raw const EMPTY.0).cast::<Word>(), memory.cache.get().cast::<Word>());
    for word in 0..size_of::<ThreadCache>() / size_of::<Word>() {
        // SAFETY: both have that many words, and the caller has set `is_used`. Volatile, so that
        // this stays a loop.
        unsafe { to.add(word).write_volatile(from.add(word).read()) };
    }
    memory.is_made.store(true, Ordering::Relaxed);
}

impl Deref for ClaimedCache {
    type Target = ThreadCache;

    #[inline]
    fn deref(&self) -> &ThreadCache {
        // SAFETY: made, and this one's alone as long as it lives.
        unsafe { (*self.0.cache.get()).assume_init_ref() }
    }
}

impl Drop for ClaimedCache {
    #[inline]
    fn drop(&mut self) {
        // Release: pairs with the exchange in `claim`.
        self.0.is_used.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("is_used", &self.is_used).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_walk_at_a_time_has_it() {
        prepare();
        let tid = 77;
        let first = claim(tid).unwrap();
        assert!(claim(tid).is_none() && claim(tid + MEMORIES as u32).is_none());
        drop(first);
        assert!(claim(tid).is_some());
    }
}
