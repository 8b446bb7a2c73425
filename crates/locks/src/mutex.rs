//! A mutex with the face of `std::sync::Mutex`.

use std::any::type_name;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::{self, LockResult, TryLockResult};

use crate::face::{LockGuard, noted, tried, unnoted};
use crate::kind::{LockKind, LockName, LockType};
use crate::leave::Held;
use crate::note::{Lock, Taker};
use crate::run::are_noted;

/// `std::sync::Mutex` that shows its holder.
///
/// ```
/// use dormouse_locks::Mutex;
///
/// static CUPS: Mutex<u32> = Mutex::new(0);
/// *CUPS.lock().unwrap() += 1;
/// assert_eq!(*CUPS.lock().unwrap(), 1);
/// ```
#[derive(Default)]
#[repr(transparent)]
pub struct Mutex<T: ?Sized> {
    inner: sync::Mutex<T>,
}

const _: () = assert!(size_of::<Mutex<u64>>() == size_of::<sync::Mutex<u64>>());

/// The lock is free again when it is dropped.
pub type MutexGuard<'a, T> = LockGuard<sync::MutexGuard<'a, T>, &'a Mutex<T>>;

impl<T> Mutex<T> {
    /// A free mutex.
    pub const fn new(value: T) -> Self {
        Self { inner: sync::Mutex::new(value) }
    }

    /// The value.
    ///
    /// # Errors
    ///
    /// If a thread panicked with the lock.
    pub fn into_inner(self) -> LockResult<T> {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    fn lock_of(&self) -> Lock {
        let of = const { &LockType { kind: LockKind::Mutex, name: LockName::Type(type_name::<T>) } };
        Lock { address: ptr::from_ref(self).addr(), of }
    }

    /// Takes the lock, and waits for it if it is not free.
    ///
    /// # Errors
    ///
    /// If a thread panicked with the lock. The guard is in the error.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        if are_noted() {
            return self.lock_noted(Location::caller());
        }
        unnoted(self.inner.lock(), self)
    }

    #[cold]
    fn lock_noted(&self, site: &'static Location<'static>) -> LockResult<MutexGuard<'_, T>> {
        noted(self.lock_of(), site, || self.inner.try_lock(), || self.inner.lock(), self)
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// If it is not, or a thread panicked with the lock.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        tried(self.lock_of(), Location::caller(), || self.inner.try_lock(), self)
    }

    /// Whether a thread has panicked with the lock.
    pub fn is_poisoned(&self) -> bool {
        self.inner.is_poisoned()
    }

    /// Takes back that a thread has panicked with the lock.
    pub fn clear_poison(&self) {
        self.inner.clear_poison();
    }

    /// The value, which nobody else can reach.
    ///
    /// # Errors
    ///
    /// If a thread panicked with the lock.
    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }

    /// The thread has the lock again, after a wait that freed it.
    pub(crate) fn again<'a>(
        &'a self,
        inner: sync::MutexGuard<'a, T>,
        site: &'static Location<'static>,
    ) -> MutexGuard<'a, T> {
        LockGuard::new(inner, self.hold(site), self)
    }

    /// The note that the thread has the lock, which it did not have to try.
    pub(crate) fn hold(&self, site: &'static Location<'static>) -> Held {
        let lock = self.lock_of();
        let taker = if are_noted() { Taker::begin(lock, site) } else { None };
        taker.map_or(Held::NONE, |taker| taker.taken(lock))
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
