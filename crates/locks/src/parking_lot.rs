//! Locks with the faces of `parking_lot`'s, by `lock_api`: no poisoning, timed forms, guards that
//! map to a part of the value.
//!
//! A guard of `lock_api`'s has no room for anything, so the holder is found by the lock's address
//! when it leaves: one more sleeping instruction.
//!
//! # Safety
//!
//! The unsafe code implements traits whose promises are kept by the locks underneath, to which
//! each call goes on.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr;
use std::time::{Duration, Instant};

use ::parking_lot as inner;
use lock_api::{RawMutex as _, RawRwLock as _, RawRwLockRecursive as _};

use crate::kind::{LockKind, LockType};
use crate::leave::{forget_held, leave_address};
use crate::note::{Lock, Taker, take, take_free};
use crate::run::are_noted;

pub use inner::WaitTimeoutResult;

/// `parking_lot::Mutex` that shows its holder.
///
/// ```
/// use std::time::Duration;
///
/// use dormouse_locks::parking_lot::Mutex;
///
/// static CUPS: Mutex<u32> = Mutex::new(0);
/// let mut cups = CUPS.lock();
/// *cups += 1;
/// assert!(CUPS.try_lock_for(Duration::from_millis(1)).is_none());
/// ```
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// The guard of a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;
/// The guard of a part of a [`Mutex`]'s value.
pub type MappedMutexGuard<'a, T> = lock_api::MappedMutexGuard<'a, RawMutex, T>;
/// `parking_lot::RwLock` that shows its holders, readers among them.
pub type RwLock<T> = lock_api::RwLock<RawRwLock, T>;
/// A reader of a [`RwLock`].
pub type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, RawRwLock, T>;
/// The writer of a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = lock_api::RwLockWriteGuard<'a, RawRwLock, T>;
/// A reader of a part of a [`RwLock`]'s value.
pub type MappedRwLockReadGuard<'a, T> = lock_api::MappedRwLockReadGuard<'a, RawRwLock, T>;
/// The writer of a part of a [`RwLock`]'s value.
pub type MappedRwLockWriteGuard<'a, T> = lock_api::MappedRwLockWriteGuard<'a, RawRwLock, T>;

const _: () = assert!(size_of::<Mutex<u8>>() == size_of::<inner::Mutex<u8>>());
const _: () = assert!(size_of::<RwLock<u8>>() == size_of::<inner::RwLock<u8>>());

/// The thread has the lock, which it did not have to try.
fn take_again(lock: Lock, site: &'static Location<'static>) {
    if let Some(taker) = Taker::begin(lock, site) {
        forget_held(taker.taken(lock));
    }
}

/// The mutex under [`Mutex`]. It contains a whole one of `parking_lot`'s, which its condition
/// variable needs.
#[derive(Debug)]
#[repr(transparent)]
pub struct RawMutex(inner::Mutex<()>);

impl RawMutex {
    fn raw(&self) -> &inner::RawMutex {
        // SAFETY: nobody has a guard of it, so each unlock is of one of our own locks.
        unsafe { self.0.raw() }
    }

    fn lock_of(&self) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(LockKind::Mutex) }
    }

    #[cold]
    fn lock_noted(&self, site: &'static Location<'static>, wait: impl FnOnce() -> bool, timed: bool) -> bool {
        let attempt = || self.raw().try_lock().then_some(());
        let taken = take(self.lock_of(), site, attempt, || wait().then_some(()), timed);
        taken.map(|((), held)| forget_held(held)).is_some()
    }

    fn leave(&self) {
        if are_noted() {
            leave_address(ptr::from_ref(self).addr(), LockKind::Mutex);
        }
    }
}

// SAFETY: `parking_lot`'s mutex keeps the promise.
unsafe impl lock_api::RawMutex for RawMutex {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's")]
    const INIT: Self = Self(inner::const_mutex(()));

    type GuardMarker = lock_api::GuardNoSend;

    #[inline]
    #[track_caller]
    fn lock(&self) {
        if are_noted() {
            self.lock_noted(
                Location::caller(),
                || {
                    self.raw().lock();
                    true
                },
                false,
            );
        } else {
            self.raw().lock();
        }
    }

    #[inline]
    #[track_caller]
    fn try_lock(&self) -> bool {
        let attempt = || self.raw().try_lock().then_some(()).ok_or(());
        take_free(self.lock_of(), Location::caller(), attempt).map(|((), held)| forget_held(held)).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.leave();
        // SAFETY: the caller has the lock.
        unsafe { self.raw().unlock() };
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.raw().is_locked()
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexFair for RawMutex {
    #[inline]
    unsafe fn unlock_fair(&self) {
        self.leave();
        // SAFETY: the caller has the lock.
        unsafe { self.raw().unlock_fair() };
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    #[inline]
    #[track_caller]
    fn try_lock_for(&self, timeout: Duration) -> bool {
        if are_noted() {
            return self.lock_noted(Location::caller(), || self.raw().try_lock_for(timeout), true);
        }
        self.raw().try_lock_for(timeout)
    }

    #[inline]
    #[track_caller]
    fn try_lock_until(&self, timeout: Instant) -> bool {
        if are_noted() {
            return self.lock_noted(Location::caller(), || self.raw().try_lock_until(timeout), true);
        }
        self.raw().try_lock_until(timeout)
    }
}

/// The lock under [`RwLock`].
#[repr(transparent)]
pub struct RawRwLock(inner::RawRwLock);

impl fmt::Debug for RawRwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawRwLock").field("is_locked", &self.0.is_locked()).finish()
    }
}

impl RawRwLock {
    fn lock_of(&self, kind: LockKind) -> Lock {
        Lock { address: ptr::from_ref(self).addr(), of: LockType::unnamed(kind) }
    }

    #[cold]
    fn take_noted(
        &self,
        kind: LockKind,
        site: &'static Location<'static>,
        attempt: impl Fn(&inner::RawRwLock) -> bool,
        wait: impl FnOnce() -> bool,
        timed: bool,
    ) -> bool {
        let attempt = || attempt(&self.0).then_some(());
        let taken = take(self.lock_of(kind), site, attempt, || wait().then_some(()), timed);
        taken.map(|((), held)| forget_held(held)).is_some()
    }

    #[inline]
    fn take_free(
        &self,
        kind: LockKind,
        site: &'static Location<'static>,
        attempt: impl Fn(&inner::RawRwLock) -> bool,
    ) -> bool {
        let attempt = || attempt(&self.0).then_some(()).ok_or(());
        take_free(self.lock_of(kind), site, attempt).map(|((), held)| forget_held(held)).is_ok()
    }

    fn leave(&self, kind: LockKind) {
        if are_noted() {
            leave_address(ptr::from_ref(self).addr(), kind);
        }
    }
}

/// Functions of the lock underneath that take it, for holders of one kind. While locks are noted,
/// each of them tries it first.
macro_rules! take_by {
    ($kind:ident: $lock:ident or $attempt:ident) => {
        #[inline]
        #[track_caller]
        fn $lock(&self) {
            if are_noted() {
                let wait = || {
                    self.0.$lock();
                    true
                };
                let attempt = inner::RawRwLock::$attempt;
                self.take_noted(LockKind::$kind, Location::caller(), attempt, wait, false);
            } else {
                self.0.$lock();
            }
        }

        #[inline]
        #[track_caller]
        fn $attempt(&self) -> bool {
            self.take_free(LockKind::$kind, Location::caller(), inner::RawRwLock::$attempt)
        }
    };
    ($kind:ident: $timed:ident($time:ty) or $attempt:ident) => {
        #[inline]
        #[track_caller]
        fn $timed(&self, timeout: $time) -> bool {
            if are_noted() {
                let (attempt, wait) = (inner::RawRwLock::$attempt, || self.0.$timed(timeout));
                return self.take_noted(LockKind::$kind, Location::caller(), attempt, wait, true);
            }
            self.0.$timed(timeout)
        }
    };
}

// SAFETY: `parking_lot`'s lock keeps the promise.
unsafe impl lock_api::RawRwLock for RawRwLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's")]
    const INIT: Self = Self(inner::RawRwLock::INIT);

    type GuardMarker = lock_api::GuardNoSend;

    take_by!(Read: lock_shared or try_lock_shared);
    take_by!(Write: lock_exclusive or try_lock_exclusive);

    #[inline]
    unsafe fn unlock_shared(&self) {
        self.leave(LockKind::Read);
        // SAFETY: the caller is a reader.
        unsafe { self.0.unlock_shared() };
    }

    #[inline]
    unsafe fn unlock_exclusive(&self) {
        self.leave(LockKind::Write);
        // SAFETY: the caller is the writer.
        unsafe { self.0.unlock_exclusive() };
    }

    #[inline]
    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    #[inline]
    fn is_locked_exclusive(&self) -> bool {
        self.0.is_locked_exclusive()
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockRecursive for RawRwLock {
    take_by!(Read: lock_shared_recursive or try_lock_shared_recursive);
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockTimed for RawRwLock {
    type Duration = Duration;
    type Instant = Instant;

    take_by!(Read: try_lock_shared_for(Duration) or try_lock_shared);
    take_by!(Read: try_lock_shared_until(Instant) or try_lock_shared);
    take_by!(Write: try_lock_exclusive_for(Duration) or try_lock_exclusive);
    take_by!(Write: try_lock_exclusive_until(Instant) or try_lock_exclusive);
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockRecursiveTimed for RawRwLock {
    take_by!(Read: try_lock_shared_recursive_for(Duration) or try_lock_shared_recursive);
    take_by!(Read: try_lock_shared_recursive_until(Instant) or try_lock_shared_recursive);
}

// SAFETY: as above.
unsafe impl lock_api::RawRwLockDowngrade for RawRwLock {
    #[inline]
    #[track_caller]
    unsafe fn downgrade(&self) {
        let is_noted = are_noted();
        if is_noted {
            leave_address(ptr::from_ref(self).addr(), LockKind::Write);
        }
        // SAFETY: the caller is the writer.
        unsafe { self.0.downgrade() };
        if is_noted {
            take_again(self.lock_of(LockKind::Read), Location::caller());
        }
    }
}

/// `parking_lot::Condvar` for a [`Mutex`] of this module.
#[derive(Debug, Default)]
pub struct Condvar(inner::Condvar);

const _: () = assert!(size_of::<Condvar>() == size_of::<inner::Condvar>());

impl Condvar {
    /// A condition variable for which nobody waits.
    pub const fn new() -> Self {
        Self(inner::Condvar::new())
    }

    /// Frees the mutex, waits for a notification, and takes the mutex again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        Self::wait_by(guard, Location::caller(), |inner| self.0.wait(inner));
    }

    /// Waits for at most that time.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, at_most: Duration) -> WaitTimeoutResult {
        Self::wait_by(guard, Location::caller(), |inner| self.0.wait_for(inner, at_most))
    }

    /// Waits until then at the latest.
    #[track_caller]
    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> WaitTimeoutResult {
        Self::wait_by(guard, Location::caller(), |inner| self.0.wait_until(inner, until))
    }

    /// Waits as long as the condition is true.
    #[track_caller]
    pub fn wait_while<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Waits as long as the condition is true, and for at most that time.
    #[track_caller]
    pub fn wait_while_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
        at_most: Duration,
    ) -> WaitTimeoutResult {
        if let Some(until) = Instant::now().checked_add(at_most) {
            return self.wait_while_until(guard, condition, until);
        }
        // A time that no clock has is never over.
        self.wait_while(guard, condition);
        not_over()
    }

    /// Waits as long as the condition is true, and until then at the latest.
    #[track_caller]
    pub fn wait_while_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        until: Instant,
    ) -> WaitTimeoutResult {
        let mut waited = not_over();
        while !waited.timed_out() && condition(guard) {
            waited = self.wait_until(guard, until);
        }
        waited
    }

    fn wait_by<T: ?Sized, R>(
        guard: &mut MutexGuard<'_, T>,
        site: &'static Location<'static>,
        wait: impl FnOnce(&mut inner::MutexGuard<'_, ()>) -> R,
    ) -> R {
        // SAFETY: it is not unlocked by this.
        let raw = unsafe { MutexGuard::mutex(guard).raw() };
        raw.leave();
        // SAFETY: the guard of the caller has the lock, and has it again afterwards; this one,
        // which does not unlock, stands for it meanwhile.
        let mut inner = ManuallyDrop::new(unsafe { raw.0.make_guard_unchecked() });
        let result = wait(&mut inner);
        if are_noted() {
            take_again(raw.lock_of(), site);
        }
        result
    }

    /// Wakes one thread that waits; whether there was one.
    pub fn notify_one(&self) -> bool {
        self.0.notify_one()
    }

    /// Wakes all threads that wait; how many there were.
    pub fn notify_all(&self) -> usize {
        self.0.notify_all()
    }
}

/// The result of a wait that did not end by time. Only `parking_lot` can make one.
fn not_over() -> WaitTimeoutResult {
    inner::Condvar::new().wait_while_for(&mut inner::Mutex::new(()).lock(), |()| false, Duration::ZERO)
}
