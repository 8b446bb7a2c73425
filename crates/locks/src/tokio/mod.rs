//! Locks with the faces of tokio's, whose guards live over `.await`: the holder is a task,
//! whichever thread polls it.
//!
//! A task that is dropped while it waits has given up its wait. A permit that tokio has handed to a
//! task is noted when the task is polled, so in between nobody is shown as its holder.
//!
//! # Safety
//!
//! The unsafe code looks at an `Arc` of a lock as one of tokio's lock, which is all that it
//! contains.
#![allow(unsafe_code)]

/// The forms of two functions, one of which awaits a lock and one tries it, for guards that have a
/// reference to the lock of their own.
macro_rules! owned_forms {
    ($guard:ident of $of:expr; $take:ident like $taken:literal, $attempt:ident like $tried:literal) => {
        #[doc = concat!("[`", $taken, "`] for a guard that lives as long as it likes.")]
        #[track_caller]
        pub fn $take(self: Arc<Self>) -> impl Future<Output = $guard<T>> {
            let (lock, inner) = (self.lock_of($of), self.inner());
            let tries = Arc::clone(&inner);
            let attempt = move || Arc::clone(&tries).$attempt().ok();
            take(lock, Location::caller(), attempt, || inner.$take())
        }

        #[doc = concat!("[`", $tried, "`] for a guard that lives as long as it likes.")]
        ///
        /// # Errors
        ///
        #[doc = concat!("See [`", $tried, "`].")]
        #[track_caller]
        pub fn $attempt(self: Arc<Self>) -> Result<$guard<T>, TryLockError> {
            tried(self.lock_of($of), Location::caller(), || self.inner().$attempt())
        }
    };
}

mod mutex;
mod rwlock;
mod semaphore;

use std::convert::Infallible;
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

use crate::face::LockGuard;
use crate::leave::Held;
use crate::note::{self, Lock, Taker, Wait, take_free};
use crate::run::are_noted;

pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use rwlock::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
pub use tokio::sync::{AcquireError, TryAcquireError, TryLockError};

use ::tokio;

/// Takes a lock that cannot be closed.
async fn take<G, W: Future<Output = G>>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnMut() -> Option<G>,
    wait: impl FnOnce() -> W,
) -> LockGuard<G> {
    let wait = move || async move { Ok::<G, Infallible>(wait().await) };
    let Ok(guard) = take_unless_closed(lock, site, attempt, wait).await;
    guard
}

/// Takes a lock: by `attempt` where it is free, otherwise by awaiting. A wait that ends with an
/// error was given up.
async fn take_unless_closed<G, E, W: Future<Output = Result<G, E>>>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnMut() -> Option<G>,
    wait: impl FnOnce() -> W,
) -> Result<LockGuard<G>, E> {
    if !are_noted() {
        return Ok(LockGuard::new(wait().await?, Held::NONE, ()));
    }
    // An attempt spends nothing of what tokio lets a task do in one poll. Without this, a task that
    // finds its locks free would never yield to the others.
    tokio::task::consume_budget().await;
    let waiting = match begin(lock, site, attempt) {
        Ok((guard, held)) => return Ok(LockGuard::new(guard, held, ())),
        Err(waiting) => waiting,
    };
    let guard = wait().await?;
    // Another thread may poll the task by now, and another group may be current.
    let taker = if waiting.is_some() { Taker::begin(lock, site) } else { None };
    let held = taker.map_or(Held::NONE, |taker| taker.taken_after_wait(lock));
    if let Some(waiting) = waiting {
        waiting.end();
    }
    Ok(LockGuard::new(guard, held, ()))
}

fn begin<G>(
    lock: Lock,
    site: &'static Location<'static>,
    mut attempt: impl FnMut() -> Option<G>,
) -> Result<(G, Held), Option<Wait>> {
    let Some(taker) = Taker::begin(lock, site) else { return Err(None) };
    match attempt() {
        Some(guard) => Ok((guard, taker.taken(lock))),
        None => match taker.wait(lock, false, &mut attempt) {
            Ok(guard) => Ok((guard, taker.taken(lock))),
            Err(waiting) => Err(Some(waiting)),
        },
    }
}

/// Takes a lock on a thread that is no task, and blocks it if the lock is not free.
fn take_blocking<G>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnMut() -> Option<G>,
    wait: impl FnOnce() -> G,
) -> LockGuard<G> {
    if !are_noted() {
        return LockGuard::new(wait(), Held::NONE, ());
    }
    match note::take(lock, site, attempt, || Some(wait()), false) {
        Some((inner, held)) => LockGuard::new(inner, held, ()),
        None => unreachable!("a wait without an end by time was given up"),
    }
}

/// Takes a lock if it is free.
fn tried<G, E>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnOnce() -> Result<G, E>,
) -> Result<LockGuard<G>, E> {
    take_free(lock, site, attempt).map(|(inner, held)| LockGuard::new(inner, held, ()))
}

/// A lock that is nothing but one of tokio's.
///
/// # Safety
///
/// The type is `repr(transparent)` over [`Around::Inner`].
unsafe trait Around: Sized {
    type Inner;

    /// The lock as tokio's.
    fn inner(self: Arc<Self>) -> Arc<Self::Inner> {
        // SAFETY: by the trait's promise the two have one layout.
        unsafe { Arc::from_raw(Arc::into_raw(self).cast()) }
    }
}

// SAFETY: it is transparent.
unsafe impl<T> Around for Mutex<T> {
    type Inner = tokio::sync::Mutex<T>;
}

// SAFETY: as above.
unsafe impl<T> Around for RwLock<T> {
    type Inner = tokio::sync::RwLock<T>;
}

// SAFETY: as above.
unsafe impl Around for Semaphore {
    type Inner = tokio::sync::Semaphore;
}
