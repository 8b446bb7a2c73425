//! A reader-writer lock with the face of `std::sync::RwLock`.

use std::any::type_name;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;
use std::sync::{self, LockResult, TryLockResult};

use crate::kind::LockKind;
use crate::mutex::{attempt_result, attempted, map};
use crate::note::{Held, Lock, take, take_free};
use crate::run::are_noted;

/// `std::sync::RwLock` that shows its holders, readers among them.
///
/// ```
/// use dormouse_locks::RwLock;
///
/// static MENU: RwLock<Vec<&str>> = RwLock::new(Vec::new());
/// MENU.write().unwrap().push("tea");
/// assert_eq!(MENU.read().unwrap().len(), 1);
/// ```
#[derive(Default)]
#[repr(transparent)]
pub struct RwLock<T: ?Sized> {
    inner: sync::RwLock<T>,
}

const _: () = assert!(size_of::<RwLock<u64>>() == size_of::<sync::RwLock<u64>>());

/// A reader; it leaves when it is dropped.
#[must_use = "the reader leaves when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // In this order: the holder is removed before the lock is free. It is here for its drop.
    _held: Held,
    inner: sync::RwLockReadGuard<'a, T>,
}

/// The writer; the lock is free again when it is dropped.
#[must_use = "the lock is free again when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    _held: Held,
    inner: sync::RwLockWriteGuard<'a, T>,
}

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { inner: sync::RwLock::new(value) }
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// If a writer panicked.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    #[inline]
    fn lock_of(&self, kind: LockKind) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), kind, name: type_name::<T>() }
    }

    /// Takes the lock to read, and waits if there is a writer.
    ///
    /// # Errors
    ///
    /// If a writer panicked. The guard is in the error.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        if are_noted() {
            return self.read_noted(Location::caller());
        }
        map(self.inner.read(), |inner| RwLockReadGuard { _held: Held::NONE, inner })
    }

    #[cold]
    fn read_noted(&self, site: &'static Location<'static>) -> LockResult<RwLockReadGuard<'_, T>> {
        let attempt = || attempted(self.inner.try_read());
        match take(self.lock_of(LockKind::Read), site, attempt, || Some(self.inner.read()), false) {
            Some((result, held)) => map(result, |inner| RwLockReadGuard { _held: held, inner }),
            None => unreachable!("a wait without an end by time was given up"),
        }
    }

    /// Takes the lock to read if there is no writer.
    ///
    /// # Errors
    ///
    /// If there is one, or a writer panicked.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        let attempt = || attempted(self.inner.try_read());
        let taken = take_free(self.lock_of(LockKind::Read), Location::caller(), attempt);
        attempt_result(
            taken.map(|(result, held)| map(result, |inner| RwLockReadGuard { _held: held, inner })),
        )
    }

    /// Takes the lock to write, and waits until nobody else has it.
    ///
    /// # Errors
    ///
    /// If a writer panicked. The guard is in the error.
    #[inline]
    #[track_caller]
    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        if are_noted() {
            return self.write_noted(Location::caller());
        }
        map(self.inner.write(), |inner| RwLockWriteGuard { _held: Held::NONE, inner })
    }

    #[cold]
    fn write_noted(&self, site: &'static Location<'static>) -> LockResult<RwLockWriteGuard<'_, T>> {
        let attempt = || attempted(self.inner.try_write());
        match take(self.lock_of(LockKind::Write), site, attempt, || Some(self.inner.write()), false) {
            Some((result, held)) => map(result, |inner| RwLockWriteGuard { _held: held, inner }),
            None => unreachable!("a wait without an end by time was given up"),
        }
    }

    /// Takes the lock to write if nobody has it.
    ///
    /// # Errors
    ///
    /// If somebody has it, or a writer panicked.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        let attempt = || attempted(self.inner.try_write());
        let taken = take_free(self.lock_of(LockKind::Write), Location::caller(), attempt);
        attempt_result(
            taken.map(|(result, held)| map(result, |inner| RwLockWriteGuard { _held: held, inner })),
        )
    }

    /// Whether a writer has panicked.
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Takes back that a writer has panicked.
    pub fn clear_poison(&self) {
        self.inner.clear_poison();
    }

    /// The value, which nobody else can reach.
    ///
    /// # Errors
    ///
    /// If a writer panicked.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLockWriteGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
