//! A stretch for which a thread is in a task: a poll, or work that somebody runs by hand.
//!
//! Stretches of one thread are nested: each slot knows the one outside of it, the thread's shelf
//! the innermost. Rows are charged with the innermost alone. A guard that is dropped in another
//! order ends the times of its task; the thread leaves the stretch with those inside of it.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::Ordering;

use dormouse_clock::stamp;

use crate::places;
use crate::rows::{Row, Shelf, Time, Wait, add};
use crate::slot::{Slot, at};

/// So many stretches are looked at, from the innermost.
pub(crate) const DEPTH: usize = 64;

/// A thread is in a task until it is dropped, on the same thread.
#[derive(Debug)]
#[must_use = "the stretch ends when it is dropped"]
pub struct Stretch {
    pub(crate) slot: &'static Slot,
    shelf: &'static Shelf,
    row: &'static Row,
    outer: Option<&'static Slot>,
    begins: u64,
    life: u32,
    is_poll: bool,
    _here: PhantomData<*const ()>,
}

impl Stretch {
    /// The wait of the slot's task ends, which has times of `run`.
    #[inline(always)]
    pub(crate) fn begin(
        slot: &'static Slot,
        shelf: &'static Shelf,
        row: &'static Row,
        run: u64,
        is_poll: bool,
    ) -> Self {
        let woken = slot.woken.load(Ordering::Relaxed);
        let wait = Wait::new(slot.since.load(Ordering::Relaxed), woken, stamp());
        slot.woken.store(0, Ordering::Relaxed);
        let polls = slot.polls.load(Ordering::Relaxed);
        slot.sequence.write(|| {
            slot.polling.store(wait.ends, Ordering::Relaxed);
            add(&slot.ticks[Time::Await as usize], wait.awaited());
            add(&slot.ticks[Time::Runnable as usize], wait.runnable());
            if woken != 0 && polls != 0 {
                add(&slot.wakes, 1);
            }
        });
        let outer = shelf.polled();
        if let Some(row) = outer.and_then(|outer| shelf.row(outer.group.load(Ordering::Relaxed))) {
            row.pauses(wait.ends);
        }
        row.poll_begins(run, wait);
        places::ended(slot, wait.awaited());
        let task = slot.task.load(Ordering::Relaxed);
        // A wait without a wake is not known to have been runnable, and one that a wake in the poll
        // before has ended was none.
        if wait.awaited() > 0 {
            row.count(Time::Await, wait.awaited(), task);
        }
        if wait.runnable() > 0 {
            row.count(Time::Runnable, wait.runnable(), task);
        }
        slot.taken.store(0, Ordering::Relaxed);
        slot.outer
            .store(outer.map_or(ptr::null_mut(), |outer| ptr::from_ref(outer).cast_mut()), Ordering::Relaxed);
        shelf.polls(slot);
        let life = slot.life.load(Ordering::Relaxed);
        Self { slot, shelf, row, outer, begins: wait.ends, life, is_poll, _here: PhantomData }
    }
}

/// The thread leaves a stretch, and goes on with the one outside of it.
#[inline]
pub(crate) fn leave(shelf: &Shelf, mut outer: Option<&'static Slot>, now: u64) {
    // Those that were dropped in another order are over.
    for _ in 0..DEPTH {
        match outer {
            Some(slot) if slot.polling.load(Ordering::Relaxed) == 0 => outer = at(&slot.outer),
            _ => break,
        }
    }
    shelf.polls(outer.map_or(ptr::null(), ptr::from_ref));
    if let Some(row) = outer.and_then(|outer| shelf.row(outer.group.load(Ordering::Relaxed))) {
        row.goes_on(now);
    }
}

impl Drop for Stretch {
    #[inline]
    fn drop(&mut self) {
        let slot = self.slot;
        if slot.life.load(Ordering::Relaxed) != self.life {
            // The task has ended inside.
            return;
        }
        let now = stamp().max(self.begins);
        let ticks = now - self.begins;
        let run = slot.run.load(Ordering::Relaxed);
        if self.shelf.polled().is_some_and(|innermost| ptr::eq(innermost, slot)) {
            self.row.poll_ends(run, now);
            leave(self.shelf, self.outer, now);
        } else {
            self.row.stretch_ends(run, now);
        }
        if self.is_poll {
            self.row.count(Time::Poll, ticks, slot.task.load(Ordering::Relaxed));
        }
        slot.sequence.write(|| {
            add(&slot.ticks[Time::Poll as usize], ticks);
            add(&slot.polls, 1);
            slot.since.store(now, Ordering::Relaxed);
            slot.polling.store(0, Ordering::Relaxed);
        });
    }
}
