//! A mutex with the face of `std::sync::Mutex`.

use std::any::type_name;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr;
use std::sync::{self, LockResult, PoisonError, TryLockError, TryLockResult};

use crate::kind::LockKind;
use crate::note::{Held, Lock, Taker, take, take_free};
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
#[must_use = "the mutex is free again when the guard is dropped"]
pub struct MutexGuard<'a, T: ?Sized> {
    // In this order: the holder is removed before the lock is free.
    held: Held,
    inner: sync::MutexGuard<'a, T>,
    pub(crate) mutex: &'a Mutex<T>,
}

/// The result of a lock, with another guard.
pub(crate) fn map<G, H>(result: LockResult<G>, guard: impl FnOnce(G) -> H) -> LockResult<H> {
    match result {
        Ok(inner) => Ok(guard(inner)),
        Err(poisoned) => Err(PoisonError::new(guard(poisoned.into_inner()))),
    }
}

/// The result of an attempt; `None`: the lock is not free.
pub(crate) fn attempted<G>(result: TryLockResult<G>) -> Option<LockResult<G>> {
    match result {
        Ok(inner) => Some(Ok(inner)),
        Err(TryLockError::Poisoned(poisoned)) => Some(Err(poisoned)),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// The other way round.
pub(crate) fn attempt_result<G>(result: Option<LockResult<G>>) -> TryLockResult<G> {
    match result {
        Some(Ok(guard)) => Ok(guard),
        Some(Err(poisoned)) => Err(TryLockError::Poisoned(poisoned)),
        None => Err(TryLockError::WouldBlock),
    }
}

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
        Lock { address: ptr::from_ref(self).addr(), kind: LockKind::Mutex, name: type_name::<T>() }
    }

    #[inline]
    fn guard<'a>(&'a self, inner: sync::MutexGuard<'a, T>, held: Held) -> MutexGuard<'a, T> {
        MutexGuard { held, inner, mutex: self }
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
        map(self.inner.lock(), |inner| self.guard(inner, Held::NONE))
    }

    #[cold]
    fn lock_noted(&self, site: &'static Location<'static>) -> LockResult<MutexGuard<'_, T>> {
        let attempt = || attempted(self.inner.try_lock());
        match take(self.lock_of(), site, attempt, || Some(self.inner.lock()), false) {
            Some((result, held)) => map(result, |inner| self.guard(inner, held)),
            // It waits until it has the lock.
            None => unreachable!("a wait without an end by time was given up"),
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// If it is not, or a thread panicked with the lock.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let taken = take_free(self.lock_of(), Location::caller(), || attempted(self.inner.try_lock()));
        attempt_result(taken.map(|(result, held)| map(result, |inner| self.guard(inner, held))))
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
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Leaves the table, and returns std's guard: for a wait that frees the lock, and takes it
    /// again.
    pub(crate) fn leave(self) -> (&'a Mutex<T>, sync::MutexGuard<'a, T>) {
        drop(self.held);
        (self.mutex, self.inner)
    }

    /// The thread has the lock again.
    pub(crate) fn again(
        mutex: &'a Mutex<T>,
        inner: sync::MutexGuard<'a, T>,
        site: &'static Location<'static>,
    ) -> Self {
        let taker = if are_noted() { Taker::begin(mutex.lock_of(), site) } else { None };
        mutex.guard(inner, taker.map_or(Held::NONE, Taker::taken))
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

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + fmt::Display> fmt::Display for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
