//! The thread that looks at meters, one a process, started by the first budget.
//!
//! It is not the one that ends holds of keys: that one takes the lock under which code is changed, and a budget would
//! be late by as long as a batch takes; and here it runs functions of the host, which no key should wait for.
//!
//! # Invariants
//!
//! 1. A watch is in the queue once or not at all, at the place that its `due` says; both change under the queue's lock.
//!    While the timer looks at a watch, it is not there, and comes back unless it was cancelled.
//! 2. Neither the queue's lock nor a watch's is held while the host's code runs (meters, functions, wakers, and the
//!    drop of each), and never the one inside the other.
//! 3. After a round of looks that took `t` of CPU time nobody is looked at for [`REST`] times `t`.
//!
//! # Fork
//!
//! A timer belongs to the process that it was made in. A child leaves its parent's alone, locks and all, and makes
//! its own.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process, and keeps no process from its end.
//!
//! # Safety
//!
//! The unsafe code follows the pointer to this process's timer. Timers are leaked: one for each process in a
//! line of forks that has budgets.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::pace::Seen;
use super::{BudgetEnd, Watch, process};
use crate::error::Error;
use crate::kernel;

/// [`Watch::due`] of one that is not in the queue.
pub(super) const NOT_QUEUED: u64 = u64::MAX;

/// How many times longer than it looks the timer rests.
const REST: u64 = 15;

/// Nanoseconds by which the kernel may wake this thread late in order to wake several at once.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

static TIMER: AtomicPtr<Timer> = AtomicPtr::new(ptr::null_mut());

pub(super) struct Timer {
    process: u64,
    is_running: AtomicBool,
    queue: Mutex<Queue>,
    sooner: Condvar,
}

/// Moments are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Default)]
struct Queue {
    /// By moment and number.
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// When the thread looks next; 0: it is about to see for itself.
    looks_at: u64,
    /// Before that it does not.
    rests_until: u64,
}

/// A watch and the last look at it.
struct Waiting {
    watch: Arc<Watch>,
    seen_ns: u64,
    seen_at: u64,
}

/// This process's timer, running.
pub(super) fn running() -> Result<&'static Timer, Error> {
    let timer = of_process();
    if timer.is_running.swap(true, Ordering::Relaxed) {
        return Ok(timer);
    }
    // Under no lock: both ask the loader.
    let started = dormouse_sys::rendezvous::stay()
        .map_err(Error::from)
        .and_then(|()| spawn(timer).map_err(|source| Error::Timer { source }));
    if let Err(error) = started {
        // Who has relied on the thread meanwhile is served by the next that starts.
        timer.is_running.store(false, Ordering::Relaxed);
        return Err(error);
    }
    Ok(timer)
}

fn of_process() -> &'static Timer {
    let process = process();
    let mut fresh = None;
    loop {
        // Pairs with the exchange below.
        let known = TIMER.load(Ordering::Acquire);
        // SAFETY: null, or leaked by a process of this line of forks, whose memory this is.
        if let Some(timer) = unsafe { known.as_ref() }.filter(|timer| timer.process == process) {
            return timer;
        }
        let fresh = fresh.get_or_insert_with(|| {
            let is_running = AtomicBool::new(false);
            let timer = Timer { process, is_running, queue: Mutex::default(), sooner: Condvar::new() };
            ptr::from_mut(Box::leak(Box::new(timer)))
        });
        // Who is quicker has leaked one for nothing: once, a few words.
        let _first = TIMER.compare_exchange(known, *fresh, Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn spawn(timer: &'static Timer) -> io::Result<()> {
    dormouse_sys::signals::with_all_blocked(|| {
        let thread = std::thread::Builder::new().name("dormouse-budget".into());
        thread.spawn(move || timer.run()).map(drop)
    })
}

impl Timer {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a budget that was just made.
    pub(super) fn begin(&self, watch: Arc<Watch>) {
        let seen_ns = watch.start_ns;
        let seen_at = kernel::monotonic_ns();
        let remaining = watch.target_ns.saturating_sub(seen_ns);
        let due = watch.pace.next(seen_at, Seen { remaining, ..Seen::default() });
        self.put(Waiting { watch, seen_ns, seen_at }, due);
    }

    /// Has the thread come to a watch that has ended, for a function that was left there since.
    pub(super) fn serve(&self, watch: Arc<Watch>) {
        self.put(Waiting { seen_ns: watch.start_ns, watch, seen_at: 0 }, 0);
    }

    /// Puts a watch into the queue, unless it was cancelled or is there.
    fn put(&self, waiting: Waiting, due: u64) {
        let mut queue = self.lock();
        let watch = &waiting.watch;
        if watch.cancelled.load(Ordering::Relaxed) || watch.due.load(Ordering::Relaxed) != NOT_QUEUED {
            drop(queue);
            return drop(waiting);
        }
        watch.due.store(due, Ordering::Relaxed);
        queue.waiting.insert((due, watch.id), waiting);
        if due.max(queue.rests_until) < queue.looks_at {
            self.sooner.notify_one();
        }
    }

    /// Forgets a watch. If the thread is looking at it, it does not come back.
    pub(super) fn cancel(&self, watch: &Watch) {
        let mut queue = self.lock();
        watch.cancelled.store(true, Ordering::Relaxed);
        let due = watch.due.load(Ordering::Relaxed);
        let waiting = queue.waiting.remove(&(due, watch.id));
        drop(queue);
        drop(waiting);
    }

    fn run(&self) {
        // Refused, everything is 50 us later.
        let _default = rustix::thread::set_current_timer_slack(Some(SLACK));
        let mut due = Vec::new();
        let mut ended = Vec::new();
        loop {
            self.wait(&mut due);
            let before = kernel::thread_ns();
            for waiting in due.drain(..) {
                match look(&waiting) {
                    Look::Again { seen_ns, seen_at, due } => {
                        let waiting = Waiting { seen_ns, seen_at, ..waiting };
                        // The host's meter may be dropped there.
                        caught(|| self.put(waiting, due));
                    }
                    Look::End(end) => ended.push((waiting.watch, end)),
                }
            }
            let took = kernel::thread_ns() - before;
            self.lock().rests_until = kernel::monotonic_ns() + REST * took;
            for (watch, end) in ended.drain(..) {
                caught(|| watch.finish(end));
                caught(|| drop(watch));
            }
        }
    }

    /// Waits until somebody is to be looked at, and takes all who are.
    fn wait(&self, due: &mut Vec<Waiting>) {
        let mut queue = self.lock();
        loop {
            let now = kernel::monotonic_ns();
            let first = queue.waiting.first_key_value().map(|(&(due, _), _)| due.max(queue.rests_until));
            match first {
                Some(first) if first <= now => break,
                Some(first) => {
                    queue.looks_at = first;
                    let wait = Duration::from_nanos(first - now);
                    queue = self.sooner.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner).0;
                }
                None => {
                    queue.looks_at = NOT_QUEUED;
                    queue = self.sooner.wait(queue).unwrap_or_else(PoisonError::into_inner);
                }
            }
            queue.looks_at = 0;
        }
        let now = kernel::monotonic_ns();
        while let Some(first) = queue.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let waiting = first.remove();
            waiting.watch.due.store(NOT_QUEUED, Ordering::Relaxed);
            due.push(waiting);
        }
    }
}

/// Runs code of the host's, which may panic: its hook has said so, and the thread goes on.
fn caught(run: impl FnOnce()) {
    let _said = catch_unwind(AssertUnwindSafe(run));
}

/// What came of a look.
enum Look {
    Again { seen_ns: u64, seen_at: u64, due: u64 },
    End(BudgetEnd),
}

fn look(waiting: &Waiting) -> Look {
    let watch = &*waiting.watch;
    if let Some(end) = watch.lock().end {
        return Look::End(end);
    }
    let meter = AssertUnwindSafe(&watch.meter);
    let read = catch_unwind(|| meter.cpu_ns()).unwrap_or(None);
    let now = kernel::monotonic_ns();
    let Some(ns) = read else {
        let last = catch_unwind(|| meter.final_ns()).unwrap_or(None).unwrap_or(waiting.seen_ns);
        let used = watch.used(last);
        let is_over = last >= watch.target_ns;
        return Look::End(if is_over { BudgetEnd::Exceeded { used } } else { BudgetEnd::Ended { used } });
    };
    if ns >= watch.target_ns {
        return Look::End(BudgetEnd::Exceeded { used: watch.used(ns) });
    }
    let seen = Seen {
        remaining: watch.target_ns - ns,
        elapsed: now.saturating_sub(waiting.seen_at).max(1),
        moved: ns.saturating_sub(waiting.seen_ns),
    };
    Look::Again { seen_ns: ns, seen_at: now, due: watch.pace.next(now, seen) }
}

impl Watch {
    /// Tells all who wait. The state's lock comes after everything that the meter's reading has synchronised with.
    fn finish(&self, end: BudgetEnd) {
        let mut state = self.lock();
        let end = *state.end.get_or_insert(end);
        let (waker, callback) = (state.waker.take(), state.callback.take());
        drop(state);
        self.ended.notify_all();
        if self.cancelled.load(Ordering::Relaxed) {
            return;
        }
        if let Some(waker) = waker {
            // If it panics, the function is called all the same.
            caught(|| waker.wake());
        }
        if let (Some(callback), BudgetEnd::Exceeded { used }) = (callback, end) {
            callback(used);
        }
    }
}
