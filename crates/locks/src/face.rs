//! The faces like std's and tokio's share the type of their guards, and the way a lock is taken.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

use crate::leave::Held;
use crate::note::{Lock, Taker, take_free, take_later};

/// The guard of a lock underneath, with the note of its holder. `L` is what the guard remembers of
/// its lock.
#[must_use = "the lock is free again when the guard is dropped"]
pub struct LockGuard<G, L = ()> {
    // In this order: the holder is removed before the lock is free.
    held: Held,
    inner: G,
    lock: L,
}

impl<G, L> LockGuard<G, L> {
    pub(crate) fn new(inner: G, held: Held, lock: L) -> Self {
        Self { held, inner, lock }
    }

    /// The guard underneath; the thread is its lock's holder no more.
    pub(crate) fn leave(self) -> (G, L) {
        drop(self.held);
        (self.inner, self.lock)
    }

    /// The guard underneath, with the note of its holder.
    pub(crate) fn into_parts(self) -> (G, Held, L) {
        (self.inner, self.held, self.lock)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn inner(&self) -> &G {
        &self.inner
    }
}

impl<G: Deref, L> Deref for LockGuard<G, L> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut, L> DerefMut for LockGuard<G, L> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl<G: fmt::Debug, L> fmt::Debug for LockGuard<G, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<G: fmt::Display, L> fmt::Display for LockGuard<G, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The result of a lock, with another guard.
#[inline]
pub(crate) fn map<G, H>(result: LockResult<G>, guard: impl FnOnce(G) -> H) -> LockResult<H> {
    match result {
        Ok(inner) => Ok(guard(inner)),
        Err(poisoned) => Err(PoisonError::new(guard(poisoned.into_inner()))),
    }
}

/// A guard while locks are not noted.
#[inline]
pub(crate) fn unnoted<G, L>(result: LockResult<G>, own: L) -> LockResult<LockGuard<G, L>> {
    map(result, |inner| LockGuard::new(inner, Held::NONE, own))
}

/// The result of an attempt; `None`: the lock is not free.
fn attempted<G>(result: TryLockResult<G>) -> Option<LockResult<G>> {
    match result {
        Ok(inner) => Some(Ok(inner)),
        Err(TryLockError::Poisoned(poisoned)) => Some(Err(poisoned)),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes a lock of std's while locks are noted.
#[inline]
pub(crate) fn noted<G, L>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> LockResult<G>,
    own: L,
) -> LockResult<LockGuard<G, L>> {
    let Some(taker) = Taker::begin(lock, site) else { return unnoted(wait(), own) };
    match attempt() {
        Ok(inner) => Ok(LockGuard::new(inner, taker.taken(lock), own)),
        Err(refusal) => noted_later(taker, lock, refusal, attempt, wait, own),
    }
}

#[cold]
fn noted_later<G, L>(
    taker: Taker,
    lock: Lock,
    refusal: TryLockError<G>,
    attempt: impl Fn() -> TryLockResult<G>,
    wait: impl FnOnce() -> LockResult<G>,
    own: L,
) -> LockResult<LockGuard<G, L>> {
    let taken = match refusal {
        TryLockError::Poisoned(poisoned) => Some((Err(poisoned), taker.taken(lock))),
        TryLockError::WouldBlock => take_later(taker, lock, || attempted(attempt()), || Some(wait()), false),
    };
    match taken {
        Some((result, held)) => map(result, |inner| LockGuard::new(inner, held, own)),
        // It waits until it has the lock.
        None => unreachable!("a wait without an end by time was given up"),
    }
}

/// Takes a lock of std's if it is free.
#[inline]
pub(crate) fn tried<G, L>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnOnce() -> TryLockResult<G>,
    own: L,
) -> TryLockResult<LockGuard<G, L>> {
    let (result, held) = take_free(lock, site, || attempted(attempt()).ok_or(TryLockError::WouldBlock))?;
    Ok(map(result, |inner| LockGuard::new(inner, held, own))?)
}
