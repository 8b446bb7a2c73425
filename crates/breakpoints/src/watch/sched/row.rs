//! The registers of one thread for watches of groups: its lines, each with a descriptor of its own.
//!
//! A thread has no more lines than the group with the most watches needs, because a descriptor
//! takes a register even while it is off. So watches of two groups use a line in turns: a line that
//! is off and belongs to a watch of another group is retargeted by one call, which also switches it
//! on.
//!
//! Rows lie in a static table beside the threads' blocks: a thread allocates nothing, and a thread
//! that reads another one's row never touches freed memory.
//!
//! # Invariants
//!
//! 1. A row's thread opens, retargets and switches its lines inside [`Row::enter_own`]. Readers of
//!    counts may be in the row beside it: between the check of a descriptor (invariant 2) and the
//!    reading its number must not go to a file of the host. So closing requires exclusive access to
//!    the row, by its thread ([`Row::shut_own`]) or by another one ([`Row::shut`], while the thread
//!    is not in it). Nobody waits for a shut row: who comes meanwhile does without it.
//! 2. A line has a descriptor while `fd` is not 0. It belongs to the process in the row and to the
//!    descriptor table of the row's thread. Before the line is read, retargeted or closed, the
//!    event's id is checked. If it is another one, the host has closed the descriptor and may use
//!    the number for a file of its own. Or the caller has another table than the thread (the
//!    threads of dormouse do): then the line is left to its thread, which closes it at its next
//!    switch to a watched group. A switch does not check, which would double its cost. So if the
//!    host has closed the descriptor and then opened a perf event of its own under the same number,
//!    that event is switched until the line is next read.
//!
//! # Safety
//!
//! The unsafe code uses descriptors, which are open by invariants 1 and 2 as long as the caller is
//! in the row.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use dormouse_sys::perf::{Attr, Reading, bare, is_filtered};
use dormouse_sys::process::identity;

use super::patience;

/// The most lines that a thread can have: more registers than there are.
pub(super) const MOST_LINES: usize = 8;

/// In `gate`: the thread is in its row; the row is shut; above: readers.
const OWN: u32 = 1;
const SHUT: u32 = 2;
const READER: u32 = 4;

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Row {
    gate: AtomicU32,
    /// How many switches to skip before the kernel is asked again for what it has refused.
    pub(super) refused: AtomicU32,
    /// The process whose descriptors these are.
    process: AtomicU64,
    pub(super) lines: [Line; MOST_LINES],
}

#[derive(Debug)]
pub(super) struct Line {
    /// The descriptor and 1, or 0.
    fd: AtomicI32,
    is_on: AtomicBool,
    /// The watch and its part that the line is for; see [`target`]. 0: none, or it is being
    /// turned.
    target: AtomicU64,
    /// The event's count when it was turned there.
    base: AtomicU64,
    id: AtomicU64,
}

/// Part `part` of watch `number`, as a line stores it; never 0.
pub(super) fn target(number: u32, part: usize) -> u64 {
    u64::from(number) << 8 | (part as u64 + 1)
}

/// The watch of a target.
pub(super) fn number_of(target: u64) -> u32 {
    (target >> 8) as u32
}

/// Being in a row.
#[derive(Debug)]
pub(super) struct Inside<'r> {
    row: &'r Row,
    leave: u32,
}

impl Row {
    pub(super) const fn new() -> Self {
        Self {
            gate: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            process: AtomicU64::new(0),
            lines: [const { Line::new() }; MOST_LINES],
        }
    }

    /// For its own thread, and not twice at once: a signal handler finds the row of the code that
    /// it has interrupted busy.
    pub(super) fn enter_own(&self) -> Option<Inside<'_>> {
        // Sequentially consistent: the thread that shuts the row next sees it busy, or the thread
        // sees what that one stored before (`super::end`).
        let before = self.gate.fetch_or(OWN, Ordering::SeqCst);
        if before & OWN != 0 {
            return None;
        }
        let inside = Inside { row: self, leave: OWN };
        (before & SHUT == 0).then_some(inside)
    }

    /// For others, who look at counts.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        // Pairs with the release of `Inside::drop`.
        let before = self.gate.fetch_add(READER, Ordering::Acquire);
        let inside = Inside { row: self, leave: READER };
        (before & SHUT == 0).then_some(inside)
    }

    /// The row for the caller alone; `None` if the threads in it do not leave it.
    ///
    /// # Locking
    ///
    /// Waits for the threads in the row, which wait for no other thread.
    pub(super) fn shut(&self, sleeps: u32) -> Option<Inside<'_>> {
        let free = || self.gate.compare_exchange(0, SHUT, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        patience::until(&self.gate, sleeps, free).then(|| Inside { row: self, leave: SHUT })
    }

    /// The row for its own thread alone, which is in it; `None` if others look at counts.
    pub(super) fn shut_own(&self) -> Option<Inside<'_>> {
        let is_alone = self.gate.compare_exchange(OWN, OWN | SHUT, Ordering::SeqCst, Ordering::Relaxed);
        is_alone.is_ok().then(|| Inside { row: self, leave: SHUT })
    }

    /// Whether its descriptors are those of a process that has forked this one.
    pub(super) fn is_inherited(&self) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != process_number()
    }

    pub(super) fn belongs_here(&self) {
        self.process.store(process_number(), Ordering::Relaxed);
    }

    /// In a fork child, which has the parent's descriptors, and whose only thread is in no row.
    ///
    /// The parent's host may have closed one, and the number may be its log's by now, also here. A
    /// filter may end the child for the question: then the copy stays open until the child's end.
    pub(super) fn forget(&self) {
        for line in self.lines.iter().filter(|line| line.is_open()) {
            let is_ours = !is_filtered() && line.own_event().is_some();
            if let Some(fd) = line.take().filter(|_| is_ours) {
                // SAFETY: the child's copy of ours (invariant 2).
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        self.gate.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
    }

    /// A thread is in the row for ever: a signal handler has left it by `siglongjmp`. Its
    /// descriptors stay open, off as far as that goes.
    pub(super) fn abandon(&self) {
        for line in &self.lines {
            let _off = line.own_event().map(|event| bare::set_enabled(event, false));
            line.take();
        }
        self.gate.store(0, Ordering::Relaxed);
    }

    /// How many lines are open, when its thread is not in the middle of opening one.
    pub(super) fn settled(&self) -> u32 {
        let is_out = || self.gate.load(Ordering::SeqCst) & OWN == 0;
        // A thread that does not leave has left by `siglongjmp`.
        let _settled = patience::until(&self.gate, patience::SHORT, is_out);
        self.open()
    }

    /// How many lines are open.
    pub(super) fn open(&self) -> u32 {
        self.lines.iter().filter(|line| line.is_open()).count() as u32
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if self.leave == READER {
            // Pairs with the exchanges in `shut` and `shut_own`: the counts were read before.
            // `None`: a handler that interrupted this has forked, and this is the child, where no
            // thread is in a row.
            let left = |gate: u32| gate.checked_sub(READER);
            let _before = self.row.gate.fetch_update(Ordering::Release, Ordering::Relaxed, left);
        } else {
            // Pairs with the next entry: it sees the lines as they are now.
            self.row.gate.fetch_and(!self.leave, Ordering::SeqCst);
        }
    }
}

/// For callers in the row.
impl Line {
    const fn new() -> Self {
        Self {
            fd: AtomicI32::new(0),
            is_on: AtomicBool::new(false),
            target: AtomicU64::new(0),
            base: AtomicU64::new(0),
            id: AtomicU64::new(0),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        // Acquire: pairs with the store in `fill`, which a reader in the row may see.
        self.fd.load(Ordering::Acquire) != 0
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn target(&self) -> u64 {
        // Acquire: pairs with the store in `turn`: the count begins at the base of this target.
        self.target.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        let fd = self.fd.load(Ordering::Relaxed).checked_sub(1).filter(|&fd| fd >= 0)?;
        // SAFETY: open while the caller is in the row (invariants 1 and 2).
        Some(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Its event, if the descriptor still is that event.
    fn own_event(&self) -> Option<BorrowedFd<'_>> {
        // No event has the id 0, so a line without an id owns nothing.
        let id = self.id.load(Ordering::Relaxed);
        self.event().filter(|&event| id != 0 && bare::id(event).is_ok_and(|there| there == id))
    }

    fn take(&self) -> Option<i32> {
        self.is_on.store(false, Ordering::Relaxed);
        self.target.store(0, Ordering::Relaxed);
        self.fd.swap(0, Ordering::Relaxed).checked_sub(1).filter(|&fd| fd >= 0)
    }

    /// The line has this event, which is on.
    pub(super) fn fill(&self, event: OwnedFd, target: u64) {
        self.id.store(bare::id(event.as_fd()).unwrap_or(0), Ordering::Relaxed);
        self.base.store(0, Ordering::Relaxed);
        self.target.store(target, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
        // Release: pairs with the load in `is_open`.
        self.fd.store(event.into_raw_fd() + 1, Ordering::Release);
    }

    /// Switches it on or off; false, and the line is closed, if the host has closed its descriptor.
    pub(super) fn switch(&self, on: bool) -> bool {
        if self.is_on() == on {
            return true;
        }
        let done = self.event().is_some_and(|event| bare::set_enabled(event, on).is_ok());
        if done {
            self.is_on.store(on, Ordering::Relaxed);
        } else {
            self.take();
        }
        done
    }

    /// Turns it, which is off, to another target, and on. The count since the last turn is
    /// `counted`. As [`Self::switch`].
    pub(super) fn turn(&self, attr: &Attr, to: u64, counted: impl Fn(u32, u64)) -> bool {
        let done = self.own_event().is_some_and(|event| {
            self.settle(event, counted);
            bare::retarget(event, attr).is_ok()
        });
        if done {
            // Release: pairs with the load in `target`.
            self.target.store(to, Ordering::Release);
            self.is_on.store(true, Ordering::Relaxed);
        } else {
            self.take();
        }
        done
    }

    /// The hits of watch `number` since the last turn; `None`: it is being turned.
    pub(super) fn count_for(&self, number: u32) -> Option<u64> {
        let (target, base) = (self.target(), self.base.load(Ordering::Relaxed));
        if target == 0 {
            return None;
        }
        if number_of(target) != number {
            return Some(0);
        }
        let n = self.own_event().map_or(0, |event| Self::count_since(base, event));
        // Pairs with the fence in `settle`: a count that has gone on elsewhere has no target, or
        // another one, or, turned back to this one, another base.
        fence(Ordering::Acquire);
        (self.target() == target && self.base.load(Ordering::Relaxed) == base).then_some(n)
    }

    fn count_since(base: u64, event: BorrowedFd<'_>) -> u64 {
        Reading::of(event).map_or(0, |count| count.value.saturating_sub(base))
    }

    /// Hands its count on. From now on it is being turned.
    fn settle(&self, event: BorrowedFd<'_>, counted: impl Fn(u32, u64)) {
        let target = self.target.swap(0, Ordering::Relaxed);
        // Pairs with the fence in `count_for`.
        fence(Ordering::Release);
        let n = Self::count_since(self.base.load(Ordering::Relaxed), event);
        self.base.fetch_add(n, Ordering::Relaxed);
        counted(number_of(target), n);
    }

    /// Closes it, or leaves it to its thread: false. The caller has shut the row.
    pub(super) fn close(&self, is_own: bool, counted: impl Fn(u32, u64)) -> bool {
        match self.own_event() {
            Some(event) => {
                let _off = bare::set_enabled(event, false);
                self.settle(event, counted);
                if let Some(fd) = self.take() {
                    // SAFETY: taken out of the row, it is the event that was opened, and nothing
                    // else uses it.
                    drop(unsafe { OwnedFd::from_raw_fd(fd) });
                }
            }
            None if is_own => _ = self.take(),
            None => return false,
        }
        true
    }
}

/// A number that is another one in a fork child; 0 where there is none.
pub(super) fn process_number() -> u64 {
    identity::number().map_or(0, std::num::NonZeroU64::get)
}
