//! The ledger of one context: the counts that were charged to a group of tasks.
//!
//! A process has up to a thousand contexts, most of which count one event or two. So a context has
//! columns for the first events of the process, and gets memory for all others when such an event
//! is first counted ([`Context::extend`]).
//!
//! # Invariants
//!
//! 1. A thread adds to the shard of its start number. Shards only grow.
//! 2. A context lives as long as the process, so a task may outlive the value that made its
//!    context.
//! 3. `control` extends every context before it stores a set with an event past [`NEAR`] in any of
//!    them.
//!
//! # Safety
//!
//! The unsafe code reads a clock, and turns a pointer that was made from a reference back into one.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::otel::ThreadContext;
use dormouse_sys::sync::OnceBox;

use crate::event_set::{CLOCK, EventSet, MAX_EVENTS, SetCell};
use crate::span::Pending;

const SHARDS: usize = 8;

/// How many events have their columns in the context.
pub(crate) const NEAR: usize = NEAR_COLUMNS - 2;
/// The columns that fill the two cache lines of a row.
const NEAR_COLUMNS: usize = 16;
const FURTHER: usize = MAX_EVENTS - NEAR;

/// The column of an event is its index. Two further columns count how often tasks became current,
/// and how often in a scope.
pub(crate) const ENTRIES: usize = MAX_EVENTS;
pub(crate) const SCOPES: usize = MAX_EVENTS + 1;

/// The rows of a ledger: the shards, then these.
const NESTED: usize = SHARDS;
/// The largest sums that a read has returned.
const REPORTED: usize = SHARDS + 1;
const ROWS: usize = SHARDS + 2;

/// A row, on separate cache lines. (In twos: the processor fetches lines in pairs.)
#[derive(Debug)]
#[repr(align(128))]
struct Row<const COLUMNS: usize>([AtomicU64; COLUMNS]);

#[derive(Debug)]
struct Rows<const COLUMNS: usize>([Row<COLUMNS>; ROWS]);

impl<const COLUMNS: usize> Rows<COLUMNS> {
    const fn new() -> Self {
        Self([const { Row([const { AtomicU64::new(0) }; COLUMNS]) }; ROWS])
    }
}

/// The counts of one group of tasks, and which events are counted for it.
#[derive(Debug)]
pub struct Context {
    id: u32,
    /// Whether every task counts for itself, too.
    exact: AtomicBool,
    /// The events that a task of it counts; `control` alone moves it.
    set: SetCell,
    /// When it came into being, by [`now_ns`].
    born_ns: u64,
    /// The bytes that a thread shows while one of its tasks is current.
    shown: AtomicPtr<ThreadContext>,
    near: Rows<NEAR_COLUMNS>,
    /// Empty until somebody counts an event past [`NEAR`].
    further: OnceBox<Rows<FURTHER>>,
}

impl Context {
    pub(super) fn with_id(id: u32) -> Self {
        Self {
            id,
            exact: AtomicBool::new(false),
            set: SetCell::empty(),
            born_ns: monotonic_ns(),
            shown: AtomicPtr::new(ptr::null_mut()),
            near: Rows::new(),
            further: OnceBox::new(),
        }
    }

    /// The context's number, from 1 in the order of creation. A thread's block shows the number
    /// while a task of the context is current.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Sets the bytes that threads show to readers outside of the process while a task of the
    /// context is current. They are shown only while contexts are published
    /// ([`ContextPublishing`](crate::ContextPublishing)).
    pub fn set_shown(&self, shown: Option<&'static ThreadContext>) {
        let shown = shown.map_or(ptr::null_mut(), |shown| ptr::from_ref(shown).cast_mut());
        // Pairs with the load in `shown`: a thread that finds the bytes finds them written.
        self.shown.store(shown, Ordering::Release);
    }

    #[inline]
    pub(crate) fn shown(&self) -> Option<&'static ThreadContext> {
        // SAFETY: null, or what `set_shown` was given, which is never written. Pairs with the store
        // there.
        unsafe { self.shown.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn born_ns(&self) -> u64 {
        self.born_ns
    }

    #[inline]
    pub(crate) fn set(&self) -> &'static EventSet {
        self.set.load()
    }

    pub(crate) fn set_events(&self, set: &'static EventSet) {
        self.set.store(set);
    }

    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Relaxed)
    }

    pub(crate) fn set_exact(&self, exact: bool) {
        self.exact.store(exact, Ordering::Relaxed);
    }

    /// Makes the further columns, if they are not there.
    pub(crate) fn extend(&self) {
        self.further.get_or_init(|| Box::new(Rows::new()));
    }

    #[inline]
    fn cell(&self, row: usize, column: usize) -> Option<&AtomicU64> {
        match column {
            0..NEAR => Some(&self.near.0[row].0[column]),
            _ => self.further_cell(row, column),
        }
    }

    fn further_cell(&self, row: usize, column: usize) -> Option<&AtomicU64> {
        match column {
            ENTRIES | SCOPES => Some(&self.near.0[row].0[NEAR + column - ENTRIES]),
            _ => self.further.get()?.0[row].0.get(column - NEAR),
        }
    }

    /// Charges `n` in `column`, for the thread with the start number `start`.
    #[inline]
    pub(crate) fn charge(&self, start: u64, column: usize, n: u64) {
        if n != 0
            && let Some(cell) = self.cell(start as usize % SHARDS, column)
        {
            // Pairs with the load in `charged`: a reader that sees the charge sees that the span
            // has ended or was rebased.
            cell.fetch_add(n, Ordering::Release);
        }
    }

    /// Charges counts of contexts inside of this one.
    #[cold]
    pub(crate) fn charge_nested(&self, index: usize, n: u64) {
        if let Some(cell) = self.cell(NESTED, index) {
            cell.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Charges the pending counts of a thread.
    #[inline]
    pub(crate) fn charge_pending(&self, start: u64, pending: &Pending) {
        // Scopes come first, and `charged` reads them last: no reader takes a scope for a poll.
        self.charge(start, SCOPES, pending.scopes);
        self.charge(start, ENTRIES, pending.entries);
        self.charge(start, CLOCK, pending.ns);
    }

    /// The sum of all that was charged in `column`.
    pub(crate) fn charged(&self, column: usize) -> u64 {
        let cells = (0..SHARDS).filter_map(|shard| self.cell(shard, column));
        // Pairs with the addition in `charge`.
        cells.map(|cell| cell.load(Ordering::Acquire)).sum()
    }

    /// The result of a read that has found `sum`: no less than an earlier result.
    pub(crate) fn report(&self, column: usize, sum: u64) -> u64 {
        let cell = self.cell(REPORTED, column);
        cell.map_or(sum, |cell| cell.fetch_max(sum, Ordering::Relaxed).max(sum))
    }

    pub(crate) fn nested(&self, index: usize) -> u64 {
        self.cell(NESTED, index).map_or(0, |cell| cell.load(Ordering::Relaxed))
    }

    /// In a fork child, adds what reads in the parent had included but its other threads had not
    /// charged, so that no read goes back. `pending` is what its threads have pending of it.
    pub(crate) fn charge_reported(&self, index: usize, pending: u64) {
        let reported = self.cell(REPORTED, index).map_or(0, |cell| cell.load(Ordering::Relaxed));
        // Saturating: more was charged since the last read.
        self.charge(0, index, reported.saturating_sub(self.charged(index) + pending));
    }

    #[cfg(test)]
    pub(crate) fn forget_reported(&self) {
        let cells = (0..=SCOPES).filter_map(|column| self.cell(REPORTED, column));
        cells.for_each(|cell| cell.store(0, Ordering::Relaxed));
    }
}
