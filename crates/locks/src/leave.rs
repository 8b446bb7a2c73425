//! A thread leaves a lock: step 5 of a note.

use dormouse_clock::stamp;
#[cfg(feature = "parking-lot")]
use dormouse_sys::process::identity;

use crate::cell::{COUNTED, Cell, Entry, Token};
use crate::hand::{self, mark};
#[cfg(feature = "parking-lot")]
use crate::kind::LockKind;
use crate::rows::{Here, own_row, row};
#[cfg(feature = "parking-lot")]
use crate::run::run;
use crate::table::HOLDERS;

/// In `Token::place`, of a holder: it is in the table, else in a hand.
pub(crate) const IN_TABLE: u32 = 1 << 31;

const _: () = assert!(hand::PLACES < IN_TABLE);

/// A lock that is held: to be dropped before it is free. Empty if it was not noted.
#[derive(Debug, Default)]
#[must_use = "the holder is noted as long as it lives"]
pub(crate) struct Held(pub(crate) Option<Token>);

const _: () = assert!(size_of::<Held>() == 8);

impl Held {
    pub(crate) const NONE: Self = Self(None);

    /// The address of the lock; `None` if its holder was not noted.
    #[cfg(feature = "tokio")]
    pub(crate) fn address(&self) -> Option<usize> {
        let token = self.0?;
        match hand::cell(token.place()) {
            Some(cell) => cell.has(token).then(|| cell.address()),
            None => HOLDERS.own(token.moved(IN_TABLE)).map(|entry| entry.address),
        }
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if let Some(token) = self.0 {
            leave(token);
        }
    }
}

// Without calls, as `Taker::begin`.
#[inline(never)]
fn leave(token: Token) {
    match hand::cell(token.place()) {
        // It is no more: a forked child has none of its parent's.
        Some(cell) if !cell.has(token) => {}
        Some(cell) if cell.is_left() => leave_left(cell),
        Some(cell) => leave_hand(cell),
        None => leave_table(token.moved(IN_TABLE)),
    }
}

#[inline]
fn leave_hand(cell: &Cell) {
    if cell.since() & COUNTED != 0 {
        return end_hold(cell);
    }
    cell.free();
}

/// Leaves a hold whose time is counted.
#[inline(never)]
fn end_hold(cell: &Cell) {
    let ticks = stamp().saturating_sub(cell.since());
    // The row is of the same thread as the hand.
    if let Some(row) = row(cell.row()) {
        row.held(ticks);
    }
    cell.free();
}

/// Leaves a lock that was taken by a thread which has ended.
#[cold]
#[inline(never)]
fn leave_left(cell: &Cell) {
    held_elsewhere(&cell.free_left());
}

/// Counts the time of a hold, if that is wanted, in a row of this thread: it may have begun on
/// another one.
fn held_elsewhere(entry: &Entry) {
    if entry.since & COUNTED != 0 {
        let ticks = stamp().saturating_sub(entry.since);
        if let Some(row) = row(entry.row).and_then(own_row) {
            row.held(ticks);
        }
    }
}

#[cold]
#[inline(never)]
fn leave_table(token: Token) {
    let Some(entry) = HOLDERS.own(token) else { return };
    held_elsewhere(&entry);
    if let Some(here) = Here::current() {
        here.hand.touch(0, mark(entry.address, entry.run));
    }
    HOLDERS.remove(token);
}

/// The holder stays noted until it leaves by its address.
#[cfg(feature = "parking-lot")]
pub(crate) fn forget_held(held: Held) {
    std::mem::forget(held);
}

/// Notes that the thread leaves a lock whose guard has no room for a [`Held`].
#[cfg(feature = "parking-lot")]
#[inline(never)]
pub(crate) fn leave_address(address: usize, kind: LockKind) {
    let Some(run) = run() else { return };
    match Here::known().and_then(|here| here.hand.held(mark(address, run))) {
        Some(cell) => leave_hand(cell),
        None => leave_address_elsewhere(address, kind, run),
    }
}

/// The hold is in no hand of this thread: it is in the table, or the thread that took the lock has
/// ended, perhaps this one.
#[cfg(feature = "parking-lot")]
#[cold]
#[inline(never)]
fn leave_address_elsewhere(address: usize, kind: LockKind, run: u32) {
    let own = Here::known().map_or_else(identity::tid, |here| here.shelf.tid());
    let is_own = |entry: &Entry| entry.address == address && (kind.is_alone() || entry.tid == own);
    if let Some(token) = HOLDERS.token_of(address, kind.is_alone(), is_own) {
        leave_table(token);
    } else if let Some(cell) = hand::left(address, run, is_own) {
        leave_left(cell);
    }
}
