//! Locks that show who holds them, who waits for them, since when, and at which line, while
//! somebody asks.
//!
//! Each lock here is a lock of std's, of `parking_lot`'s or of tokio's, with nearly all of its
//! functions, and not a byte larger. While nobody asks, to take a lock costs one sleeping
//! instruction more. While somebody asks (a [`LockTimes`] lives), the thread that takes a lock is
//! noted in a table by the lock's address, with its task, its group and the line. Waits and holds
//! are added up by line and group.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `primitive` | atomics, or loom's |
//! | [`LockKind`] | a mutex, a reader, a writer, a permit, a once |
//! | `cell` | a place for a holder, or for a wait |
//! | `table` | holders and those who wait, by address |
//! | `run` | the key, and the runs in which locks are noted |
//! | `hand` | the locks that each thread holds itself |
//! | `row`, `rows` | what each thread has added up, by line and group |
//! | `long` | the waits that took long |
//! | `leave` | the end of a hold |
//! | `note` | the notes of a thread |
//! | [`LockTimes`] | locks are noted as long as one lives |
//! | [`read_locks`], [`lock_holders`], [`lock_waiters`], [`lock_cycles`] | what readers find |
//! | [`LockGuard`] | what the faces like std's and tokio's share |
//! | [`Mutex`], [`RwLock`], [`Condvar`], [`Once`], [`Semaphore`] | faces like std's |
//! | [`PermitQueue`] | waits for what others hand out, and those who have it |
//! | [`parking_lot`], [`tokio`] | faces like theirs |
//!
//! # Things it does not do
//!
//! | faces like those of | have no |
//! |---|---|
//! | std | functions that came after Rust 1.88, such as `RwLockWriteGuard::downgrade`, or are deprecated |
//! | `parking_lot` | `upgradable_read` with its guard; `unlock_fair` and `bump` of a `RwLock`'s guards |
//! | tokio | `map` and its relatives, or way from a guard to its lock; `merge` and `split` of permits; `blocking_` functions of a `Semaphore`; owned guards of unsized values |
//!
//! A lock that was taken before somebody asked has no holder here; a thread that waits for it says
//! so. Locks of other types are not seen. A guard that is forgotten holds its lock for ever, as
//! it does without this, and is shown as its holder, also after its thread has ended.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod cell;
mod condvar;
mod face;
mod hand;
mod kind;
mod leave;
mod long;
mod mutex;
mod note;
mod once;
#[cfg(feature = "parking-lot")]
pub mod parking_lot;
mod primitive;
mod queue;
mod read;
mod row;
mod rows;
mod run;
mod rwlock;
mod semaphore;
mod table;
mod times;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use condvar::Condvar;
pub use face::LockGuard;
pub use kind::LockKind;
pub use mutex::{Mutex, MutexGuard};
pub use once::Once;
pub use queue::{PermitQueue, QueuedWork};
pub use read::{
    Blocked, LockPlace, LockRow, LockUser, LongWait, LongestWait, keep_long_waits, lock_cycles, lock_holders,
    lock_holders_at, lock_rows, lock_waiters, notes, read_locks, take_long_waits,
};
pub use row::{LockDurations, LockHolder};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use semaphore::{Semaphore, SemaphorePermit};
pub use std::sync::{LockResult, OnceState, PoisonError, TryLockError, TryLockResult, WaitTimeoutResult};
pub use times::{Holds, LockTimes, capability, forget_gap, is_on, lost};
