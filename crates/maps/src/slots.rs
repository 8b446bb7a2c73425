//! Reader slots: who reads what, so that a writer does not free it.
//!
//! A fixed table in `.bss`, for all maps of the process. A reader writes the address that it is about to read into a
//! free slot, looks whether that address is still the published one, reads, and empties the slot. A writer
//! that has published something else frees only what no slot names. A slot is held for one read and never by a thread
//! as such: nothing is left over when a thread ends, and a signal handler in the middle of a read takes a
//! slot of its own.
//!
//! # Invariants
//!
//! A slot that is not null is emptied or changed by the reader that filled it alone.
//!
//! # Async-signal-safety
//!
//! [`Slots::claim`] allocates nothing, waits for nothing and gives up after one walk over the table.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::NoSlot;

/// Slots of the process: twice as many as processors of a large machine, since a reader can lose its processor
/// while it holds one.
const SLOTS: usize = if cfg!(miri) { 8 } else { 256 };

/// On its own cache lines: neighbours are other threads'.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot(AtomicPtr<()>);

static TABLE: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

/// A table of slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots(&'static [Slot]);

thread_local! {
    /// Where this thread last found a free slot; without a destructor, so that reading it is signal-safe.
    static HINT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A filled slot.
#[derive(Debug)]
pub(crate) struct Claim(&'static AtomicPtr<()>);

impl Slots {
    /// The table of the process.
    pub(crate) const fn of_process() -> Self {
        Self(&TABLE)
    }

    #[cfg(test)]
    pub(crate) const fn of(table: &'static [Slot]) -> Self {
        Self(table)
    }

    /// Fills a free slot with `address`.
    #[inline]
    pub(crate) fn claim(self, address: *mut ()) -> Result<Claim, NoSlot> {
        let hint = HINT.with(Cell::get);
        match self.0.get(hint).and_then(|slot| slot.fill(address)) {
            Some(claim) => Ok(claim),
            None => self.walk(address),
        }
    }

    #[cold]
    fn walk(self, address: *mut ()) -> Result<Claim, NoSlot> {
        // Threads begin apart from one another: their thread-local storage does.
        let from = HINT.with(|hint| std::ptr::from_ref(hint).addr() >> 12);
        let slots = self.0.len();
        for step in 0..slots {
            let at = from.wrapping_add(step) % slots;
            if let Some(claim) = self.0[at].fill(address) {
                HINT.with(|hint| hint.set(at));
                return Ok(claim);
            }
        }
        Err(NoSlot { slots })
    }

    /// Whether a slot names `address`.
    pub(crate) fn holds(self, address: *mut ()) -> bool {
        // Sequentially consistent: see `Claim::renew`.
        self.0.iter().any(|slot| slot.0.load(Ordering::SeqCst) == address)
    }
}

impl Slot {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    #[inline]
    fn fill(&'static self, address: *mut ()) -> Option<Claim> {
        // Sequentially consistent: see `Claim::renew`.
        let filled =
            self.0.compare_exchange(std::ptr::null_mut(), address, Ordering::SeqCst, Ordering::Relaxed);
        // Lazily: a claim that is made empties its slot when it goes.
        filled.is_ok().then(|| Claim(&self.0))
    }
}

impl Claim {
    /// Names another address instead.
    ///
    /// This store and that of [`Slot::fill`] come, in the one order of all sequentially consistent accesses,
    /// before the reader looks again at what is published; a writer publishes before it looks at the slots. So
    /// the reader sees the new publication or the writer sees the slot.
    #[inline]
    pub(crate) fn renew(&self, address: *mut ()) {
        self.0.store(address, Ordering::SeqCst);
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the load in `holds`: what the reader has read comes before the freeing.
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: usize) -> *mut () {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn a_full_table_refuses_and_one_that_has_a_free_slot_again_gives_it() {
        static TABLE: [Slot; 3] = [const { Slot::new() }; 3];
        let slots = Slots::of(&TABLE);
        let mut claims: Vec<_> = (1..=3).map(|number| slots.claim(address(number)).unwrap()).collect();
        assert_eq!(slots.claim(address(4)).unwrap_err(), NoSlot { slots: 3 });
        assert!(slots.holds(address(1)) && slots.holds(address(3)) && !slots.holds(address(4)));
        drop(claims.remove(1));
        assert!(!slots.holds(address(2)));
        let claim = slots.claim(address(4)).unwrap();
        assert!(slots.holds(address(4)));
        claim.renew(address(5));
        assert!(slots.holds(address(5)) && !slots.holds(address(4)));
    }

    #[test]
    fn a_slot_is_free_again_after_its_reader_unwound() {
        static TABLE: [Slot; 1] = [const { Slot::new() }; 1];
        let slots = Slots::of(&TABLE);
        let unwound = std::panic::catch_unwind(|| {
            let _claim = slots.claim(address(1)).unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(unwound.is_err());
        assert!(slots.claim(address(2)).is_ok());
    }
}
