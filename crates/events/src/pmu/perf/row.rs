//! What one thread has of the kernel's events: a descriptor for each, and what they have said.
//!
//! Rows lie in a static table beside the threads' blocks, empty as the loader leaves them, so that a thread which
//! begins to count allocates nothing, and what is closed under a reader's hands is never memory.
//!
//! # Invariants
//!
//! 1. Only its thread opens a slot and writes what was said and the totals; totals never go down.
//! 2. Whoever closes a slot has shut the row: then nobody is in it, and nobody comes in.
//! 3. Whoever looks at a descriptor or a page is in the row.
//!
//! # Async-signal-safety
//!
//! A handler that comes into its thread's own read finds it busy, and is given the totals of before.
//!
//! # Safety
//!
//! The unsafe code looks at and closes what the kernel has opened, under invariants 2 and 3.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

use dormouse_sys::perf::{Held, UserPage};

use super::EVENTS;
use super::kernel::{Kernel, Opened};
use crate::pmu::scale::{Counted, Scaled, Times};

/// In `gate`: nobody comes in. Below it: how many are in.
const SHUT: u32 = 1 << 31;

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Row {
    gate: AtomicU32,
    /// Its thread is in the middle of a read.
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
    /// Count, enabled and running of what was said last, and of the total.
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

    /// Comes in, unless it is shut.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Pairs with the release in `reopen`: what was closed is seen to be.
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

    /// Closes what is open of `events`, and says how many that were.
    ///
    /// # Locking
    ///
    /// Waits for those who are in the row; none of them waits for anything.
    pub(super) fn close(&self, kernel: &impl Kernel, events: &[u32]) -> u32 {
        // Pairs with the releases of those who leave, and of whoever shut it before.
        while self.gate.fetch_or(SHUT, Ordering::Acquire) & SHUT != 0 {
            std::thread::yield_now();
        }
        while self.gate.load(Ordering::Acquire) != SHUT {
            std::thread::yield_now();
        }
        let slots = events.iter().filter_map(|&event| self.slots.get(event as usize));
        let closed = slots.filter_map(Slot::take).inspect(|&opened| {
            // SAFETY: taken out, and nobody else is in the row (invariants 2 and 3).
            unsafe { kernel.close(opened) };
        });
        let closed = closed.count() as u32;
        // Pairs with the acquire in `enter`. Some may be knocking, so no plain store.
        self.gate.fetch_and(!SHUT, Ordering::Release);
        closed
    }

    /// In a fork child, which has the descriptors but nobody whom they count, and not the pages.
    pub(super) fn forget(&self, kernel: &impl Kernel) {
        for opened in self.slots.iter().filter_map(Slot::take) {
            // SAFETY: taken out; of those who may have been in the row the child has none.
            unsafe { kernel.close(Opened { page: ptr::null_mut(), ..opened }) };
        }
        self.renew();
        self.gate.store(0, Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
        self.process.store(kernel.process(), Ordering::Relaxed);
    }

    /// For another thread, which nobody has refused anything yet.
    pub(super) fn renew(&self) {
        for slot in &self.slots {
            slot.refused_in.store(0, Ordering::Relaxed);
        }
    }

    /// Whether what is in it is another process's.
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
        self.0.gate.fetch_sub(1, Ordering::Release);
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

    /// The totals, as of the last read of its thread.
    #[inline]
    pub(super) fn total(&self) -> Counted {
        self.load().total
    }

    fn load(&self) -> Scaled {
        let of = |first: usize| {
            let [count, enabled_ns, running_ns] =
                std::array::from_fn(|word| self.words[first + word].load(Ordering::Relaxed));
            Counted { count, times: Times { enabled_ns, running_ns } }
        };
        Scaled { said: of(0), total: of(3) }
    }

    /// Its thread has heard something.
    fn store(&self, Scaled { said, total }: Scaled) {
        let sequence = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(sequence | 1, Ordering::Relaxed);
        // Pairs with the acquire fence in `of_other`: who sees a new word sees the odd number.
        fence(Ordering::Release);
        let words = [said, total].map(|of| [of.count, of.times.enabled_ns, of.times.running_ns]);
        for (word, value) in self.words.iter().zip(words.as_flattened()) {
            word.store(*value, Ordering::Relaxed);
        }
        // Pairs with the first load in `of_other`.
        self.sequence.store((sequence | 1).wrapping_add(1), Ordering::Release);
    }

    /// Its thread, which is in the row, has opened it.
    pub(super) fn fill(&self, opened: Opened, now: u64) {
        let begun = Counted { count: 0, times: Times { enabled_ns: now, running_ns: now } };
        self.store(self.load().anew(begun));
        self.page.store(opened.page, Ordering::Relaxed);
        // Pairs with the load in `of_other`: what was said before this one is not taken for its word.
        self.fd.store(opened.fd + 1, Ordering::Release);
    }

    fn take(&self) -> Option<Opened> {
        let fd = self.fd.swap(0, Ordering::Relaxed).checked_sub(1).filter(|&fd| fd >= 0)?;
        let page = self.page.swap(ptr::null_mut(), Ordering::Relaxed);
        self.store(self.load().anew(Counted::default()));
        Some(Opened { fd, page })
    }

    /// Its thread, which is in the row, reads it.
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

    /// What another thread's slot would say now; whoever asks is in its row.
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

/// What `held` means at CPU time `now` of the thread. Nothing held: the event was on, and not counted.
fn said(before: Scaled, held: Option<Held>, now: u64) -> Counted {
    match held {
        Some(Held { count, waited_ns }) => {
            Counted { count, times: Times { enabled_ns: now, running_ns: now.saturating_sub(waited_ns) } }
        }
        None => Counted { times: Times { enabled_ns: now, ..before.said.times }, ..before.said },
    }
}
