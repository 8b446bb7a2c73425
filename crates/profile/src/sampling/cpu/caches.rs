//! The memory of each sampled thread for the rules of the unwind tables, for its handler.
//!
//! A thread's memory belongs to its slot. The sampler makes it when it arms the thread, and leaves
//! it to the next thread with that slot: a late handler may be at it. So there is a page for each
//! of the threads that were sampled at the same time.
//!
//! # Safety
//!
//! The unsafe code allocates the memory, and uses it while a flag says that nobody else does.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc};
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use dormouse_unwind::ThreadCache;

use super::slots::{SLOTS, SlotId};

/// One thread's memory.
#[derive(Debug)]
struct Memory {
    /// A handler is at it: that of the slot's thread, or a late one of the thread before.
    is_used: AtomicBool,
    cache: ThreadCache,
}

/// By the index of the slot.
static MEMORIES: [AtomicPtr<Memory>; SLOTS] = [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS];

/// Makes the memory of a slot, if there is none yet. Without room for it, each look-up searches.
pub(super) fn prepare(id: SlotId) {
    let Some(place) = MEMORIES.get(id.index as usize).filter(|place| place.load(Ordering::Relaxed).is_null())
    else {
        return;
    };
    #[allow(clippy::cast_ptr_alignment, reason = "the allocation is aligned for the type")]
    // SAFETY: the type is not empty. The memory is written before anybody sees it.
    unsafe {
        let made = alloc(Layout::new::<Memory>()).cast::<Memory>();
        if !made.is_null() {
            made.write(Memory { is_used: AtomicBool::new(false), cache: ThreadCache::new() });
            // Release: pairs with the load in `claim`.
            place.store(made, Ordering::Release);
        }
    }
}

/// The memory of a slot, which is the caller's until this is dropped.
pub(super) struct Claimed(&'static Memory);

/// Takes the memory of a slot, if there is one, and no other handler is at it.
///
/// # Async-signal-safety
///
/// Two loads and an exchange.
pub(super) fn claim(id: SlotId) -> Option<Claimed> {
    // SAFETY: null, or made above and never freed. Acquire: pairs with the store there.
    let memory = unsafe { MEMORIES.get(id.index as usize)?.load(Ordering::Acquire).as_ref() }?;
    // Acquire: pairs with the store in `drop`.
    (!memory.is_used.swap(true, Ordering::Acquire)).then_some(Claimed(memory))
}

impl Deref for Claimed {
    type Target = ThreadCache;

    fn deref(&self) -> &ThreadCache {
        &self.0.cache
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        // Release: pairs with the exchange in `claim`.
        self.0.is_used.store(false, Ordering::Release);
    }
}

// SAFETY: only the one that has set the flag uses the cells.
unsafe impl Sync for Memory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handler_at_a_time_has_it() {
        let id = SlotId { index: 77, generation: 1 };
        assert!(claim(id).is_none());
        prepare(id);
        let first = claim(id).unwrap();
        assert!(claim(id).is_none());
        drop(first);
        assert!(claim(id).is_some());
        assert!(claim(SlotId { index: u32::MAX, generation: 1 }).is_none());
    }
}
