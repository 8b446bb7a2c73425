//! The CPU time of single tasks, while it is requested.
//!
//! The account of groups reads a thread's clock when the thread goes from one group to another.
//! Here the clock is read whenever the innermost task changes (a *turn*): what the thread has used
//! since its last turn is charged to that task. So nothing is allocated, and the switch of the
//! account is not involved. (`Mode::TaskExact` of `dormouse-events` counts tasks, too, but
//! allocates at the first entry of each: that is for a service to choose, not for a client of its
//! agent.)
//!
//! For a poll that began before the request the CPU time is unknown. For one that began since then
//! and still goes on, a reader reads its thread's clock from the kernel.
//!
//! # Async-signal-safety
//!
//! The same as the clock's.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::{thread_cpu_ns, thread_cpu_ns_of};
use dormouse_sys::process::identity;
use dormouse_sys::{perf, thread};

use crate::rows::{self, Shelf};
use crate::slot::Slot;

/// How many ask, in the low half; and in the other one how often the first of them began.
static ASKED: AtomicU64 = AtomicU64::new(0);
const ONE_RUN: u64 = 1 << 32;

/// As long as this lives, the CPU time of each task is measured, provided that its times are
/// measured, too ([`crate::Waiting`]). Several may exist at once.
///
/// In a forked child, one that the parent made has no effect.
#[derive(Debug)]
#[must_use = "CPU time of tasks is taken as long as it lives"]
pub struct CpuTaking {
    process: u64,
}

impl CpuTaking {
    /// Begins to measure.
    ///
    /// # Cost
    ///
    /// From here on two reads of the thread's clock for each poll.
    pub fn start() -> Self {
        // The first steps of the clock allocate: they are not for a thread of the host's.
        if !perf::is_filtered() {
            dormouse_clock::prepare();
        }
        let more = |asked: u64| if asked.is_multiple_of(ONE_RUN) { asked + ONE_RUN + 1 } else { asked + 1 };
        let _before = ASKED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |asked| Some(more(asked)));
        Self { process: identity::id() }
    }
}

impl Drop for CpuTaking {
    fn drop(&mut self) {
        // A forked child has forgotten those of its parent.
        if self.process == identity::id() {
            ASKED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// In a forked child it is not requested.
pub(crate) fn forget() {
    // Not 0: slots and shelves may contain numbers of runs of the parent.
    let asked = ASKED.load(Ordering::Relaxed);
    ASKED.store(asked - asked % ONE_RUN, Ordering::Relaxed);
}

/// The number of the present run; 0 while it is not requested.
#[inline]
fn run() -> u64 {
    let asked = ASKED.load(Ordering::Relaxed);
    if asked.is_multiple_of(ONE_RUN) { 0 } else { asked / ONE_RUN }
}

/// The shelf's own thread is about to go to another task, or leaves the innermost one.
#[inline]
pub(crate) fn turn(shelf: &Shelf) {
    let run = run();
    if run != 0 {
        take(shelf, run);
    }
}

#[cold]
fn take(shelf: &Shelf, run: u64) {
    let now = thread_cpu_ns();
    if let Some(last) = shelf.cpu.of(run)
        && let Some(going) = shelf.polled().filter(|going| !going.is_over())
    {
        let used = &going.slot.cpu;
        used.set(run, used.of(run).unwrap_or(0) + now.saturating_sub(last));
    }
    shelf.cpu.set(run, now);
}

/// The CPU time of the slot's task since it was requested, in nanoseconds. `is_polled`: the task is
/// in a poll. `None` if it is not requested, or if the present poll began before.
pub(crate) fn used(slot: &Slot, is_polled: bool) -> Option<u64> {
    let run = Some(run()).filter(|&run| run != 0)?;
    let used = || slot.cpu.of(run).unwrap_or(0);
    let before = used();
    if !is_polled {
        return Some(before);
    }
    let going_on = going_on(slot, run)?;
    // The poll may have ended meanwhile: then what went on is in it.
    let now = used();
    Some(if now == before { before + going_on } else { now })
}

/// The part of the poll that goes on, of the innermost task of a thread.
fn going_on(slot: &Slot, run: u64) -> Option<u64> {
    let is_its = |shelf: &Shelf| shelf.polled().filter(|going| std::ptr::eq(going.slot, slot));
    let Some((block, shelf)) = rows::shelves().find(|(_, shelf)| is_its(shelf).is_some()) else {
        // Another task inside of its poll is polled.
        return Some(0);
    };
    let last = shelf.cpu.of(run);
    let tid = thread::live().find(|thread| thread.index() == block)?.tid();
    let now = thread_cpu_ns_of(tid)?;
    let is_same = shelf.cpu.of(run) == last && is_its(shelf).is_some();
    if is_same { last.map(|last| now.saturating_sub(last)) } else { Some(0) }
}
