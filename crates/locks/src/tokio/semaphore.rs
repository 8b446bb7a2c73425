//! A semaphore with the face of `tokio::sync::Semaphore`: a queue in which requests wait.

use std::future::Future;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;

use tokio::sync as inner;
use tokio::sync::{AcquireError, TryAcquireError};

use super::{Around, take_unless_closed, tokio, tried};
use crate::face::LockGuard;
use crate::kind::{LockKind, LockType};
use crate::note::Lock;

/// `tokio::sync::Semaphore` that shows the tasks with its permits, by the line that took them, and
/// the tasks that wait for one.
///
/// ```
/// use dormouse_locks::tokio::Semaphore;
///
/// static POTS: Semaphore = Semaphore::const_new(2);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let pot = POTS.acquire().await?;
/// assert_eq!(POTS.available_permits(), 1);
/// drop(pot);
/// # Ok::<(), dormouse_locks::tokio::AcquireError>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[repr(transparent)]
pub struct Semaphore {
    inner: inner::Semaphore,
}

const _: () = assert!(size_of::<Semaphore>() == size_of::<inner::Semaphore>());

/// Permits; they are given back when it is dropped.
pub type SemaphorePermit<'a> = LockGuard<inner::SemaphorePermit<'a>>;
/// [`SemaphorePermit`] that has a reference to the semaphore of its own.
pub type OwnedSemaphorePermit = LockGuard<inner::OwnedSemaphorePermit>;

impl Semaphore {
    /// The most permits of a semaphore.
    pub const MAX_PERMITS: usize = inner::Semaphore::MAX_PERMITS;

    /// A semaphore with this number of permits.
    pub fn new(permits: usize) -> Self {
        Self { inner: inner::Semaphore::new(permits) }
    }

    /// A semaphore with this number of permits, in a constant.
    pub const fn const_new(permits: usize) -> Self {
        Self { inner: inner::Semaphore::const_new(permits) }
    }

    fn lock_of(&self) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(LockKind::AsyncPermit) }
    }

    /// Takes a permit, and awaits one if there is none.
    ///
    /// # Errors
    ///
    /// If the semaphore is closed.
    #[track_caller]
    pub fn acquire(&self) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        self.acquire_many(1)
    }

    /// Takes several permits at once, and awaits them.
    ///
    /// # Errors
    ///
    /// If the semaphore is closed.
    #[track_caller]
    pub fn acquire_many(
        &self,
        permits: u32,
    ) -> impl Future<Output = Result<SemaphorePermit<'_>, AcquireError>> {
        let attempt = move || self.inner.try_acquire_many(permits).ok();
        take_unless_closed(self.lock_of(), Location::caller(), attempt, move || {
            self.inner.acquire_many(permits)
        })
    }

    /// [`Semaphore::acquire`] for a permit that lives as long as it likes.
    ///
    /// # Errors
    ///
    /// If the semaphore is closed.
    #[track_caller]
    pub fn acquire_owned(
        self: Arc<Self>,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        self.acquire_many_owned(1)
    }

    /// [`Semaphore::acquire_many`] for permits that live as long as they like.
    ///
    /// # Errors
    ///
    /// If the semaphore is closed.
    #[track_caller]
    pub fn acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> {
        let (lock, semaphore) = (self.lock_of(), self.inner());
        let tries = Arc::clone(&semaphore);
        let attempt = move || Arc::clone(&tries).try_acquire_many_owned(permits).ok();
        take_unless_closed(lock, Location::caller(), attempt, move || semaphore.acquire_many_owned(permits))
    }

    /// Takes a permit if there is one.
    ///
    /// # Errors
    ///
    /// If there is none, or the semaphore is closed.
    #[track_caller]
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Takes several permits at once if there are as many.
    ///
    /// # Errors
    ///
    /// If there are fewer, or the semaphore is closed.
    #[track_caller]
    pub fn try_acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        tried(self.lock_of(), Location::caller(), || self.inner.try_acquire_many(permits))
    }

    /// [`Semaphore::try_acquire`] for a permit that lives as long as it likes.
    ///
    /// # Errors
    ///
    /// If there is none, or the semaphore is closed.
    #[track_caller]
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// [`Semaphore::try_acquire_many`] for permits that live as long as they like.
    ///
    /// # Errors
    ///
    /// If there are fewer, or the semaphore is closed.
    #[track_caller]
    pub fn try_acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        tried(self.lock_of(), Location::caller(), || self.inner().try_acquire_many_owned(permits))
    }

    /// The permits that nobody has.
    pub fn available_permits(&self) -> usize {
        self.inner.available_permits()
    }

    /// Adds permits.
    ///
    /// # Panics
    ///
    /// If there would be more than [`Semaphore::MAX_PERMITS`].
    pub fn add_permits(&self, more: usize) {
        self.inner.add_permits(more);
    }

    /// Takes permits away for good; how many it were.
    pub fn forget_permits(&self, permits: usize) -> usize {
        self.inner.forget_permits(permits)
    }

    /// Ends all waits with an error, and refuses permits from now on.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

impl SemaphorePermit<'_> {
    /// Takes the permits away for good.
    pub fn forget(self) {
        self.leave().0.forget();
    }

    /// The number of permits.
    pub fn num_permits(&self) -> usize {
        self.inner().num_permits()
    }
}

impl OwnedSemaphorePermit {
    /// Takes the permits away for good.
    pub fn forget(self) {
        self.leave().0.forget();
    }

    /// The number of permits.
    pub fn num_permits(&self) -> usize {
        self.inner().num_permits()
    }
}
