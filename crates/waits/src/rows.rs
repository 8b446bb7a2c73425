//! The times that each thread has added up for each group.
//!
//! A thread writes rows of its own alone, so to add is a load and a store. A row is found by the
//! thread's block and the group's number; the next thread in the block goes on with it, so nothing
//! is lost when threads end, and a sum over all rows never goes back.
//!
//! # Waits that last
//!
//! A wait is in no sum before it ends. So a row has the number of its open waits, and the sum of
//! their beginnings: at any moment they have lasted for `number * now - beginnings`. A wait may end
//! in another thread's row, whose numbers then are negative, and the sum over all rows is right. A
//! reader that meets a wait in neither row, or in both, is wrong by less than its reading took,
//! however long the wait was.
//!
//! # Invariants
//!
//! 1. A row is written by the thread that has its block.
//! 2. A shelf and a row stay where they are. A forked child finds them empty.
//! 3. `open`, `beginnings` and `polling` are of one run.
//!
//! # Async-signal-safety
//!
//! Times that a handler adds in the middle of an addition of its thread may be lost.
//!
//! # Safety
//!
//! The unsafe code makes references of pointers that are null or into mappings that stay.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;
use dormouse_sys::thread::{self, MAX_THREADS, ThreadBlock};

use crate::buckets::{self, BUCKETS, Histogram};
use crate::memory::{self, InChild, Zeroed};
use crate::sequence::Sequence;
use crate::slot::{Slot, at};

/// The groups that have rows of their own, by number. Further ones share the first row.
pub(crate) const GROUPS: usize = 1025;

/// The times that are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Time {
    /// In polls.
    Poll = 0,
    /// From a wake to the poll that follows.
    Runnable = 1,
    /// From the end of a poll to the wake that follows.
    Await = 2,
    /// From the begin of a request to its end.
    Request = 3,
}

/// How many of them there are.
const TIMES: usize = 4;

/// The times that one thread has added up for one group.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Row {
    sequence: Sequence,
    /// Of polls, runnable, awaiting: ticks that are over. Of polls without those of other tasks
    /// inside of them.
    ticks: [AtomicU64; 3],
    /// The waits that last: how many, and the sum of their beginnings.
    open: AtomicU64,
    beginnings: AtomicU64,
    /// Since when the thread polls a task of the group, and no other inside; 0: it does not.
    polling: AtomicU64,
    /// The run of these.
    run: AtomicU64,
    max_ns: [AtomicU64; TIMES],
    max_task: [AtomicU64; TIMES],
    counts: [[AtomicU64; BUCKETS]; TIMES],
    /// The last request of each bucket.
    requests: [AtomicU64; BUCKETS],
}

/// The sums of a row, of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sums {
    pub(crate) ticks: [u64; 3],
    pub(crate) open: u64,
    pub(crate) beginnings: u64,
    pub(crate) polling: u64,
}

/// The rows of one thread.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// The innermost task that the thread polls.
    polled: AtomicPtr<Slot>,
    rows: [AtomicPtr<Row>; GROUPS],
}

// SAFETY: atomics alone.
unsafe impl Zeroed for Row {}
// SAFETY: as above.
unsafe impl Zeroed for Shelf {}

static SHELVES: [AtomicPtr<Shelf>; MAX_THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_THREADS];

/// Adds, for the only writer of `to`.
#[inline]
pub(crate) fn add(to: &AtomicU64, more: u64) {
    // Release: who sees it sees what the thread has written before.
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
}

/// The calling thread's block and shelf; `None` where there is no memory, or no block for the
/// thread.
#[inline]
pub(crate) fn own() -> Option<(&'static ThreadBlock, &'static Shelf)> {
    let block = thread::current()?;
    let place = &SHELVES[block.index()];
    // SAFETY: null, or a mapping that stays. Acquire: pairs with the store in `begin`.
    match unsafe { place.load(Ordering::Acquire).as_ref() } {
        Some(shelf) => Some((block, shelf)),
        None => begin(place).map(|shelf| (block, shelf)),
    }
}

#[cold]
fn begin(place: &AtomicPtr<Shelf>) -> Option<&'static Shelf> {
    put(place, memory::map::<Shelf>(1, InChild::Wiped)?.first()?)
}

/// Puts a mapping into its place, unless a handler of this thread was quicker: what is there then.
fn put<T>(place: &AtomicPtr<T>, made: &'static T) -> Option<&'static T> {
    let made = ptr::from_ref(made).cast_mut();
    // Release: other threads find it whole.
    let there = place.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Relaxed);
    // SAFETY: in a mapping that stays.
    unsafe { there.map_or_else(|there| there, |_| made).as_ref() }
}

/// All shelves, with the numbers of their blocks.
pub(crate) fn shelves() -> impl Iterator<Item = (usize, &'static Shelf)> {
    SHELVES.iter().enumerate().filter_map(|(block, place)| {
        // SAFETY: null, or a mapping that stays. Acquire: pairs with the store in `begin`.
        unsafe { place.load(Ordering::Acquire).as_ref() }.map(|shelf| (block, shelf))
    })
}

/// The number of the row in which a group's times are.
#[inline]
pub(crate) fn row_of(group: u32) -> usize {
    if (group as usize) < GROUPS { group as usize } else { 0 }
}

impl Shelf {
    /// The row of a group, for the shelf's own thread.
    #[inline]
    pub(crate) fn row(&self, group: u32) -> Option<&'static Row> {
        let place = &self.rows[row_of(group)];
        // SAFETY: null, or in a mapping that stays.
        match unsafe { place.load(Ordering::Relaxed).as_ref() } {
            Some(row) => Some(row),
            None => Self::make(place),
        }
    }

    /// A row for the place, by one mapping: a handler of the thread in between may make one, too.
    #[cold]
    fn make(place: &AtomicPtr<Row>) -> Option<&'static Row> {
        put(place, memory::map::<Row>(1, InChild::Wiped)?.first()?)
    }

    /// The row with that number, if the thread has one, for others.
    pub(crate) fn peek(&self, row: usize) -> Option<&'static Row> {
        // SAFETY: null, or in a mapping that stays. Acquire: pairs with the store in `make`.
        unsafe { self.rows[row].load(Ordering::Acquire).as_ref() }
    }

    /// The innermost task that the thread polls.
    #[inline]
    pub(crate) fn polled(&self) -> Option<&'static Slot> {
        at(&self.polled)
    }

    /// Says which one that is, from now on. The thread's.
    #[inline]
    pub(crate) fn polls(&self, slot: *const Slot) {
        self.polled.store(slot.cast_mut(), Ordering::Relaxed);
    }
}

impl Row {
    /// Writes sums, of a run, which is not older than the last one's. The thread's.
    #[inline]
    fn write(&self, run: u64, write: impl FnOnce()) {
        self.sequence.write(|| {
            if self.run.load(Ordering::Relaxed) != run {
                self.begin_run(run);
            }
            write();
        });
    }

    #[cold]
    fn begin_run(&self, run: u64) {
        for word in [&self.open, &self.beginnings, &self.polling] {
            word.store(0, Ordering::Relaxed);
        }
        self.run.store(run, Ordering::Relaxed);
    }

    /// A wait begins.
    #[inline]
    fn open(&self, since: u64) {
        add(&self.beginnings, since);
        add(&self.open, 1);
    }

    /// A wait ends.
    #[inline]
    fn close(&self, wait: Wait) {
        add(&self.open, 1_u64.wrapping_neg());
        add(&self.beginnings, wait.since.wrapping_neg());
        add(&self.ticks[Time::Await as usize], wait.awaited());
        add(&self.ticks[Time::Runnable as usize], wait.runnable());
    }

    #[inline]
    fn stop(&self, now: u64) {
        let polling = self.polling.load(Ordering::Relaxed);
        // A new run has forgotten when it began.
        if polling != 0 {
            self.polling.store(0, Ordering::Relaxed);
            add(&self.ticks[Time::Poll as usize], now.saturating_sub(polling));
        }
    }

    /// A task begins, and waits.
    #[inline]
    pub(crate) fn task_begins(&self, run: u64, since: u64) {
        self.write(run, || self.open(since));
    }

    /// A task ends in the midst of a wait.
    #[inline]
    pub(crate) fn task_ends(&self, run: u64, wait: Wait) {
        self.write(run, || self.close(wait));
    }

    /// A wait ends with a poll.
    #[inline]
    pub(crate) fn poll_begins(&self, run: u64, wait: Wait) {
        self.write(run, || {
            self.close(wait);
            self.polling.store(wait.ends, Ordering::Relaxed);
        });
    }

    /// A poll ends, and a wait begins: of a task with times of that run.
    #[inline]
    pub(crate) fn poll_ends(&self, run: u64, now: u64) {
        self.sequence.write(|| {
            self.stop(now);
            if self.run.load(Ordering::Relaxed) == run {
                self.open(now);
            }
        });
    }

    /// As [`Row::poll_ends`], of a poll that is not the innermost.
    pub(crate) fn stretch_ends(&self, run: u64, now: u64) {
        self.sequence.write(|| {
            if self.run.load(Ordering::Relaxed) == run {
                self.open(now);
            }
        });
    }

    /// The poll of another task begins inside of the one that goes on.
    #[inline]
    pub(crate) fn pauses(&self, now: u64) {
        self.sequence.write(|| self.stop(now));
    }

    /// That poll has ended.
    #[inline]
    pub(crate) fn goes_on(&self, now: u64) {
        self.sequence.write(|| self.polling.store(now, Ordering::Relaxed));
    }

    /// Counts a time of a task that is over.
    #[inline]
    pub(crate) fn count(&self, time: Time, ticks: u64, task: u64) {
        let (ns, at) = (ticks_to_ns(ticks), time as usize);
        let bucket = buckets::place(ns);
        add(&self.counts[at][bucket], 1);
        if time == Time::Request {
            self.requests[bucket].store(task, Ordering::Relaxed);
        }
        if ns > self.max_ns[at].load(Ordering::Relaxed) {
            self.sequence.write(|| {
                self.max_ns[at].store(ns, Ordering::Relaxed);
                self.max_task[at].store(task, Ordering::Relaxed);
            });
        }
    }

    /// The sums, with what lasts if it is of that run.
    pub(crate) fn sums(&self, run: u64) -> Sums {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let read = || {
            let ticks = self.ticks.each_ref().map(load);
            if load(&self.run) != run {
                return Sums { ticks, ..Sums::default() };
            }
            let (open, beginnings) = (load(&self.open), load(&self.beginnings));
            Sums { ticks, open, beginnings, polling: load(&self.polling) }
        };
        self.sequence.read(read).0
    }

    /// Adds the row to a histogram.
    pub(crate) fn add_to(&self, time: Time, histogram: &mut Histogram) {
        let at = time as usize;
        for (to, from) in histogram.buckets.iter_mut().zip(&self.counts[at]) {
            *to += from.load(Ordering::Relaxed);
        }
        let max = || (self.max_ns[at].load(Ordering::Relaxed), self.max_task[at].load(Ordering::Relaxed));
        let ((ns, task), _) = self.sequence.read(max);
        if ns > histogram.max_ns {
            (histogram.max_ns, histogram.max_task) = (ns, task);
        }
        if time == Time::Request {
            for (to, from) in histogram.tasks.iter_mut().zip(&self.requests) {
                // Of those of several threads it is one.
                *to = (*to).max(from.load(Ordering::Relaxed));
            }
        }
    }
}

/// A wait that is over, by stamps that do not go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) since: u64,
    pub(crate) woken: u64,
    pub(crate) ends: u64,
}

impl Wait {
    /// A wait that ends now. `woken` is 0 if no wake was seen. Counters of two processors may
    /// differ, so stamps are put in order.
    #[inline]
    pub(crate) fn new(since: u64, woken: u64, now: u64) -> Self {
        let ends = now.max(since);
        let woken = if woken == 0 { ends } else { woken.clamp(since, ends) };
        Self { since, woken, ends }
    }

    #[inline]
    pub(crate) fn awaited(self) -> u64 {
        self.woken - self.since
    }

    #[inline]
    pub(crate) fn runnable(self) -> u64 {
        self.ends - self.woken
    }
}
