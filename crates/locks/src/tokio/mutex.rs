//! A mutex with the face of `tokio::sync::Mutex`.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use tokio::sync as inner;
use tokio::sync::TryLockError;

use super::{Around, take, tokio};
use crate::kind::LockKind;
use crate::note::{Held, Lock, take as take_blocking, take_free};
use crate::run::are_noted;

/// `tokio::sync::Mutex` that shows its holder.
///
/// ```
/// use dormouse_locks::tokio::Mutex;
///
/// static CUPS: Mutex<u32> = Mutex::const_new(0);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// *CUPS.lock().await += 1;
/// assert_eq!(*CUPS.lock().await, 1);
/// # });
/// ```
#[derive(Default)]
#[repr(transparent)]
pub struct Mutex<T: ?Sized> {
    inner: inner::Mutex<T>,
}

const _: () = assert!(size_of::<Mutex<u64>>() == size_of::<inner::Mutex<u64>>());

/// The lock is free again when it is dropped.
#[must_use = "the mutex is free again when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    // In this order: the holder is removed before the lock is free. It is here for its drop.
    _held: Held,
    inner: inner::MutexGuard<'a, T>,
}

/// [`MutexGuard`] that has a reference to the lock of its own.
#[must_use = "the mutex is free again when the guard is dropped"]
pub struct OwnedMutexGuard<T> {
    _held: Held,
    inner: inner::OwnedMutexGuard<T>,
}

impl<T> Mutex<T> {
    /// A free mutex.
    pub fn new(value: T) -> Self {
        Self { inner: inner::Mutex::new(value) }
    }

    /// A free mutex, in a constant.
    pub const fn const_new(value: T) -> Self {
        Self { inner: inner::Mutex::const_new(value) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    /// [`Mutex::lock`] for a guard that lives as long as it likes.
    #[track_caller]
    pub fn lock_owned(self: Arc<Self>) -> impl Future<Output = OwnedMutexGuard<T>> {
        let site = Location::caller();
        async move {
            let (lock, mutex) = (self.lock_of(), self.inner());
            let attempt = || mutex.clone().try_lock_owned().ok();
            let (inner, held) = take(lock, site, attempt, || mutex.clone().lock_owned()).await;
            OwnedMutexGuard { _held: held, inner }
        }
    }

    /// [`Mutex::try_lock`] for such a guard.
    ///
    /// # Errors
    ///
    /// If the lock is not free.
    #[track_caller]
    pub fn try_lock_owned(self: Arc<Self>) -> Result<OwnedMutexGuard<T>, TryLockError> {
        let (lock, mutex, mut why) = (self.lock_of(), self.inner(), None);
        let attempt = || mutex.try_lock_owned().map_err(|refusal| why = Some(refusal)).ok();
        match (take_free(lock, Location::caller(), attempt), why) {
            (Some((inner, held)), _) => Ok(OwnedMutexGuard { _held: held, inner }),
            (None, Some(why)) => Err(why),
            (None, None) => unreachable!("an attempt that fails has a reason"),
        }
    }
}

impl<T: ?Sized> Mutex<T> {
    fn lock_of(&self) -> Lock {
        let address = ptr::from_ref(self).cast::<()>().addr();
        Lock { address, kind: LockKind::AsyncMutex, name: type_name::<T>() }
    }

    /// Takes the lock, and awaits it if it is not free.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = MutexGuard<'_, T>> {
        let site = Location::caller();
        async move {
            let attempt = || self.inner.try_lock().ok();
            let (inner, held) = take(self.lock_of(), site, attempt, || self.inner.lock()).await;
            MutexGuard { _held: held, inner }
        }
    }

    /// Takes the lock on a thread that is no task, and blocks it if the lock is not free.
    ///
    /// # Panics
    ///
    /// In a task.
    #[track_caller]
    pub fn blocking_lock(&self) -> MutexGuard<'_, T> {
        if !are_noted() {
            return MutexGuard { _held: Held::NONE, inner: self.inner.blocking_lock() };
        }
        let attempt = || self.inner.try_lock().ok();
        let wait = || Some(self.inner.blocking_lock());
        match take_blocking(self.lock_of(), Location::caller(), attempt, wait, false) {
            Some((inner, held)) => MutexGuard { _held: held, inner },
            None => unreachable!("a wait without an end by time was given up"),
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// If it is not.
    #[track_caller]
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        let mut why = None;
        let attempt = || self.inner.try_lock().map_err(|refusal| why = Some(refusal)).ok();
        match (take_free(self.lock_of(), Location::caller(), attempt), why) {
            (Some((inner, held)), _) => Ok(MutexGuard { _held: held, inner }),
            (None, Some(why)) => Err(why),
            (None, None) => unreachable!("an attempt that fails has a reason"),
        }
    }

    /// The value, which nobody else can reach.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Deref for OwnedMutexGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for OwnedMutexGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for OwnedMutexGuard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
