//! Reader slots: each names the value that a reader uses, so that no writer frees it.
//!
//! A fixed table in `.bss`, for all maps of the process. A reader writes the address that it is
//! about to read into a free slot, checks whether that address is still the published one, reads,
//! and empties the slot. A writer that has published another value frees only values that no slot
//! names. A slot is held for one read and does not belong to a thread: nothing is left over when a
//! thread ends, and a signal handler that interrupts a read takes another slot.
//!
//! # Invariants
//!
//! 1. Only the reader that filled a slot changes or empties it.
//! 2. Slots from `used` on were never filled.
//!
//! # Async-signal-safety
//!
//! [`Slots::claim`] allocates nothing, waits for nothing and gives up after one pass over the
//! table.
//!
//! A handler that does not return (`siglongjmp`), or a thread that is ended, in the middle of a
//! read leaves its slot taken: the snapshot that it names is never freed, and the table has one
//! slot less for good. No other thread may empty the slot, because the read may go on any time.
//! After 256 such reads, look-ups fail with [`NoSlot`].

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::error::NoSlot;
use crate::primitive::{AtomicPtr, AtomicUsize, const_unless_loom, heavy_barrier, light_barrier};

/// Slots of the process: twice as many as processors of a large machine, since a reader can lose
/// its processor while it holds one.
#[cfg(not(all(test, loom)))]
const SLOTS: usize = if cfg!(miri) { 8 } else { 256 };

/// The slots at which readers without a hint begin their search.
const BESIDE: usize = 32;
/// Stacks of threads are longer than this power of two.
const STACK_BITS: u32 = 16;

/// On its own cache lines: neighbours are other threads'.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot(AtomicPtr<()>);

/// Slots, and how many of them a writer has to look at.
#[derive(Debug)]
pub(crate) struct Table<S: ?Sized> {
    used: AtomicUsize,
    slots: S,
}

#[cfg(not(all(test, loom)))]
static TABLE: Table<[Slot; SLOTS]> = Table::of([const { Slot::new() }; SLOTS]);

/// A table of slots: that of the process, except that tests bring their own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots(#[cfg(test)] &'static Table<[Slot]>);

thread_local! {
    /// Where this thread last found a free slot; without a destructor, so that reading it is
    /// signal-safe.
    static HINT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
}

/// A filled slot.
#[derive(Debug)]
pub(crate) struct Claim(&'static AtomicPtr<()>);

impl<S> Table<S> {
    const_unless_loom! {
        pub(crate) fn of(slots: S) -> Self {
            Self { used: AtomicUsize::new(0), slots }
        }
    }
}

impl Slots {
    #[cfg(not(test))]
    pub(crate) const fn of_process() -> Self {
        Self()
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of_process() -> Self {
        Self(&TABLE)
    }

    /// Each map has another table: loom's atomics cannot be static.
    #[cfg(all(test, loom))]
    pub(crate) fn of_process() -> Self {
        Self(Box::leak(Box::new(Table::of([Slot::new(), Slot::new()]))))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) const fn of(table: &'static Table<[Slot]>) -> Self {
        Self(table)
    }

    #[cfg(not(test))]
    #[inline]
    #[allow(clippy::unused_self)]
    fn table(self) -> &'static Table<[Slot]> {
        &TABLE
    }

    #[cfg(test)]
    fn table(self) -> &'static Table<[Slot]> {
        self.0
    }

    /// Fills a free slot with `address`.
    #[inline]
    pub(crate) fn claim(self, address: *mut ()) -> Result<Claim, NoSlot> {
        let hint = HINT.with(Cell::get);
        // A slot of another table, where there are several, would not be found.
        #[cfg(test)]
        let hint = hint.filter(|&hint| self.table().slots.as_ptr_range().contains(&&raw const *hint));
        match hint.and_then(|hint| hint.fill(address)) {
            Some(claim) => Ok(claim),
            None => self.walk(hint, address),
        }
    }

    /// Fills a free slot as [`Slots::claim`] does, but reads no thread-local: the first use of one
    /// allocates memory in an object that was loaded at run time, so a signal handler there has
    /// none.
    #[inline]
    pub(crate) fn claim_without_hint(self, address: *mut ()) -> Result<Claim, NoSlot> {
        // Threads have stacks of their own, so they begin their search at different slots.
        let here = 0_u8;
        let from = ((&raw const here).addr() >> STACK_BITS) % BESIDE.min(self.table().slots.len());
        self.search(from, address).map(|(claim, _)| claim)
    }

    #[cold]
    fn walk(self, hint: Option<&Slot>, address: *mut ()) -> Result<Claim, NoSlot> {
        let Table { used, slots } = self.table();
        // A thread that comes new begins where no other has been yet, as long as there is such a
        // place.
        let from = match hint {
            Some(hint) => (std::ptr::from_ref(hint).addr() - slots.as_ptr().addr()) / size_of::<Slot>(),
            None => used.load(Ordering::Relaxed),
        };
        let (claim, at) = self.search(from, address)?;
        HINT.with(|hint| hint.set(Some(&slots[at])));
        Ok(claim)
    }

    /// Fills the first free slot from the index `from` on, and returns its index, too.
    fn search(self, from: usize, address: *mut ()) -> Result<(Claim, usize), NoSlot> {
        let Table { used, slots } = self.table();
        for step in 0..slots.len() {
            let at = from.wrapping_add(step) % slots.len();
            // Pairs with `fetch_max`: another thread's count of this slot comes before this
            // thread's claim of it.
            if used.load(Ordering::Acquire) <= at {
                // Sequentially consistent: see `Claim::renew`.
                used.fetch_max(at + 1, Ordering::SeqCst);
            }
            if let Some(claim) = slots[at].fill(address) {
                return Ok((claim, at));
            }
        }
        Err(NoSlot { slots: slots.len() })
    }

    /// Whether a slot names `address`.
    pub(crate) fn holds(self, address: *mut ()) -> bool {
        // After the publication by this writer: see `Claim::renew`.
        heavy_barrier();
        let Table { used, slots } = self.table();
        slots.iter().take(used.load(Ordering::SeqCst)).any(|slot| slot.0.load(Ordering::SeqCst) == address)
    }
}

impl Slot {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(AtomicPtr::new(std::ptr::null_mut()))
        }
    }

    #[inline]
    fn fill(&'static self, address: *mut ()) -> Option<Claim> {
        // Sequentially consistent: see `Claim::renew`.
        let filled =
            self.0.compare_exchange(std::ptr::null_mut(), address, Ordering::SeqCst, Ordering::Relaxed);
        light_barrier();
        // Lazily: a claim that is made empties its slot when it goes.
        filled.is_ok().then(|| Claim(&self.0))
    }
}

impl Claim {
    /// Names another address instead.
    ///
    /// This store and that of [`Slot::fill`], and before it that of `used`, come before the light
    /// barrier, and after it the reader looks again at the published address. A writer publishes
    /// before its heavy barrier, and reads the slots after it ([`Slots::holds`]). So the reader
    /// sees the new publication or the writer sees the slot.
    #[inline]
    pub(crate) fn renew(&self, address: *mut ()) {
        self.0.store(address, Ordering::SeqCst);
        light_barrier();
    }
}

impl Drop for Claim {
    #[inline]
    fn drop(&mut self) {
        // Pairs with the load in `holds`: the reads come before the freeing.
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(number: usize) -> *mut () {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn full_table_refuses_until_a_slot_is_free() {
        static TABLE: Table<[Slot; 3]> = Table::of([const { Slot::new() }; 3]);
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
    fn slot_of_unwound_reader_is_free_again() {
        static TABLE: Table<[Slot; 1]> = Table::of([const { Slot::new() }; 1]);
        let slots = Slots::of(&TABLE);
        let unwound = std::panic::catch_unwind(|| {
            let _claim = slots.claim(address(1)).unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(unwound.is_err());
        assert!(slots.claim(address(2)).is_ok());
    }
}
