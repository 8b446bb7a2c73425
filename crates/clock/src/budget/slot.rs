//! A cell for one value, which threads put in and take out without waiting for one another.
//!
//! # Safety
//!
//! The unsafe code owns the target of a pointer that an exchange has taken out of the cell: it is
//! null or came from a `Box`, and no other thread can find it any more.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(super) struct Slot<T> {
    thing: AtomicPtr<T>,
    /// A thing that one thread puts in is dropped by another.
    owned: PhantomData<T>,
}

// SAFETY: the thing moves between threads, and is never shared.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    pub(super) const fn new() -> Self {
        Self { thing: AtomicPtr::new(ptr::null_mut()), owned: PhantomData }
    }

    /// Puts a thing in, and gives the one before.
    pub(super) fn put(&self, thing: T) -> Option<T> {
        self.swap(Box::into_raw(Box::new(thing)))
    }

    pub(super) fn take(&self) -> Option<T> {
        self.swap(ptr::null_mut())
    }

    fn swap(&self, new: *mut T) -> Option<T> {
        // Pairs with itself: the thing is whole. SeqCst: one thread puts, then looks for the end;
        // the other sets the end, then takes. At least one of them sees the other.
        let old = self.thing.swap(new, Ordering::SeqCst);
        // SAFETY: see the module.
        (!old.is_null()).then(|| *unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
