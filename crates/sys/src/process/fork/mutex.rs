//! A mutex that forks wait for, and a condition variable for it.
//!
//! # Safety
//!
//! The unsafe code is the mutex's cell, which is accessed only under its lock, and the conversion
//! of the table's pointer back to the mutex.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::futex;

use super::stages::{Phase, Side, Stage, join};
use crate::process::lock::{Guard, Lock, Reentrant};

thread_local! {
    /// The phases whose mutexes the thread has, by bits; kept in debug builds alone.
    static ORDER: Cell<u64> = const { Cell::new(0) };
}

/// A mutex that forks wait for: a child finds it free, and the value as it is between two owners.
///
/// It returns an error to a thread that holds it already ([`Reentrant`]), such as a signal handler
/// that interrupted its thread's use of the value. A panic under it does not poison it.
#[derive(Debug)]
#[repr(C)]
pub struct Mutex<T> {
    /// First: `Self::before` and `Self::after` are given its address.
    stage: Stage,
    lock: Lock,
    /// Prepares the value for a fork that has the lock.
    before_fork: fn(&mut T),
    /// Begins the value again in a child of such a fork.
    in_child: fn(&mut T),
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached under the lock alone, by one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T: 'static> Mutex<T> {
    /// A free mutex.
    pub const fn new(phase: Phase, value: T) -> Self {
        Self::with_hooks(phase, value, |_| {}, |_| {})
    }

    /// A mutex whose value `in_child` changes in a forked child, before any other code there sees
    /// it.
    pub const fn with_child(phase: Phase, value: T, in_child: fn(&mut T)) -> Self {
        Self::with_hooks(phase, value, |_| {}, in_child)
    }

    /// Makes a mutex with hooks: `before_fork` prepares the value for a fork, and `in_child`
    /// changes it in the forked child.
    pub const fn with_hooks(phase: Phase, value: T, before_fork: fn(&mut T), in_child: fn(&mut T)) -> Self {
        Self {
            // SAFETY: the functions are given the address of this mutex, which `join` puts into the
            // table.
            stage: unsafe { Stage::custom(phase, Self::before, Self::after) },
            lock: Lock::new(),
            before_fork,
            in_child,
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until the mutex is free, and takes it.
    ///
    /// # Errors
    ///
    /// If the thread has it already, or is in the middle of a fork that has it, or that began
    /// before the first use. A debug build also refuses a thread that has a mutex of a later phase,
    /// because threads that take two mutexes in opposite orders can wait for one another for ever.
    pub fn lock(&'static self) -> Result<MutexGuard<T>, Reentrant> {
        if !self.join() {
            return Err(Reentrant);
        }
        let order = Order::of(self.stage.phase()).ok_or(Reentrant)?;
        let held = self.lock.lock()?;
        Ok(MutexGuard { mutex: self, _held: held, _order: order })
    }

    /// Takes the mutex if it is free at this moment.
    pub fn try_lock(&'static self) -> Option<MutexGuard<T>> {
        let held = self.join().then(|| self.lock.try_lock())??;
        // It did not wait, so any order is right.
        Some(MutexGuard { mutex: self, _held: held, _order: Order(0) })
    }

    fn join(&'static self) -> bool {
        // The pointer is to the whole mutex, which `before` and `after` need.
        join(ptr::from_ref(self).cast())
    }

    unsafe fn before(stage: *const Stage) -> bool {
        // SAFETY: `with_hooks` puts this function into mutexes of this type, and `join` gives the
        // table pointers to them.
        let mutex = unsafe { &*stage.cast::<Self>() };
        let taken = mutex.lock.before_fork();
        if taken {
            // SAFETY: the fork has the lock.
            (mutex.before_fork)(unsafe { &mut *mutex.value.get() });
        }
        taken
    }

    unsafe fn after(stage: *const Stage, side: Side) {
        // SAFETY: as in `before`.
        let mutex = unsafe { &*stage.cast::<Self>() };
        match side {
            Side::Parent => mutex.lock.in_parent(),
            Side::Child { taken } => {
                if taken {
                    // SAFETY: the fork has the lock.
                    (mutex.in_child)(unsafe { &mut *mutex.value.get() });
                }
                mutex.lock.in_child(taken);
            }
            Side::ChildInside { before } => mutex.lock.rename_owner(before),
        }
    }
}

/// Frees the mutex when dropped.
#[derive(Debug)]
#[must_use = "the mutex is free again when the guard is dropped"]
pub struct MutexGuard<T: 'static> {
    mutex: &'static Mutex<T>,
    _held: Guard<'static>,
    _order: Order,
}

impl<T> Deref for MutexGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard has the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for MutexGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard has the lock, and is borrowed alone.
        unsafe { &mut *self.mutex.value.get() }
    }
}

/// A thread's place in the order of phases, in debug builds.
#[derive(Debug)]
struct Order(u64);

impl Order {
    /// `None`: the thread has a later phase.
    fn of(phase: Phase) -> Option<Self> {
        if !cfg!(debug_assertions) {
            return Some(Self(0));
        }
        let (held, bit) = (ORDER.get(), 1_u64 << phase as u32);
        if held & !(2 * bit - 1) != 0 {
            return None;
        }
        ORDER.set(held | bit);
        // The lock itself refuses the same phase again.
        Some(Self(bit & !held))
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        ORDER.set(ORDER.get() & !self.0);
    }
}

/// A condition variable for a [`Mutex`]. In a child of a fork no thread waits.
#[derive(Debug, Default)]
pub struct Condvar {
    /// Moves with each notification.
    notified: AtomicU32,
}

impl Condvar {
    /// A condition variable without waiting threads.
    pub const fn new() -> Self {
        Self { notified: AtomicU32::new(0) }
    }

    /// Frees the mutex and waits until it is notified, or `timeout` has passed; it may also return
    /// for no reason. The mutex is free afterwards: take it again, and check.
    pub fn wait<T>(&self, guard: MutexGuard<T>, timeout: Option<Duration>) {
        // Under the mutex, so that no word is missed that is given after the reading of the value.
        let seen = self.notified.load(Ordering::Relaxed);
        drop(guard);
        let timeout = timeout.and_then(|left| left.try_into().ok());
        // Interrupted, over, or word has come: the caller looks again.
        let _ = futex::wait(&self.notified, seen, timeout.as_ref());
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        // Relaxed: the mutex protects the state that the waiter waits for.
        self.notified.fetch_add(1, Ordering::Relaxed);
        futex::wake(&self.notified, 1);
    }
}

#[cfg(test)]
mod tests;
