//! Where threads go on that have run into an `int3` of ours: the table that the trap handler searches.
//!
//! # Invariants
//!
//! 1. A thread that traps finds its site: the table that names it is published before the first `int3`, and replaced
//!    after the barrier behind the last.
//! 2. A site stays known for good once it was in a table: a thread may take its `int3`, be descheduled, and enter the
//!    handler long after the round.
//! 3. A table is freed when no handler can hold it: handlers count themselves in and out.
//!
//! # Async-signal-safety
//!
//! [`resolve`] allocates nothing and waits for nothing.
//!
//! # Safety
//!
//! The handler reads a table that it has counted itself into.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::trap::{self, Verdict};

use super::Patch;
use crate::arch::LENGTH;

/// Where a thread goes on that has run into the site at `code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resume {
    pub(super) code: usize,
    pub(super) target: usize,
}

impl Resume {
    /// As the old instruction does, or the new one.
    pub(super) fn of(patch: &Patch, new: bool) -> Self {
        let code = patch.site.code;
        let jumps = patch.jumps() == new;
        Self { code, target: if jumps { patch.site.target } else { code + LENGTH } }
    }
}

#[derive(Debug)]
struct Table {
    /// The sites of the round that is under way, by `code`.
    round: Vec<Resume>,
    /// The addresses of all sites that ever were in a round, in order.
    known: Arc<[usize]>,
}

/// Null before the first round.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(std::ptr::null_mut());
/// Handlers that may hold a table.
static HANDLERS: AtomicUsize = AtomicUsize::new(0);
static TRAPS: AtomicU64 = AtomicU64::new(0);

/// How many threads have run into a site of ours.
pub(super) fn traps() -> u64 {
    TRAPS.load(Ordering::Relaxed)
}

/// In a forked child: the handlers of the parent's other threads do not come out of it here.
pub(super) fn forget_handlers() {
    HANDLERS.store(0, Ordering::Relaxed);
}

/// Asked by the trap handler.
pub(super) fn resolve(address: usize) -> Verdict {
    // Both sequentially consistent, as is the pair in `Rounds::retire`: a handler that still sees a table is seen by who
    // waits to free it.
    HANDLERS.fetch_add(1, Ordering::SeqCst);
    let table = TABLE.load(Ordering::SeqCst);
    // SAFETY: not freed while we are counted in.
    let verdict = unsafe { table.as_ref() }.map_or(Verdict::Foreign, |table| table.look_up(address));
    // Pairs with the load in `retire`: the table has been read.
    HANDLERS.fetch_sub(1, Ordering::Release);
    if matches!(verdict, Verdict::Resume(_)) {
        TRAPS.fetch_add(1, Ordering::Relaxed);
    }
    verdict
}

impl Table {
    fn look_up(&self, address: usize) -> Verdict {
        if let Ok(at) = self.round.binary_search_by_key(&address, |resume| resume.code) {
            return Verdict::Resume(self.round[at].target);
        }
        if self.known.binary_search(&address).is_ok() { Verdict::Late } else { Verdict::Foreign }
    }
}

/// The tables of one batch. The patch lock is held meanwhile.
#[derive(Debug)]
pub(super) struct Rounds {
    known: Arc<[usize]>,
    /// Replaced, and perhaps still held by a handler.
    replaced: Vec<*mut Table>,
}

impl Rounds {
    /// Makes the (sorted) patches' sites known; from the next round on.
    pub(super) fn of(patches: &[Patch]) -> Self {
        // SAFETY: only the holder of the patch lock replaces or frees a table.
        let present = unsafe { TABLE.load(Ordering::Relaxed).as_ref() };
        let known = present.map_or_else(Arc::default, |table| Arc::clone(&table.known));
        Self { known: with(known, patches.iter().map(|p| p.site.code)), replaced: Vec::new() }
    }

    /// Has the handler search this (sorted) table from now on.
    pub(super) fn publish(&mut self, round: Vec<Resume>) {
        self.replace(round);
        trap::begin_round();
    }

    /// Ends the rounds: no `int3` of them is left.
    pub(super) fn retire(&mut self) {
        self.replace(Vec::new());
        // A handler may have been descheduled; it needs no lock of ours to go on.
        while HANDLERS.load(Ordering::SeqCst) != 0 {
            std::thread::yield_now();
        }
        for table in self.replaced.drain(..) {
            // SAFETY: `replace` made it, nobody else takes it, and no handler holds it.
            drop(unsafe { Box::from_raw(table) });
        }
    }

    fn replace(&mut self, round: Vec<Resume>) {
        let table = Box::into_raw(Box::new(Table { round, known: Arc::clone(&self.known) }));
        let replaced = TABLE.swap(table, Ordering::SeqCst);
        if !replaced.is_null() {
            self.replaced.push(replaced);
        }
    }
}

/// `known` and some (sorted) addresses, in order.
fn with(known: Arc<[usize]>, addresses: impl Iterator<Item = usize> + Clone) -> Arc<[usize]> {
    if addresses.clone().all(|address| known.binary_search(&address).is_ok()) {
        return known;
    }
    let mut all: Vec<usize> = known.iter().copied().chain(addresses).collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_resumed_in_its_round_and_known_for_good_after_it() {
        let known = with(with(Arc::default(), [0x20, 0x40].into_iter()), [0x10, 0x40].into_iter());
        assert_eq!(*known, [0x10, 0x20, 0x40]);
        let table = Table { round: vec![Resume { code: 0x20, target: 0x99 }], known };
        let verdicts = [0x10, 0x20, 0x30].map(|address| table.look_up(address));
        assert_eq!(verdicts, [Verdict::Late, Verdict::Resume(0x99), Verdict::Foreign]);
    }
}
