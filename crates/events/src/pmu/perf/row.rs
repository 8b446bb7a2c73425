//! The row of one thread: a descriptor for each of the kernel's events, and the counts that were
//! last read from them.
//!
//! Rows lie in a static table beside the threads' blocks, empty as the loader leaves them. So a
//! thread that begins to count allocates nothing, and a reader never touches freed memory.
//!
//! A slot has a sequence number of its own and is no [`Sequence`](dormouse_sys::sync::Sequence):
//! its reader makes system calls between the two readings of the number, so it tries eight times,
//! not a hundred, and returns nothing in place of words of two moments.
//!
//! # Invariants
//!
//! 1. Only its own thread opens a slot and writes the last readings and the totals; totals never
//!    decrease.
//! 2. A thread that closes a slot has shut the row: then no other thread is in the row, and none
//!    enters it.
//! 3. A thread is in the row while it uses a descriptor or a page of it.
//!
//! # Async-signal-safety
//!
//! A handler that interrupts a read of its own thread finds the row busy, and gets the earlier
//! totals.
//!
//! # Safety
//!
//! The unsafe code uses and closes descriptors and pages, under invariants 2 and 3.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use dormouse_sys::perf::{EventCount, UserPage};

use super::kernel::{Kernel, Opened};
use crate::pmu::patience;
use crate::pmu::scale::{Scaled, Tally, Times};

/// How many events the unit has.
pub(super) const EVENTS: usize = 7;

/// In `gate`: the row is shut. The bits below count the threads in the row.
const SHUT: u32 = 1 << 31;

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Row {
    gate: AtomicU32,
    /// Set while its thread is in the middle of a read.
    busy: AtomicBool,
    /// The process whose descriptors and pages these are, 0 before the first.
    process: AtomicU64,
    pub(super) slots: [Slot; EVENTS],
}

#[derive(Debug)]
pub(super) struct Slot {
    /// The descriptor and 1, or 0.
    fd: AtomicI32,
    /// Odd while the words below are written.
    sequence: AtomicU32,
    /// The generation in which the thread was refused a descriptor, 0: never.
    pub(super) refused_in: AtomicU32,
    page: AtomicPtr<UserPage>,
    /// Count, enabled and running of the last word, and of the total.
    words: [AtomicU64; 6],
}

impl Row {
    pub(super) const fn new() -> Self {
        Self {
            gate: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            process: AtomicU64::new(0),
            slots: [const { Slot::new() }; EVENTS],
        }
    }

    /// Enters the row, unless it is shut.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Pairs with the release in `close`: the slots that were closed are seen to be.
        if self.gate.fetch_add(1, Ordering::Acquire) & SHUT == 0 {
            return Some(Inside(self));
        }
        self.gate.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// For its own thread: as [`Row::enter`], but not twice at once.
    pub(super) fn enter_own(&self) -> Option<OwnInside<'_>> {
        if self.busy.swap(true, Ordering::Relaxed) {
            return None;
        }
        let inside = self.enter();
        if inside.is_none() {
            self.busy.store(false, Ordering::Relaxed);
        }
        inside.map(|inside| OwnInside { row: self, _inside: inside })
    }

    /// Closes those of `events` that are open, and returns their number; `None` if threads in the
    /// row do not leave it.
    ///
    /// # Locking
    ///
    /// Waits for the threads in the row, for up to `sleeps` rounds, and closes the row's
    /// descriptors. None of those threads waits for anything.
    pub(super) fn close(&self, kernel: &impl Kernel, events: &[u32], sleeps: u32) -> Option<u32> {
        // Pairs with the releases in `Inside::drop` and at the end of an earlier `close`.
        let shut = || {
            let free = |gate: u32| (gate & SHUT == 0).then_some(gate | SHUT);
            self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_ok()
        };
        if !patience::until(&self.gate, sleeps, |gate| gate & SHUT == 0 && shut()) {
            return None;
        }
        if !patience::until(&self.gate, sleeps, |gate| gate == SHUT) {
            self.gate.fetch_and(!SHUT, Ordering::Release);
            return None;
        }
        let slots = events.iter().filter_map(|&event| self.slots.get(event as usize));
        let closed = slots.filter_map(Slot::take).inspect(|&opened| {
            // SAFETY: taken out of the row, and no other thread is in it (invariants 2 and 3).
            unsafe { kernel.close(opened) };
        });
        let closed = closed.count() as u32;
        // Pairs with the acquire in `enter`. Some may be knocking, so no plain store.
        self.gate.fetch_and(!SHUT, Ordering::Release);
        Some(closed)
    }

    /// Leaves the row on behalf of its own thread, which ends: a handler may have left a read by
    /// `siglongjmp`.
    pub(super) fn leave_own(&self) {
        if self.busy.swap(false, Ordering::Relaxed) {
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// A thread is in the row and does not leave it. The descriptors stay open, so that the thread
    /// never reads a descriptor that the host has got meanwhile; the row forgets them.
    pub(super) fn abandon(&self) {
        self.slots.iter().for_each(|slot| _ = slot.take());
        self.gate.store(0, Ordering::Relaxed);
    }

    /// In a fork child, which inherits the descriptors but not the threads that they count, and not
    /// the pages.
    pub(super) fn forget(&self, kernel: &impl Kernel) {
        for opened in self.slots.iter().filter_map(Slot::take) {
            // SAFETY: taken out; the child has none of the threads that may have been in the row.
            unsafe { kernel.close(Opened { page: ptr::null_mut(), ..opened }) };
        }
        self.renew();
        self.gate.store(0, Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
        self.process.store(kernel.process(), Ordering::Relaxed);
    }

    /// For the next thread in the row, which has not been refused anything yet.
    pub(super) fn renew(&self) {
        for slot in &self.slots {
            slot.refused_in.store(0, Ordering::Relaxed);
        }
    }

    /// Whether its descriptors belong to another process.
    #[inline]
    pub(super) fn is_inherited(&self, kernel: &impl Kernel) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != kernel.process()
    }

    pub(super) fn belongs_to(&self, process: u64) {
        self.process.store(process, Ordering::Relaxed);
    }
}

/// Being in a row.
#[derive(Debug)]
pub(super) struct Inside<'a>(&'a Row);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // Pairs with the acquire in `close`.
        if self.0.gate.fetch_sub(1, Ordering::Release) & !SHUT == 0 {
            // The row was abandoned meanwhile.
            self.0.gate.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Being in one's own row.
#[derive(Debug)]
pub(super) struct OwnInside<'a> {
    row: &'a Row,
    _inside: Inside<'a>,
}

impl Drop for OwnInside<'_> {
    fn drop(&mut self) {
        self.row.busy.store(false, Ordering::Relaxed);
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            fd: AtomicI32::new(0),
            sequence: AtomicU32::new(0),
            refused_in: AtomicU32::new(0),
            page: AtomicPtr::new(ptr::null_mut()),
            words: [const { AtomicU64::new(0) }; 6],
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.fd.load(Ordering::Relaxed) != 0
    }

    /// The totals up to the last read of its thread.
    #[inline]
    pub(super) fn total(&self) -> Tally {
        self.load().total
    }

    fn load(&self) -> Scaled {
        let of = |first: usize| {
            let [count, enabled_ns, running_ns] =
                std::array::from_fn(|word| self.words[first + word].load(Ordering::Relaxed));
            Tally { count, times: Times { enabled_ns, running_ns } }
        };
        Scaled { said: of(0), total: of(3) }
    }

    /// Stores what its thread has just read.
    fn store(&self, Scaled { said, total }: Scaled) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence | 1, Ordering::Relaxed);
        // Pairs with the acquire fence in `of_other`: a thread that sees a new word sees the odd
        // number.
        fence(Ordering::Release);
        let words = [said, total].map(|of| [of.count, of.times.enabled_ns, of.times.running_ns]);
        for (word, value) in self.words.iter().zip(words.as_flattened()) {
            word.store(*value, Ordering::Relaxed);
        }
        // Pairs with the first load in `of_other`.
        self.sequence.store((sequence | 1).wrapping_add(1), Ordering::Release);
    }

    /// Stores a descriptor that its own thread, which is in the row, has opened.
    pub(super) fn fill(&self, opened: Opened, now: u64) {
        let begun = Tally { count: 0, times: Times { enabled_ns: now, running_ns: now } };
        self.store(self.load().anew(begun));
        self.page.store(opened.page, Ordering::Relaxed);
        // Pairs with the load in `of_other`: the counts of the last descriptor are not taken for
        // this one's.
        self.fd.store(opened.fd + 1, Ordering::Release);
    }

    fn take(&self) -> Option<Opened> {
        let fd = self.fd.swap(0, Ordering::Relaxed).checked_sub(1).filter(|&fd| fd >= 0)?;
        let page = self.page.swap(ptr::null_mut(), Ordering::Relaxed);
        self.store(self.load().anew(Tally::default()));
        Some(Opened { fd, page })
    }

    /// Reads the counters; called by its own thread, which is in the row.
    #[inline]
    pub(super) fn read(&self, kernel: &impl Kernel, now: u64) {
        let before = self.load();
        let fd = self.fd.load(Ordering::Relaxed);
        let held = (fd != 0).then(|| {
            let page = NonNull::new(self.page.load(Ordering::Relaxed));
            // SAFETY: this thread's, and open as long as it is in the row (invariants 2 and 3).
            page.and_then(|page| unsafe { kernel.look(page) }).or_else(|| kernel.read(fd - 1))
        });
        self.store(before.after(said(before, held.flatten(), now)));
    }

    /// The count of another thread's slot now; the caller is in its row.
    pub(super) fn of_other(&self, kernel: &impl Kernel, tid: u32) -> Option<u64> {
        for _ in 0..8 {
            // Both pair with the stores of its thread, in `store` and `fill`.
            let sequence = self.sequence.load(Ordering::Acquire);
            let fd = self.fd.load(Ordering::Acquire);
            let before = self.load();
            let after = if fd == 0 {
                before
            } else {
                before.after(said(before, Some(kernel.read(fd - 1)?), kernel.clock_of(tid)?))
            };
            // Pairs with the release fence in `store`.
            fence(Ordering::Acquire);
            if sequence.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == sequence {
                return Some(after.total.count);
            }
        }
        None
    }
}

/// The meaning of `held` at CPU time `now` of the thread. `None`: the event was on, and not
/// counted.
fn said(before: Scaled, held: Option<EventCount>, now: u64) -> Tally {
    match held {
        Some(EventCount { count, waited_ns }) => {
            Tally { count, times: Times { enabled_ns: now, running_ns: now.saturating_sub(waited_ns) } }
        }
        None => Tally { times: Times { enabled_ns: now, ..before.said.times }, ..before.said },
    }
}
