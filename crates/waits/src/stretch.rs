//! A stretch during which a thread is in a task: a poll, or work that is run by hand.
//!
//! Stretches of one thread are nested: each slot stores the one outside of it, the thread's shelf
//! the innermost. Only the innermost is charged to rows. A guard that is dropped out of order ends
//! the times of its task; the thread leaves the stretch together with those inside of it. A guard
//! that is leaked lasts until the task is polled again or ends, and its thread is charged with it
//! until it polls another task, or ends.

use std::marker::PhantomData;
use std::sync::atomic::Ordering;

use dormouse_clock::{shared_stamp, stamp};
use dormouse_keys::unlikely;

use crate::counts::{Time, add};
use crate::cpu;
use crate::places;
use crate::rows::{self, Account, Going, Shelf};
use crate::run::run;
use crate::sites;
use crate::slot::Slot;
use crate::wait::Wait;
use crate::waiting::WAITS;

/// How many stretches are visited, from the innermost.
pub(crate) const DEPTH: usize = 64;

/// The calling thread is in a task until this is dropped, on the same thread.
#[derive(Debug)]
#[must_use = "the stretch ends when it is dropped"]
pub struct Stretch {
    going: Going,
    shelf: &'static Shelf,
    account: Account,
    is_poll: bool,
    _here: PhantomData<*const ()>,
}

impl Stretch {
    /// The wait of the slot's task ends at `now`; it has times of `run`.
    #[inline(always)]
    pub(crate) fn begin(
        slot: &'static Slot,
        shelf: &'static Shelf,
        account: Account,
        run: u64,
        now: u64,
        is_poll: bool,
    ) -> Self {
        let woken = slot.woken.load(Ordering::Relaxed);
        let wait = Wait::new(slot.since.load(Ordering::Relaxed), woken, now);
        let (awaited, runnable) = (wait.awaited(), wait.runnable());
        let polls = slot.polls.load(Ordering::Relaxed);
        slot.sequence.write(|| {
            // Release: a reader that finds no wake finds the poller (`living`). In here, so that
            // it also finds that the poll has begun.
            slot.woken.store(0, Ordering::Release);
            slot.polling.store(wait.ends, Ordering::Relaxed);
            add(&slot.ticks[Time::Await as usize], awaited);
            add(&slot.ticks[Time::Runnable as usize], runnable);
            add(&slot.wakes, u64::from(woken != 0 && polls != 0));
        });
        shelf.stop(wait.ends);
        account.row.poll_begins(run, wait);
        places::ended(shelf, slot, awaited, woken);
        let task = slot.task.load(Ordering::Relaxed);
        // A wait without a wake is not known to have been runnable, and one that a wake in the poll
        // before has ended was none.
        if awaited > 0 {
            account.counts.count(Time::Await, awaited, task);
        }
        if runnable > 0 {
            account.counts.count(Time::Runnable, runnable, task);
        }
        let going = Going { slot, begins: wait.ends };
        going.set_outer(shelf.polled());
        cpu::turn(shelf);
        shelf.polls(Some(going), Some(account.row));
        shelf.woken.store(if woken == 0 { 0 } else { wait.woken }, Ordering::Relaxed);
        Self { going, shelf, account, is_poll, _here: PhantomData }
    }

    /// The stretch that goes on in the slot, to end it: its own value was forgotten.
    pub(crate) fn again(slot: &'static Slot, shelf: &'static Shelf, account: Account) -> Self {
        let going = Going { slot, begins: slot.polling.load(Ordering::Relaxed) };
        Self { going, shelf, account, is_poll: false, _here: PhantomData }
    }

    /// The task was entered by hand: the stretch is no poll, nor the destructor of a future.
    pub fn enters_by_hand(&self) {
        sites::entered(self.going.slot);
    }

    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        self.going.slot
    }
}

/// The tasks that a thread is in, where another one begins.
#[derive(Debug, Clone, Copy)]
pub struct Around(&'static Shelf);

impl Around {
    #[inline]
    pub(crate) fn of(shelf: &'static Shelf) -> Self {
        Self(shelf)
    }

    /// The numbers of the tasks, from the innermost outwards.
    #[inline]
    pub fn tasks(self) -> impl Iterator<Item = u64> {
        let outwards = std::iter::successors(self.0.polled(), |going| going.outer()).take(DEPTH);
        outwards.map(|going| going.slot.task.load(Ordering::Relaxed))
    }

    /// The number of the innermost task.
    #[inline]
    pub fn innermost(self) -> Option<u64> {
        self.0.polled().map(|going| going.slot.task.load(Ordering::Relaxed))
    }

    /// Whether there may be more tasks than the innermost one.
    #[inline]
    pub fn may_be_nested(self) -> bool {
        self.0.polled().is_some_and(|going| !going.slot.outer.load(Ordering::Relaxed).is_null())
    }

    /// The wake of the present poll, as a stamp. `None` if it was not seen, or if another task was
    /// run inside of the poll.
    #[inline]
    pub fn woken(self) -> Option<u64> {
        let woken = self.0.woken.load(Ordering::Relaxed);
        (woken != 0).then_some(woken)
    }
}

/// The tasks that the calling thread is in; `None` for a thread of which no times are taken.
pub fn around() -> Option<Around> {
    rows::own().map(Around)
}

/// Runs `f` as if the thread were in no task: the time is in no group's polls. The polls go on, and
/// so does the time in a poll of each single task.
#[inline]
pub fn set_aside<T>(f: impl FnOnce() -> T) -> T {
    let _aside = if unlikely!(WAITS) { Aside::begin(None) } else { None };
    f()
}

/// Does what [`set_aside`] does, but the time is in the polls of that group. For work that a group
/// pays for, and that is no task of it.
#[inline]
pub fn charge_group<T>(group: u32, f: impl FnOnce() -> T) -> T {
    let _aside = if unlikely!(WAITS) { Aside::begin(Some(group)) } else { None };
    f()
}

/// The thread is in no task until this is dropped.
struct Aside {
    shelf: &'static Shelf,
    innermost: Option<Going>,
}

impl Aside {
    /// `group`: which one is charged meanwhile.
    #[cold]
    fn begin(group: Option<u32>) -> Option<Self> {
        let shelf = rows::own()?;
        let innermost = shelf.polled();
        let account = group.and_then(|group| shelf.account(group));
        if innermost.is_none() && account.is_none() {
            return None;
        }
        cpu::turn(shelf);
        let now = stamp();
        shelf.stop(now);
        shelf.woken.store(0, Ordering::Relaxed);
        shelf.polls(None, account.map(|account| account.row));
        if let Some(account) = account {
            account.row.charge_from(run(), now);
        }
        Some(Self { shelf, innermost })
    }
}

impl Drop for Aside {
    #[inline]
    fn drop(&mut self) {
        let now = stamp();
        // Of what was left behind.
        self.shelf.stop(now);
        cpu::turn(self.shelf);
        leave(self.shelf, self.innermost, now);
    }
}

/// The thread leaves a stretch, and goes on with the one outside of it.
#[inline]
pub(crate) fn leave(shelf: &'static Shelf, outer: Option<Going>, now: u64) {
    shelf.woken.store(0, Ordering::Relaxed);
    match outer {
        None => shelf.polls(None, None),
        Some(_) => leave_for(shelf, outer, now),
    }
}

#[inline(never)]
fn leave_for(shelf: &'static Shelf, mut outer: Option<Going>, now: u64) {
    // Those that were dropped in another order are over. Of one whose beginning a handler has
    // taken nothing is known.
    let is_over = |going: &Going| going.begins == 0 || going.is_over();
    for _ in 0..DEPTH {
        outer = match outer {
            Some(going) if is_over(&going) => going.outer(),
            _ => break,
        };
    }
    let outer = outer.filter(|going| !is_over(going));
    let account = outer.and_then(|going| shelf.account(going.slot.group.load(Ordering::Relaxed)));
    shelf.polls(outer, account.map(|account| account.row));
    if let Some(account) = account {
        account.row.goes_on(now);
    }
}

impl Drop for Stretch {
    #[inline]
    fn drop(&mut self) {
        let Going { slot, begins } = self.going;
        // The task has ended inside, or was polled again: then somebody else has ended this one.
        if self.going.is_over() {
            return;
        }
        // Only a poll has begun to share.
        let now = if self.is_poll { shared_stamp() } else { stamp() }.max(begins);
        let ticks = now - begins;
        let run = slot.run.load(Ordering::Relaxed);
        let is_innermost = self.shelf.polled().is_some_and(|innermost| innermost.is(self.going));
        self.account.row.poll_ends(run, now, is_innermost);
        if is_innermost {
            cpu::turn(self.shelf);
            leave(self.shelf, self.going.outer(), now);
        }
        if self.is_poll {
            self.account.counts.count(Time::Poll, ticks, slot.task.load(Ordering::Relaxed));
        }
        slot.sequence.write(|| {
            add(&slot.ticks[Time::Poll as usize], ticks);
            add(&slot.polls, 1);
            slot.since.store(now, Ordering::Relaxed);
            slot.polling.store(0, Ordering::Relaxed);
        });
    }
}
