//! A mutex with the face of `tokio::sync::Mutex`.

use std::any::type_name;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use tokio::sync as inner;
use tokio::sync::TryLockError;

use super::{Around, take, take_blocking, tokio, tried};
use crate::face::LockGuard;
use crate::kind::{LockKind, LockName, LockType};
use crate::note::Lock;

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
pub type MutexGuard<'a, T> = LockGuard<inner::MutexGuard<'a, T>>;
/// [`MutexGuard`] that has a reference to the lock of its own.
pub type OwnedMutexGuard<T> = LockGuard<inner::OwnedMutexGuard<T>>;

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

    owned_forms!(
        OwnedMutexGuard of Self::ALONE;
        lock_owned like "Mutex::lock", try_lock_owned like "Mutex::try_lock"
    );

    /// [`Mutex::blocking_lock`] for a guard that lives as long as it likes.
    ///
    /// # Panics
    ///
    /// In a task.
    #[track_caller]
    pub fn blocking_lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T> {
        let (lock, inner) = (self.lock_of(Self::ALONE), self.inner());
        let tries = Arc::clone(&inner);
        let attempt = move || Arc::clone(&tries).try_lock_owned().ok();
        take_blocking(lock, Location::caller(), attempt, || inner.blocking_lock_owned())
    }
}

impl<T: ?Sized> Mutex<T> {
    const ALONE: &'static LockType =
        &LockType { kind: LockKind::AsyncMutex, name: LockName::Type(type_name::<T>) };

    fn lock_of(&self, of: &'static LockType) -> Lock {
        Lock { address: ptr::from_ref(self).cast::<()>().addr(), of }
    }

    /// Takes the lock, and awaits it if it is not free.
    #[track_caller]
    pub fn lock(&self) -> impl Future<Output = MutexGuard<'_, T>> {
        let attempt = || self.inner.try_lock().ok();
        take(self.lock_of(Self::ALONE), Location::caller(), attempt, || self.inner.lock())
    }

    /// Takes the lock on a thread that is no task, and blocks it if the lock is not free.
    ///
    /// # Panics
    ///
    /// In a task.
    #[track_caller]
    pub fn blocking_lock(&self) -> MutexGuard<'_, T> {
        let attempt = || self.inner.try_lock().ok();
        take_blocking(self.lock_of(Self::ALONE), Location::caller(), attempt, || self.inner.blocking_lock())
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// If it is not.
    #[track_caller]
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        tried(self.lock_of(Self::ALONE), Location::caller(), || self.inner.try_lock())
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
