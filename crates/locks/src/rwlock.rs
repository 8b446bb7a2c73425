//! A reader-writer lock with the face of `std::sync::RwLock`.

use std::any::type_name;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::{self, LockResult, TryLockResult};

use crate::face::{LockGuard, noted, tried, unnoted};
use crate::kind::{LockKind, LockName, LockType};
use crate::note::Lock;
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
pub type RwLockReadGuard<'a, T> = LockGuard<sync::RwLockReadGuard<'a, T>>;
/// The writer; the lock is free again when it is dropped.
pub type RwLockWriteGuard<'a, T> = LockGuard<sync::RwLockWriteGuard<'a, T>>;

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
    const READ: &'static LockType = &LockType { kind: LockKind::Read, name: LockName::Type(type_name::<T>) };
    const WRITE: &'static LockType =
        &LockType { kind: LockKind::Write, name: LockName::Type(type_name::<T>) };

    #[inline]
    fn lock_of(&self, of: &'static LockType) -> Lock {
        Lock { address: ptr::from_ref(self).cast::<()>().addr(), of }
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
        unnoted(self.inner.read(), ())
    }

    #[cold]
    fn read_noted(&self, site: &'static Location<'static>) -> LockResult<RwLockReadGuard<'_, T>> {
        noted(self.lock_of(Self::READ), site, || self.inner.try_read(), || self.inner.read(), ())
    }

    /// Takes the lock to read if there is no writer.
    ///
    /// # Errors
    ///
    /// If there is one, or a writer panicked.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        tried(self.lock_of(Self::READ), Location::caller(), || self.inner.try_read(), ())
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
        unnoted(self.inner.write(), ())
    }

    #[cold]
    fn write_noted(&self, site: &'static Location<'static>) -> LockResult<RwLockWriteGuard<'_, T>> {
        noted(self.lock_of(Self::WRITE), site, || self.inner.try_write(), || self.inner.write(), ())
    }

    /// Takes the lock to write if nobody has it.
    ///
    /// # Errors
    ///
    /// If somebody has it, or a writer panicked.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> TryLockResult<RwLockWriteGuard<'_, T>> {
        tried(self.lock_of(Self::WRITE), Location::caller(), || self.inner.try_write(), ())
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
