//! The agent's sockets, which no forked child keeps.
//!
//! A child that kept them would hold connections open after the agent has closed them, so that nobody at the other end
//! is told, and would leave those who call at its parent's socket waiting after the parent has ended.
//!
//! # Locking
//!
//! The table's lock is held from before a socket is opened until it is entered, from before it is taken out until it
//! is closed, and across a fork. So in a child the table has every socket that is open, and no number that is
//! somebody else's. Nothing is waited for under it: the sockets do not block.
//!
//! # Async-signal-safety
//!
//! What runs in a forked child closes descriptors, no more.
//!
//! # Safety
//!
//! The unsafe code is `pthread_atfork`, and the closing of sockets.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::server::MAX_CLIENTS;

const NONE: RawFd = -1;

/// How often a fork looks whether the table is free. It is held for moments only, unless by the very thread that a
/// signal handler forks over: then the child keeps the sockets.
const PATIENCE: u32 = 100_000;

/// The listening socket, the clients, and one that is being refused.
type Table = [RawFd; MAX_CLIENTS + 2];

static OPEN: Mutex<Table> = Mutex::new([NONE; _]);

fn table() -> MutexGuard<'static, Table> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket of the agent's.
#[derive(Debug)]
pub(super) struct Kept<T: AsFd>(ManuallyDrop<T>);

impl<T: AsFd> Kept<T> {
    /// What `open` opens; it must not wait.
    pub(super) fn new(open: impl FnOnce() -> io::Result<T>) -> io::Result<Self> {
        let mut table = table();
        let opened = open()?;
        let Some(place) = table.iter_mut().find(|fd| **fd == NONE) else {
            return Err(io::Error::other("the agent has no room for another socket"));
        };
        *place = opened.as_fd().as_raw_fd();
        Ok(Self(ManuallyDrop::new(opened)))
    }
}

impl<T: AsFd> Drop for Kept<T> {
    fn drop(&mut self) {
        let mut table = table();
        let number = self.0.as_fd().as_raw_fd();
        if let Some(place) = table.iter_mut().find(|fd| **fd == number) {
            *place = NONE;
        }
        // SAFETY: not used again.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl<T: AsFd> Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsFd> DerefMut for Kept<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: AsFd> AsFd for Kept<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

thread_local! {
    /// The lock, while its thread forks.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, Table>>>> = const { Cell::new(None) };
}

/// Has forked children close the agent's sockets from now on. Called before the first is opened.
pub(super) fn close_in_children() {
    static GUARDED: AtomicBool = AtomicBool::new(false);
    if !GUARDED.swap(true, Ordering::Relaxed) {
        // SAFETY: plain functions of this object. Without memory for it, children keep the sockets.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

extern "C" fn before() {
    for _ in 0..PATIENCE {
        match OPEN.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Ok(table) => return HELD.set(Some(ManuallyDrop::new(table))),
            // Nothing panics under it.
            Err(TryLockError::Poisoned(_)) => return,
        }
    }
}

fn take() -> Option<MutexGuard<'static, Table>> {
    HELD.take().map(ManuallyDrop::into_inner)
}

extern "C" fn in_parent() {
    drop(take());
}

extern "C" fn in_child() {
    let Some(mut table) = take() else { return };
    for fd in table.iter_mut().filter(|fd| **fd != NONE) {
        // SAFETY: a socket of the agent's; its thread, which would use it, is not in this process.
        unsafe { libc::close(*fd) };
        *fd = NONE;
    }
}
