//! A reader-writer lock with the face of `tokio::sync::RwLock`.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;

use tokio::sync as inner;
use tokio::sync::TryLockError;

use super::{take, tokio};
use crate::kind::LockKind;
use crate::note::{Held, Lock, take_free};

/// `tokio::sync::RwLock` that shows its holders, readers among them.
#[derive(Default)]
#[repr(transparent)]
pub struct RwLock<T: ?Sized> {
    inner: inner::RwLock<T>,
}

const _: () = assert!(size_of::<RwLock<u64>>() == size_of::<inner::RwLock<u64>>());

/// A reader; it leaves when it is dropped.
#[must_use = "the reader leaves when the guard is dropped"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // In this order: the holder is removed before the lock is free. It is here for its drop.
    _held: Held,
    inner: inner::RwLockReadGuard<'a, T>,
}

/// The writer; the lock is free again when it is dropped.
#[must_use = "the lock is free again when the guard is dropped"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    _held: Held,
    inner: inner::RwLockWriteGuard<'a, T>,
}

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
    fn lock_of(&self, kind: LockKind) -> Lock {
        Lock { address: ptr::from_ref(self).cast::<()>().addr(), kind, name: type_name::<T>() }
    }

    /// Takes the lock to read, and awaits the end of a writer.
    #[track_caller]
    pub fn read(&self) -> impl Future<Output = RwLockReadGuard<'_, T>> {
        let site = Location::caller();
        async move {
            let (lock, attempt) = (self.lock_of(LockKind::AsyncRead), || self.inner.try_read().ok());
            let (inner, held) = take(lock, site, attempt, || self.inner.read()).await;
            RwLockReadGuard { _held: held, inner }
        }
    }

    /// Takes the lock to write, and awaits that nobody else has it.
    #[track_caller]
    pub fn write(&self) -> impl Future<Output = RwLockWriteGuard<'_, T>> {
        let site = Location::caller();
        async move {
            let (lock, attempt) = (self.lock_of(LockKind::AsyncWrite), || self.inner.try_write().ok());
            let (inner, held) = take(lock, site, attempt, || self.inner.write()).await;
            RwLockWriteGuard { _held: held, inner }
        }
    }

    /// Takes the lock to read if there is no writer.
    ///
    /// # Errors
    ///
    /// If there is one, or one waits.
    #[track_caller]
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        let mut why = None;
        let attempt = || self.inner.try_read().map_err(|refusal| why = Some(refusal)).ok();
        match (take_free(self.lock_of(LockKind::AsyncRead), Location::caller(), attempt), why) {
            (Some((inner, held)), _) => Ok(RwLockReadGuard { _held: held, inner }),
            (None, Some(why)) => Err(why),
            (None, None) => unreachable!("an attempt that fails has a reason"),
        }
    }

    /// Takes the lock to write if nobody has it.
    ///
    /// # Errors
    ///
    /// If somebody has it.
    #[track_caller]
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        let mut why = None;
        let attempt = || self.inner.try_write().map_err(|refusal| why = Some(refusal)).ok();
        match (take_free(self.lock_of(LockKind::AsyncWrite), Location::caller(), attempt), why) {
            (Some((inner, held)), _) => Ok(RwLockWriteGuard { _held: held, inner }),
            (None, Some(why)) => Err(why),
            (None, None) => unreachable!("an attempt that fails has a reason"),
        }
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

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
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
