//! One published value that readers use without a lock, and the replaced values that are still
//! being read.
//!
//! # Invariants
//!
//! 1. `current` is null or came from `Box::into_raw`; the writer that swaps it out owns it.
//! 2. A replaced value is freed only after a moment at which no slot named it: after its
//!    replacement, a reader that checks again does not keep it
//!    ([`Claim::renew`](crate::slots::Claim::renew) has the order).
//!
//! # Locking
//!
//! `retired` is the writers' lock: only its holder replaces and frees, so it may read `current`
//! without a slot.
//!
//! # Async-signal-safety
//!
//! [`Published::read`] is signal-safe if its argument is.
//!
//! # Safety
//!
//! The unsafe code converts between boxes and the published address. (The other unsafe code of this
//! crate is in `entry.rs`.)
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::error::NoSlot;
use crate::primitive::{AtomicPtr, Mutex, MutexGuard, const_unless_loom};
use crate::slots::{Claim, Slots};

/// Nothing, or a value that is never changed, only replaced.
#[derive(Debug)]
pub(crate) struct Published<T> {
    current: AtomicPtr<T>,
    slots: Slots,
    /// Values that were replaced while somebody read them.
    retired: Mutex<Vec<Retired<T>>>,
    /// It shares and drops values of `T`.
    owns: PhantomData<Box<T>>,
}

/// A replaced value.
#[derive(Debug)]
struct Retired<T>(NonNull<T>);

// SAFETY: it owns its value as a box does.
unsafe impl<T: Send> Send for Retired<T> {}

/// The one writer.
#[derive(Debug)]
pub(crate) struct Writer<'a, T> {
    published: &'a Published<T>,
    retired: MutexGuard<'a, Vec<Retired<T>>>,
}

impl<T> Published<T> {
    const_unless_loom! {
        pub(crate) fn nothing(slots: Slots) -> Self {
            Self {
                current: AtomicPtr::new(ptr::null_mut()),
                slots,
                retired: Mutex::new(Vec::new()),
                owns: PhantomData,
            }
        }
    }

    /// Waits until there is no other writer.
    pub(crate) fn write(&self) -> Writer<'_, T> {
        // A thread that panicked under the lock has published or not; the list is whole either way.
        Writer { published: self, retired: self.retired.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Gives `look` the value that is published now.
    #[inline]
    pub(crate) fn read<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> Result<R, NoSlot> {
        self.read_by(Slots::claim, look)
    }

    /// Does the same without a thread-local.
    #[inline]
    pub(crate) fn read_without_hint<R>(&self, look: impl FnOnce(Option<&T>) -> R) -> Result<R, NoSlot> {
        self.read_by(Slots::claim_without_hint, look)
    }

    #[inline(always)]
    fn read_by<R>(
        &self,
        claim: impl FnOnce(Slots, *mut ()) -> Result<Claim, NoSlot>,
        look: impl FnOnce(Option<&T>) -> R,
    ) -> Result<R, NoSlot> {
        let mut seen = self.current.load(Ordering::Relaxed);
        if seen.is_null() {
            return Ok(look(None));
        }
        let claim = claim(self.slots, seen.cast())?;
        loop {
            // After the light barrier of `claim` or `renew`. Pairs also with the swap in `replace`:
            // the value behind the address is whole.
            let again = self.current.load(Ordering::SeqCst);
            if again == seen {
                break;
            }
            // A writer has got ahead of this reader. If writers do so for ever, they make progress.
            seen = again;
            claim.renew(seen.cast());
        }
        // SAFETY: null or, by invariant 1, a value that `claim` keeps from being freed (invariant
        // 2).
        let result = look(unsafe { seen.as_ref() });
        drop(claim);
        Ok(result)
    }
}

impl<T> Writer<'_, T> {
    /// The published value.
    pub(crate) fn current(&self) -> Option<&T> {
        let current = self.published.current.load(Ordering::Relaxed);
        // SAFETY: null or a published value (invariant 1), which only this writer could replace and
        // free; both take `&mut self`. The lock ordered the store of it before us.
        unsafe { current.as_ref() }
    }

    /// Publishes `value` instead.
    pub(crate) fn replace(&mut self, value: Box<T>) {
        // Before the heavy barrier in `holds`. Pairs with the loads in `read`.
        let old = self.published.current.swap(Box::into_raw(value), Ordering::SeqCst);
        self.retired.extend(NonNull::new(old).map(Retired));
    }

    /// Frees replaced values that no reader uses. Returns the number of those that are left.
    pub(crate) fn free_unread(&mut self) -> usize {
        let slots = self.published.slots;
        self.retired.retain(|old| {
            let read = slots.holds(old.0.as_ptr().cast());
            if !read {
                // SAFETY: it came from `replace`, only this list has it, and no reader uses it
                // (invariant 2).
                drop(unsafe { Box::from_raw(old.0.as_ptr()) });
            }
            read
        });
        self.retired.len()
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let current = NonNull::new(self.current.load(Ordering::Relaxed)).map(Retired);
        let retired = self.retired.get_mut().unwrap_or_else(PoisonError::into_inner);
        for value in retired.drain(..).chain(current) {
            // SAFETY: invariant 1; readers borrow `self`, so there is none.
            drop(unsafe { Box::from_raw(value.0.as_ptr()) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::slots::{Slot, Table};

    #[test]
    fn value_is_freed_after_its_last_read() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let published = Published::nothing(Slots::of_process());
        let mut writer = published.write();
        writer.replace(Box::new(Arc::clone(&first)));
        let seen = published.read(|value| {
            writer.replace(Box::new(Arc::clone(&second)));
            assert_eq!((writer.free_unread(), Arc::strong_count(&first)), (1, 2));
            value.map(|value| **value)
        });
        assert_eq!(seen, Ok(Some(1)));
        assert_eq!((writer.free_unread(), Arc::strong_count(&first)), (0, 1));
        assert_eq!(writer.current().map(|value| **value), Some(2));
        drop(writer);
        drop(published);
        assert_eq!(Arc::strong_count(&second), 1);
    }

    #[test]
    fn retired_values_are_freed_with_the_map() {
        let first = Arc::new(1);
        let published = Published::nothing(Slots::of_process());
        published.write().replace(Box::new(Arc::clone(&first)));
        published.write().replace(Box::new(Arc::new(2)));
        drop(published);
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn no_answer_without_a_free_slot() {
        static TABLE: Table<[Slot; 1]> = Table::of([const { Slot::new() }; 1]);
        let published = Published::nothing(Slots::of(&TABLE));
        assert_eq!(published.read(|value| value.is_none()), Ok(true));
        published.write().replace(Box::new(7));
        let inside = published.read(|_| published.read(|value| value == Some(&7)));
        assert_eq!(inside, Ok(Err(NoSlot { slots: 1 })));
        assert_eq!(published.read(|value| value == Some(&7)), Ok(true));
    }
}

#[cfg(all(test, loom))]
mod interleavings {
    //! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-maps --lib interleavings`.

    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    use super::*;

    /// A value that is read and dropped through a cell in which loom checks that the read happens
    /// before the drop.
    struct Watched(UnsafeCell<u32>);

    impl Drop for Watched {
        fn drop(&mut self) {
            // SAFETY: loom fails the test if anybody else could be at it.
            self.0.with_mut(|value| unsafe { *value = 0 });
        }
    }

    fn watched(value: u32) -> Watched {
        Watched(UnsafeCell::new(value))
    }

    #[test]
    fn nothing_is_freed_under_a_reader() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let published = Arc::new(Published::nothing(Slots::of_process()));
            published.write().replace(Box::new(watched(1)));
            let reader = {
                let published = Arc::clone(&published);
                loom::thread::spawn(move || {
                    // SAFETY: as above.
                    let look = |watched: &Watched| watched.0.with(|value| unsafe { *value });
                    let seen =
                        [(); 2].map(|()| published.read(|watched| watched.map(look)).unwrap().unwrap());
                    assert!(1 <= seen[0] && seen[0] <= seen[1] && seen[1] <= 3, "{seen:?}");
                })
            };
            for value in 2..=3 {
                let mut writer = published.write();
                writer.replace(Box::new(watched(value)));
                writer.free_unread();
            }
            reader.join().unwrap();
            assert_eq!(published.write().free_unread(), 0);
        });
    }
}
