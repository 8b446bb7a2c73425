//! A task's part: its begin, its polls, and its end.
//!
//! # Invariants
//!
//! 1. The owner of a [`TaskWaits`] alone writes its slot, but for what wakers write.
//! 2. In a poll, runnable and awaiting add up to the age of the task, tick for tick: each time
//!    begins where the one before ends.
//!
//! # Safety
//!
//! The unsafe code makes references to slots, which stay, and shortens the lifetime of a context.
#![allow(unsafe_code)]

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use dormouse_clock::stamp;
use dormouse_keys::unlikely;
use dormouse_sys::thread::ThreadBlock;

use crate::rows::{self, Row, Shelf, Time, Wait};
use crate::slab;
use crate::slot::{Slot, at};
use crate::stretch::{Stretch, leave};
use crate::waiting::{WAITS, run};
use crate::waker::{self, Lent};

/// A task, as the account of groups knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    /// Its number.
    pub task: u64,
    /// The number of its group.
    pub group: u32,
}

/// The knowledge that a task has of its waits: nothing, while nobody takes times.
#[derive(Debug, Default)]
pub struct TaskWaits(Option<NonNull<Slot>>);

impl UnwindSafe for TaskWaits {}
impl RefUnwindSafe for TaskWaits {}

// SAFETY: slots are shared; what is the owner's moves with it.
unsafe impl Send for TaskWaits {}
// SAFETY: as above: there is nothing to be done with a shared one.
unsafe impl Sync for TaskWaits {}

/// A poll. In this order: the waker ends with the time.
struct Polling {
    lent: Lent,
    stretch: Stretch,
}

impl TaskWaits {
    /// A task that begins now.
    #[inline]
    pub fn begun(who: Who) -> Self {
        let mut waits = Self(None);
        if unlikely!(WAITS) {
            waits.begin_now(who);
        }
        waits
    }

    /// Polls something: while somebody takes times, with a waker that sees wakes.
    ///
    /// A thread that has no block, and a task for which there is no memory, have no times.
    #[inline]
    pub fn poll<T>(&mut self, who: Who, cx: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        let polling = if unlikely!(WAITS) { self.begin_poll(who, cx.waker()) } else { None };
        let mut own;
        let cx = match &polling {
            Some(polling) => {
                // The stack from here on is that of the poll.
                polling.stretch.slot.top.store(ptr::from_ref(polling).addr(), Ordering::Relaxed);
                own = Context::from_waker(polling.lent.waker());
                &mut own
            }
            // SAFETY: the lifetime becomes that of `own`, so that one call serves both. `poll`
            // takes a context of any lifetime, so it has nothing to put into this one that would
            // live shorter than what is there.
            None => unsafe { &mut *ptr::from_mut(cx).cast::<Context<'_>>() },
        };
        poll(cx)
    }

    /// Somebody runs the task by hand from now on, on this thread: a stretch in a poll, which is
    /// not counted among polls. `None` while nobody takes times.
    #[inline]
    pub fn run(&mut self, who: Who) -> Option<Stretch> {
        if unlikely!(WAITS) { self.begin_run(who) } else { None }
    }

    /// The task has no times: somebody switches to it by hand.
    #[inline]
    pub fn forget(&mut self) {
        if let Some(slot) = self.0.take() {
            // SAFETY: a slot stays.
            end(unsafe { slot.as_ref() }, None);
        }
    }

    /// The task ends. `is_request`: its age is that of a request.
    #[inline]
    pub fn end(&mut self, is_request: bool) {
        if let Some(slot) = self.0.take() {
            // SAFETY: a slot stays.
            end(unsafe { slot.as_ref() }, Some(is_request));
        }
    }

    #[cold]
    fn begin_now(&mut self, who: Who) {
        if let Some((block, shelf)) = rows::own()
            && let Some(row) = shelf.row(who.group)
        {
            self.begin(who, block, row, run(), true);
        }
    }

    #[cold]
    fn begin(
        &mut self,
        who: Who,
        block: &ThreadBlock,
        row: &Row,
        run: u64,
        is_new: bool,
    ) -> Option<&'static Slot> {
        let slot = slab::take(block.index())?;
        slot.share.hold();
        slot.task.store(who.task, Ordering::Relaxed);
        slot.group.store(who.group, Ordering::Relaxed);
        slot.renew.store(false, Ordering::Relaxed);
        restart(slot, row, run, is_new);
        // Release: who finds it odd finds the rest.
        slot.life.fetch_add(1, Ordering::Release);
        self.0 = Some(NonNull::from(slot));
        Some(slot)
    }

    /// The slot, with times of that run.
    #[inline]
    fn slot(&mut self, who: Who, block: &ThreadBlock, row: &Row, run: u64) -> Option<&'static Slot> {
        // SAFETY: a slot stays.
        let Some(slot) = self.0.map(|slot| unsafe { &*slot.as_ptr() }) else {
            return self.begin(who, block, row, run, false);
        };
        // In a poll: somebody has forgotten a stretch.
        if slot.run.load(Ordering::Relaxed) != run || slot.polling.load(Ordering::Relaxed) != 0 {
            restart(slot, row, run, false);
        }
        Some(slot)
    }

    fn begin_poll(&mut self, who: Who, runtime: &Waker) -> Option<Polling> {
        let (block, shelf) = rows::own()?;
        let row = shelf.row(who.group)?;
        let run = run();
        let slot = self.slot(who, block, row, run)?;
        let lent = waker::lend(slot, block, runtime)?;
        Some(Polling { lent, stretch: Stretch::begin(slot, shelf, row, run, true) })
    }

    #[cold]
    fn begin_run(&mut self, who: Who) -> Option<Stretch> {
        let (block, shelf) = rows::own()?;
        let row = shelf.row(who.group)?;
        let run = run();
        let slot = self.slot(who, block, row, run)?;
        Some(Stretch::begin(slot, shelf, row, run, false))
    }
}

impl Drop for TaskWaits {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Times begin now: with the task, or in its midst.
#[cold]
fn restart(slot: &Slot, row: &Row, run: u64, is_new: bool) {
    let now = stamp();
    let store = |word: &std::sync::atomic::AtomicU64, value| word.store(value, Ordering::Relaxed);
    slot.sequence.write(|| {
        store(&slot.run, run);
        store(&slot.begun, if is_new { now } else { 0 });
        store(&slot.since, now);
        store(&slot.polling, 0);
        for word in slot.ticks.iter().chain([&slot.polls, &slot.wakes]) {
            store(word, 0);
        }
    });
    // A new task is to be polled.
    store(&slot.woken, if is_new { now } else { 0 });
    for place in &slot.places {
        place.store(0, Ordering::Relaxed);
    }
    row.task_begins(run, now);
}

/// The task leaves its slot. `None` instead of whether it was a request: it has had no times.
#[cold]
fn end(slot: &'static Slot, is_request: Option<bool>) {
    if let Some((_, shelf)) = rows::own()
        && let Some(row) = shelf.row(slot.group.load(Ordering::Relaxed))
    {
        end_times(slot, shelf, row, is_request);
    }
    // Release: who finds it even may find another task's.
    slot.life.fetch_add(1, Ordering::Release);
    slot.polling.store(0, Ordering::Relaxed);
    waker::end(slot);
}

fn end_times(slot: &'static Slot, shelf: &Shelf, row: &Row, is_request: Option<bool>) {
    let now = stamp();
    if slot.polling.load(Ordering::Relaxed) != 0 {
        if shelf.polled().is_some_and(|innermost| ptr::eq(innermost, slot)) {
            row.pauses(now);
            leave(shelf, at(&slot.outer), now);
        }
        return;
    }
    let run = run();
    if slot.run.load(Ordering::Relaxed) != run {
        return;
    }
    let since = slot.since.load(Ordering::Relaxed);
    let Some(is_request) = is_request else {
        return row.task_ends(run, Wait::new(since, 0, since));
    };
    let wait = Wait::new(since, slot.woken.load(Ordering::Relaxed), now);
    row.task_ends(run, wait);
    let begun = slot.begun.load(Ordering::Relaxed);
    if begun != 0 && is_request {
        row.count(Time::Request, wait.ends - begun, slot.task.load(Ordering::Relaxed));
    }
}
