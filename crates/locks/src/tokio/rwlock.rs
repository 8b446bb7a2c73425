//! A reader-writer lock with the face of `tokio::sync::RwLock`.

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
use crate::leave::Held;
use crate::note::{Lock, Taker};

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
/// [`RwLockReadGuard`] that has a reference to the lock of its own.
pub type OwnedRwLockReadGuard<T> = LockGuard<inner::OwnedRwLockReadGuard<T>>;
/// [`RwLockWriteGuard`] that has a reference to the lock of its own.
pub type OwnedRwLockWriteGuard<T> = LockGuard<inner::OwnedRwLockWriteGuard<T>>;

impl<T> RwLock<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Self { inner: inner::RwLock::new(value) }
    }

    /// A free lock, in a constant.
    pub const fn const_new(value: T) -> Self {
        Self { inner: inner::RwLock::const_new(value) }
    }

    /// A free lock for at most that number of readers at once.
    ///
    /// # Panics
    ///
    /// If there could be more than tokio allows.
    pub fn with_max_readers(value: T, most: u32) -> Self {
        Self { inner: inner::RwLock::with_max_readers(value, most) }
    }

    /// [`RwLock::with_max_readers`], in a constant.
    ///
    /// # Panics
    ///
    /// See [`RwLock::with_max_readers`].
    pub const fn const_with_max_readers(value: T, most: u32) -> Self {
        Self { inner: inner::RwLock::const_with_max_readers(value, most) }
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }

    owned_forms!(
        OwnedRwLockReadGuard of Self::READ;
        read_owned like "RwLock::read", try_read_owned like "RwLock::try_read"
    );

    owned_forms!(
        OwnedRwLockWriteGuard of Self::WRITE;
        write_owned like "RwLock::write", try_write_owned like "RwLock::try_write"
    );
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

    /// Takes the lock to read on a thread that is no task, and blocks it as long as there is a
    /// writer.
    ///
    /// # Panics
    ///
    /// In a task.
    #[track_caller]
    pub fn blocking_read(&self) -> RwLockReadGuard<'_, T> {
        let attempt = || self.inner.try_read().ok();
        take_blocking(self.lock_of(Self::READ), Location::caller(), attempt, || self.inner.blocking_read())
    }

    /// Takes the lock to write on a thread that is no task, and blocks it until nobody else has it.
    ///
    /// # Panics
    ///
    /// In a task.
    #[track_caller]
    pub fn blocking_write(&self) -> RwLockWriteGuard<'_, T> {
        let attempt = || self.inner.try_write().ok();
        take_blocking(self.lock_of(Self::WRITE), Location::caller(), attempt, || self.inner.blocking_write())
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

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// The writer becomes a reader. No other writer has the lock in between.
    #[track_caller]
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        downgraded(self, RwLock::<T>::READ, Location::caller(), inner::RwLockWriteGuard::downgrade)
    }
}

impl<T: ?Sized> OwnedRwLockWriteGuard<T> {
    /// The writer becomes a reader. No other writer has the lock in between.
    #[track_caller]
    pub fn downgrade(self) -> OwnedRwLockReadGuard<T> {
        downgraded(self, RwLock::<T>::READ, Location::caller(), inner::OwnedRwLockWriteGuard::downgrade)
    }
}

fn downgraded<W, R>(
    writer: LockGuard<W>,
    of: &'static LockType,
    site: &'static Location<'static>,
    downgrade: impl FnOnce(W) -> R,
) -> LockGuard<R> {
    let (inner, held, ()) = writer.into_parts();
    // A writer that was not noted is no reader that is.
    let lock = held.address().map(|address| Lock { address, of });
    let noted = lock.and_then(|lock| Some(Taker::begin(lock, site)?.taken(lock)));
    // Only now, so that the lock has a holder at each moment.
    drop(held);
    LockGuard::new(downgrade(inner), noted.unwrap_or(Held::NONE), ())
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
