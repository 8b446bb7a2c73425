//! The copy that leads: its election, and its table's part in a fork.
//!
//! # Locking
//!
//! The election waits for the loader (see [`crate::loader`]), so it comes before any lock of the
//! table.
//!
//! # Safety
//!
//! The unsafe code follows the pointer to the leader's table: this copy's own, or that of an object
//! that stays loaded.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use crate::sync::OnceBox;

use super::table::{Conflict, TABLE, Table};
use crate::loader;
use crate::process::fork::{Phase, Reset, Side, Stage};

#[cfg(not(miri))]
use super::note::elect;

/// Copies that cannot find one another lead each for themselves.
#[cfg(miri)]
#[expect(clippy::unnecessary_wraps, reason = "the same shape as where they can")]
fn elect() -> Result<&'static Table, Conflict> {
    Ok(&TABLE)
}

/// The leader's table; null before the election, and for ever in a copy that was refused.
static LEADER: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());

/// The leader's table.
///
/// # Cost
///
/// The first call goes through the loader's list; later ones load a pointer.
pub fn table() -> Result<&'static Table, Conflict> {
    static REFUSED: OnceBox<Conflict> = OnceBox::new();
    if let Some(leader) = leader() {
        return Ok(leader);
    }
    if let Some(conflict) = REFUSED.get() {
        return Err(conflict.clone());
    }
    match elect() {
        Ok(leader) => {
            // Before other threads can use the table: a child of a fork in between would find its
            // locks taken. A thread in the middle of a fork leaves it to the next call.
            if PATCH.join() && COPIES.join() {
                // Pairs with the load in `leader`. A quicker thread has stored the same.
                LEADER.store(std::ptr::from_ref(leader).cast_mut(), Ordering::Release);
            }
            Ok(leader)
        }
        Err(conflict) => Err(REFUSED.get_or_init(|| Box::new(conflict)).clone()),
    }
}

#[inline]
fn leader() -> Option<&'static Table> {
    // Pairs with the store in `table`. SAFETY: the own table or that of a pinned object.
    unsafe { LEADER.load(Ordering::Acquire).as_ref() }
}

/// The table of another copy that this one follows.
#[inline]
pub(super) fn followed() -> Option<&'static Table> {
    leader().filter(|&table| !std::ptr::eq(table, &raw const TABLE))
}

/// The table that this copy works with now, without an election: signal-safe.
#[inline]
pub(super) fn used() -> &'static Table {
    leader().unwrap_or(&TABLE)
}

/// Has forks wait for the patch lock, and counts them. Every copy has such a stage: each takes part
/// in a fork that has the lock, and the last one frees it.
// SAFETY: the functions look at the stage's table alone.
static PATCH: Stage = unsafe { Stage::custom(Phase::Patch, before_fork, after_fork) };
static COPIES: Reset = Reset::new(Phase::Copies, count_fork);

thread_local! {
    /// The table whose lock the thread's fork has: an election on another thread may end in the
    /// middle of a fork.
    static LOCKED: Cell<Option<&'static Table>> = const { Cell::new(None) };
}

fn before_fork(_: *const Stage) -> bool {
    let table = used();
    LOCKED.set(Some(table));
    table.forking.store(true, Ordering::Relaxed);
    table.patch.before_fork()
}

fn after_fork(_: *const Stage, side: Side) {
    let table = LOCKED.get().unwrap_or_else(used);
    match side {
        Side::Parent => table.patch.in_parent(),
        Side::Child { taken } => {
            table.patch.in_child(taken);
            table.agent.lock.reset();
        }
        Side::ChildInside { before } => table.patch.rename_owner(before),
    }
}

/// In the child, before any phase that calls [`forks`]: the first copy that comes here increments
/// the count, and forgets the parent's agent.
fn count_fork() {
    if used().forking.swap(false, Ordering::Relaxed) {
        used().forks.fetch_add(1, Ordering::Relaxed);
        used().agent.clear();
    }
}

/// Whether a copy has left sites with an `int3`.
pub fn stuck() -> &'static AtomicBool {
    &used().stuck
}

/// The number of forks in the ancestry of this process: all its copies agree on it, and it differs
/// in each forked child. (A fork that runs no handlers, such as `_Fork`, does not count.)
#[inline]
pub fn forks() -> u32 {
    // It changes while a process has one thread, which has just been made.
    used().forks.load(Ordering::Relaxed)
}

/// A number for a probe, unique in the process.
pub fn next_probe() -> u32 {
    used().next_probe.fetch_add(1, Ordering::Relaxed)
}

/// Makes this copy the one that reads the rings. If another copy is, returns the name of its
/// object.
pub fn read_rings() -> Result<(), String> {
    let own = (&raw const TABLE).cast_mut();
    match used().recorder.compare_exchange(std::ptr::null_mut(), own, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != own => Err(loader::object_of(other as usize)),
        _ => Ok(()),
    }
}
