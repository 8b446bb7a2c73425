//! Values that are made once and never change, without a wait: if two threads make the same value,
//! the second one drops its own. `std::sync::OnceLock` blocks instead, so a signal handler that
//! interrupted the first thread would wait for ever, and so would a forked child.
//!
//! # Safety
//!
//! 1. A pointer changes from null to a value, once. The value lives as long as the cell, which is
//!    borrowed ([`OnceBox`]), or as long as the process ([`OnceRef`]).
#![allow(unsafe_code)]

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Stores a pointer unless there is one; returns the one that is there now.
fn set<T>(at: &AtomicPtr<T>, own: *mut T) -> *mut T {
    // Pairs with the loads in `get` and with a quicker thread's exchange.
    at.compare_exchange(ptr::null_mut(), own, Ordering::Release, Ordering::Acquire)
        .map_or_else(|first| first, |_| own)
}

/// A cell that owns the value which is put into it first.
pub struct OnceBox<T> {
    at: AtomicPtr<T>,
    owns: PhantomData<*mut T>,
}

// SAFETY: a box of a `T` that may go to another thread.
unsafe impl<T: Send> Send for OnceBox<T> {}
// SAFETY: threads share the value, and any of them may have made it.
unsafe impl<T: Send + Sync> Sync for OnceBox<T> {}

impl<T> OnceBox<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self { at: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // Pairs with the exchange in `set`. SAFETY: invariant 1.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// The value, which is made unless there is one.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> Box<T>) -> &T {
        let Ok(there) = self.get_or_try_init(|| Ok::<_, Infallible>(make()));
        there
    }

    /// The value, which is made unless there is one. After an error the cell is still empty.
    #[inline]
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<Box<T>, E>) -> Result<&T, E> {
        if let Some(there) = self.get() {
            return Ok(there);
        }
        let own = Box::into_raw(make()?);
        let there = set(&self.at, own);
        if !ptr::eq(there, own) {
            // SAFETY: no other thread has seen it.
            drop(unsafe { Box::from_raw(own) });
        }
        // SAFETY: invariant 1.
        Ok(unsafe { &*there })
    }
}

impl<T> Default for OnceBox<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let at = *self.at.get_mut();
        if !at.is_null() {
            // SAFETY: the cell owns the value, and nothing borrows the cell any more.
            drop(unsafe { Box::from_raw(at) });
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A cell for a reference to a value that lives as long as the process.
pub struct OnceRef<T: 'static> {
    at: AtomicPtr<T>,
    refers: PhantomData<&'static T>,
}

impl<T> OnceRef<T> {
    /// An empty cell.
    pub const fn new() -> Self {
        Self { at: AtomicPtr::new(ptr::null_mut()), refers: PhantomData }
    }

    /// The value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // Pairs with the exchange in `set`. SAFETY: invariant 1.
        unsafe { self.at.load(Ordering::Acquire).as_ref() }
    }

    /// The value; `make` returns it unless there is one.
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> &'static T) -> &'static T {
        self.get().unwrap_or_else(|| {
            let there = set(&self.at, ptr::from_ref(make()).cast_mut());
            // SAFETY: invariant 1.
            unsafe { &*there }
        })
    }
}

impl<T> Default for OnceRef<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn all_threads_see_the_first_value() {
        let made = Arc::new(());
        let (cell, together) = (OnceBox::new(), Barrier::new(4));
        let seen = std::thread::scope(|scope| {
            let look = || {
                together.wait();
                ptr::from_ref(cell.get_or_init(|| Box::new(Arc::clone(&made)))) as usize
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(seen.iter().all(|&at| at == seen[0]));
        assert_eq!(Arc::strong_count(&made), 2, "those that came too late are dropped");
        drop(cell);
        assert_eq!(Arc::strong_count(&made), 1);
    }

    #[test]
    fn a_reference_stays_the_first() {
        static FIRST: u32 = 1;
        static SECOND: u32 = 2;
        let cell = OnceRef::new();
        assert_eq!((cell.get(), *cell.get_or_init(|| &FIRST)), (None, 1));
        assert_eq!((*cell.get_or_init(|| &SECOND), cell.get()), (1, Some(&FIRST)));
    }
}
