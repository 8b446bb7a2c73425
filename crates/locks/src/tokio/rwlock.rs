//! A reader-writer lock with the face of `tokio::sync::RwLock`.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::ptr;

use tokio::sync as inner;
use tokio::sync::TryLockError;

use super::{take, tokio, tried};
use crate::face::LockGuard;
use crate::kind::{LockKind, LockName, LockType};
use crate::note::Lock;

/// `tokio::sync::RwLock` that shows its holders, readers among them.
#[derive(Default)]
#[repr(transparent)]
pub struct RwLock<T: ?Sized> {
    inner: inner::RwLock<T>,
}

const _: () = assert!(size_of::<RwLock<u64>>() == size_of::<inner::RwLock<u64>>());

/// A reader; it leaves when it is dropped.
pub type RwLockReadGuard<'a, T> = LockGuard<inner::RwLockReadGuard<'a, T>>;
/// The writer; the lock is free again when it is dropped.
pub type RwLockWriteGuard<'a, T> = LockGuard<inner::RwLockWriteGuard<'a, T>>;

impl<T> RwLock<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Self { inner: inner::RwLock::new(value) }
    }

    /// A free lock, in a constant.
    pub const fn const_new(value: T) -> Self {
        Self { inner: inner::RwLock::const_new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    const READ: &'static LockType =
        &LockType { kind: LockKind::AsyncRead, name: LockName::Type(type_name::<T>) };
    const WRITE: &'static LockType =
        &LockType { kind: LockKind::AsyncWrite, name: LockName::Type(type_name::<T>) };

    fn lock_of(&self, of: &'static LockType) -> Lock {
        Lock { address: ptr::from_ref(self).cast::<()>().addr(), of }
    }

    /// Takes the lock to read, and awaits the end of a writer.
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = RwLockReadGuard<'_, T>> {
        let attempt = || self.inner.try_read().ok();
        take(self.lock_of(Self::READ), Location::caller(), attempt, || self.inner.read())
    }

    /// Takes the lock to write, and awaits that nobody else has it.
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = RwLockWriteGuard<'_, T>> {
        let attempt = || self.inner.try_write().ok();
        take(self.lock_of(Self::WRITE), Location::caller(), attempt, || self.inner.write())
    }

    /// Takes the lock to read if there is no writer.
    ///
    /// # Errors
    ///
    /// If there is one, or one waits.
    #[track_caller]
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        tried(self.lock_of(Self::READ), Location::caller(), || self.inner.try_read())
    }

    /// Takes the lock to write if nobody has it.
    ///
    /// # Errors
    ///
    /// If somebody has it.
    #[track_caller]
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        tried(self.lock_of(Self::WRITE), Location::caller(), || self.inner.try_write())
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
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
