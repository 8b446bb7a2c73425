//! The thread that reads meters, one for each process, started by the first budget.
//!
//! It is not the thread that ends leases of keys: that one takes the lock under which code is
//! changed, so a budget would be late by the time of a batch. And this one runs functions of the
//! host, which keys should not have to wait for.
//!
//! # Invariants
//!
//! 1. The queue belongs to the timer's thread. Other threads send it letters: each pushes one onto
//!    a list, and the timer's thread takes the whole list. So no thread waits for it, not even when
//!    it was descheduled.
//! 2. A watch is in the queue at most once, at the place given by its `due`. While the timer reads
//!    the watch's meter, the watch is out of the queue, and is put back unless it was cancelled.
//! 3. After a round of readings that took `t` of CPU time the thread sleeps for [`REST`] times `t`.
//!
//! # Fork
//!
//! A timer belongs to the process that made it. A fork child leaves its parent's timer alone and
//! makes its own.
//!
//! # Promises to the host
//!
//! The thread blocks all signals that are sent to the process, and does not keep the process from
//! ending.
//!
//! # Safety
//!
//! The unsafe code follows the pointer to this process's timer, and the pointers in the list of
//! letters: the thread that takes the list owns it. Timers are leaked: one for each process with
//! budgets in a line of forks.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::futex;
use dormouse_sys::process::identity;

use super::pace::Seen;
use super::watch::{BudgetEnd, NOT_QUEUED, Watch, caught};
use crate::error::Error;
use crate::thread::asked_ns;

/// How many times longer than it looks the timer rests.
const REST: u64 = 15;

/// Nanoseconds by which the kernel may wake this thread late in order to wake several at once.
const SLACK: NonZeroU64 = NonZeroU64::new(1_000).unwrap();

static TIMER: AtomicPtr<Timer> = AtomicPtr::new(ptr::null_mut());

/// Letters that may lie unread while the thread sleeps.
const UNREAD: u32 = 256;

pub(super) struct Timer {
    process: u64,
    /// A thread has been started.
    is_running: AtomicBool,
    /// A thread serves it; another one, started at the same time, ends at once.
    is_served: AtomicBool,
    /// The last letter; null: none.
    letters: AtomicPtr<Letter>,
    /// About their number.
    unread: AtomicU32,
    /// When the thread looks next; 0: it is about to see for itself.
    looks_at: AtomicU64,
    /// Moves when the thread is to look sooner.
    sooner: AtomicU32,
}

/// A request to the timer's thread.
pub(super) struct Letter {
    message: Message,
    before: AtomicPtr<Self>,
}

enum Message {
    Watch { waiting: Waiting, due: u64 },
    Cancel(Arc<Watch>),
}

impl Letter {
    pub(super) fn cancellation(watch: Arc<Watch>) -> Self {
        Self::of(Message::Cancel(watch))
    }

    fn of(message: Message) -> Self {
        Self { message, before: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// The thread's own: watches by due time of `CLOCK_MONOTONIC`, in nanoseconds, and number.
#[derive(Default)]
struct Queue {
    waiting: BTreeMap<(u64, u64), Waiting>,
    /// The thread does not look before that time.
    rests_until: u64,
}

/// A watch and the last reading of it.
struct Waiting {
    watch: Arc<Watch>,
    seen_ns: u64,
    seen_at: u64,
}

/// Starts the thread that watches budgets, which otherwise the first budget starts. Call it before
/// a seccomp filter forbids new threads. A fork child needs a thread of its own.
///
/// # Errors
///
/// [`Error::Timer`] or [`Error::Leaving`] if the thread cannot be started.
pub fn start_timer() -> Result<(), Error> {
    running().map(drop)
}

/// This process's timer, running.
pub(super) fn running() -> Result<&'static Timer, Error> {
    let timer = of_process();
    if timer.is_running.load(Ordering::Relaxed) {
        return Ok(timer);
    }
    // Under no lock: both ask the loader. Two callers may come here at once; each starts a thread,
    // so that neither relies on a start of the other's that may yet be refused.
    dormouse_sys::loader::pin_self()?;
    spawn(timer).map_err(|source| Error::Timer { source })?;
    timer.is_running.store(true, Ordering::Relaxed);
    Ok(timer)
}

fn of_process() -> &'static Timer {
    let process = identity::id();
    let mut fresh = None;
    loop {
        // Pairs with the exchange below: the timer is whole.
        let known = TIMER.load(Ordering::Acquire);
        // SAFETY: null, or leaked by a process of this line of forks, whose memory this is.
        if let Some(timer) = unsafe { known.as_ref() }.filter(|timer| timer.process == process) {
            return timer;
        }
        let fresh = fresh.get_or_insert_with(|| {
            let timer = Timer {
                process,
                is_running: AtomicBool::new(false),
                is_served: AtomicBool::new(false),
                letters: AtomicPtr::new(ptr::null_mut()),
                unread: AtomicU32::new(0),
                looks_at: AtomicU64::new(0),
                sooner: AtomicU32::new(0),
            };
            ptr::from_mut(Box::leak(Box::new(timer)))
        });
        // The slower of two threads has leaked one for nothing: once, a few words.
        // Pairs with the load above, on another thread.
        let _first = TIMER.compare_exchange(known, *fresh, Ordering::Release, Ordering::Relaxed);
    }
}

fn spawn(timer: &'static Timer) -> io::Result<()> {
    // It calls the host's code.
    dormouse_sys::signals::spawn("dormouse-budget", 2 * 1024 * 1024, move || {
        if !timer.is_served.swap(true, Ordering::Relaxed) {
            timer.run();
        }
    })
}

impl Timer {
    /// Watches a budget that was just made.
    pub(super) fn begin(&self, watch: Arc<Watch>) {
        let seen_ns = watch.start_ns;
        let seen_at = monotonic_ns();
        let remaining = watch.target_ns.saturating_sub(seen_ns);
        let due = watch.pace.next(seen_at, Seen { remaining, ..Seen::default() });
        let waiting = Waiting { watch, seen_ns, seen_at };
        self.send(Box::new(Letter::of(Message::Watch { waiting, due })), due);
    }

    /// Has the thread come to a watch that has ended, for a function that was left there since.
    pub(super) fn serve(&self, watch: Arc<Watch>) {
        let waiting = Waiting { seen_ns: watch.start_ns, watch, seen_at: 0 };
        self.send(Box::new(Letter::of(Message::Watch { waiting, due: 0 })), 0);
    }

    /// Forgets a watch, some time. If the thread is looking at it, it does not come back.
    pub(super) fn cancel(&self, cancellation: Box<Letter>) {
        self.send(cancellation, NOT_QUEUED - 1);
    }

    /// Leaves a letter that is to be read by `due`.
    fn send(&self, letter: Box<Letter>, due: u64) {
        let letter = Box::into_raw(letter);
        let mut last = self.letters.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours, until it is in the list.
            unsafe { (*letter).before.store(last, Ordering::Relaxed) };
            // Pairs with the swap in `read`. And in one order with the reading at `looks_at` below:
            // either the thread finds the letter before it sleeps, or we find until when it sleeps.
            match self.letters.compare_exchange_weak(last, letter, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => last = other,
            }
        }
        let unread = self.unread.fetch_add(1, Ordering::Relaxed) + 1;
        // SeqCst: after the exchange above, in one order with the store and the load in `wait`.
        if due < self.looks_at.load(Ordering::SeqCst) || unread.is_multiple_of(UNREAD) {
            // Pairs with the load in `wait`: the futex does not sleep on the old number.
            self.sooner.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.sooner, 1);
        }
    }

    /// Carries out the letters, the first sent first.
    fn read(&self, queue: &mut Queue) {
        self.unread.store(0, Ordering::Relaxed);
        // Pairs with the exchange in `send`.
        let mut last = self.letters.swap(ptr::null_mut(), Ordering::SeqCst);
        let mut letters = Vec::new();
        while !last.is_null() {
            // SAFETY: this thread has taken the list and owns it; each letter came from a box.
            let letter = unsafe { Box::from_raw(last) };
            last = letter.before.into_inner();
            letters.push(letter.message);
        }
        for message in letters.into_iter().rev() {
            // The host's meter may be dropped here.
            caught(|| match message {
                Message::Watch { waiting, due } => queue.put(waiting, due),
                Message::Cancel(watch) => queue.forget(&watch),
            });
        }
    }

    fn run(&self) {
        // Refused, everything is 50 us later.
        let _default = rustix::thread::set_current_timer_slack(Some(SLACK));
        let mut queue = Queue::default();
        let mut due = Vec::new();
        let mut ended = Vec::new();
        loop {
            self.wait(&mut queue, &mut due);
            let before = asked_ns();
            for waiting in due.drain(..) {
                match read_meter(&waiting) {
                    MeterReading::Again { seen_ns, seen_at, due } => {
                        let waiting = Waiting { seen_ns, seen_at, ..waiting };
                        caught(|| queue.put(waiting, due));
                    }
                    MeterReading::End(end) => ended.push((waiting.watch, end)),
                }
            }
            let took = asked_ns().saturating_sub(before);
            queue.rests_until = monotonic_ns().saturating_add(REST * took);
            for (watch, end) in ended.drain(..) {
                caught(|| watch.finish(end));
                caught(|| drop(watch));
            }
        }
    }

    /// Waits until a watch is due, and takes all that are.
    fn wait(&self, queue: &mut Queue, due: &mut Vec<Waiting>) {
        loop {
            self.looks_at.store(0, Ordering::Relaxed);
            // Before the letters are read: pairs with the addition in `send`.
            let seen = self.sooner.load(Ordering::SeqCst);
            self.read(queue);
            let now = monotonic_ns();
            let first = queue.waiting.first_key_value().map(|(&(due, _), _)| due.max(queue.rests_until));
            if first.is_some_and(|first| first <= now) {
                break;
            }
            // In one order with the exchange in `send`.
            self.looks_at.store(first.unwrap_or(NOT_QUEUED), Ordering::SeqCst);
            if self.letters.load(Ordering::SeqCst).is_null() {
                let wait = first.and_then(|first| Duration::from_nanos(first - now).try_into().ok());
                // Woken, interrupted, or over: look again.
                let _ = futex::wait(&self.sooner, seen, wait.as_ref());
            }
        }
        queue.take(monotonic_ns(), due);
    }
}

impl Queue {
    /// Puts a watch in, unless it was cancelled or is there.
    fn put(&mut self, waiting: Waiting, due: u64) {
        let watch = &waiting.watch;
        if !watch.cancelled.load(Ordering::Relaxed) && watch.due.load(Ordering::Relaxed) == NOT_QUEUED {
            watch.due.store(due, Ordering::Relaxed);
            self.waiting.insert((due, watch.id), waiting);
        }
    }

    fn forget(&mut self, watch: &Watch) {
        let due = watch.due.load(Ordering::Relaxed);
        drop(self.waiting.remove(&(due, watch.id)));
    }

    /// Takes the watches that are due.
    fn take(&mut self, now: u64, due: &mut Vec<Waiting>) {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let waiting = first.remove();
            waiting.watch.due.store(NOT_QUEUED, Ordering::Relaxed);
            due.push(waiting);
        }
    }
}

/// The result of a reading of all meters.
enum MeterReading {
    Again { seen_ns: u64, seen_at: u64, due: u64 },
    End(BudgetEnd),
}

fn read_meter(waiting: &Waiting) -> MeterReading {
    let watch = &*waiting.watch;
    if let Some(end) = watch.end() {
        return MeterReading::End(end);
    }
    let meter = AssertUnwindSafe(&watch.meter);
    let read = catch_unwind(|| meter.cpu_ns()).unwrap_or(None);
    let now = monotonic_ns();
    let Some(ns) = read else {
        let last = catch_unwind(|| meter.final_ns()).unwrap_or(None).unwrap_or(waiting.seen_ns);
        let used = watch.used(last);
        let is_over = last >= watch.target_ns;
        return MeterReading::End(if is_over {
            BudgetEnd::Exceeded { used }
        } else {
            BudgetEnd::Ended { used }
        });
    };
    if ns >= watch.target_ns {
        return MeterReading::End(BudgetEnd::Exceeded { used: watch.used(ns) });
    }
    let seen = Seen {
        remaining: watch.target_ns - ns,
        elapsed: now.saturating_sub(waiting.seen_at).max(1),
        moved: ns.saturating_sub(waiting.seen_ns),
    };
    MeterReading::Again { seen_ns: ns, seen_at: now, due: watch.pace.next(now, seen) }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Pace;
    use super::super::slot::Slot;
    use super::*;

    struct Idle;

    impl super::super::meter::CpuMeter for Idle {
        fn cpu_ns(&self) -> Option<u64> {
            Some(0)
        }
    }

    fn watch(id: u64) -> Arc<Watch> {
        Arc::new(Watch {
            process: identity::id(),
            start_ns: 0,
            target_ns: 1000,
            pace: Pace { processors: 1, budget_ns: 1000 },
            due: AtomicU64::new(NOT_QUEUED),
            id,
            cancelled: AtomicBool::new(false),
            end: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            waker: Slot::new(),
            callback: Slot::new(),
            meter: Idle,
        })
    }

    /// One whose thread never comes.
    fn asleep() -> Timer {
        Timer {
            process: identity::id(),
            is_running: AtomicBool::new(true),
            is_served: AtomicBool::new(true),
            letters: AtomicPtr::new(ptr::null_mut()),
            unread: AtomicU32::new(0),
            looks_at: AtomicU64::new(NOT_QUEUED),
            sooner: AtomicU32::new(0),
        }
    }

    #[test]
    fn no_thread_waits_for_an_absent_timer() {
        let timer = &asleep();
        let watches: Vec<_> = (0..1000).map(watch).collect();
        std::thread::scope(|scope| {
            for half in watches.chunks(500) {
                scope.spawn(move || {
                    for watch in half {
                        timer.begin(Arc::clone(watch));
                        if !watch.id.is_multiple_of(4) {
                            watch.cancelled.store(true, Ordering::Relaxed);
                            timer.cancel(Box::new(Letter::cancellation(Arc::clone(watch))));
                        }
                    }
                });
            }
        });
        let mut queue = Queue::default();
        timer.read(&mut queue);
        let mut left: Vec<_> = queue.waiting.keys().map(|&(_, id)| id).collect();
        left.sort_unstable();
        assert!(left.into_iter().eq((0..1000).step_by(4)));
        drop(queue);
        assert!(watches.iter().all(|watch| Arc::strong_count(watch) == 1), "nothing is left of the letters");
    }

    #[test]
    fn a_cancelled_watch_leaves_the_queue() {
        let (timer, watch, mut queue) = (asleep(), watch(1), Queue::default());
        timer.begin(Arc::clone(&watch));
        timer.read(&mut queue);
        assert_eq!(queue.waiting.len(), 1);
        timer.cancel(Box::new(Letter::cancellation(Arc::clone(&watch))));
        timer.read(&mut queue);
        assert_eq!((queue.waiting.len(), Arc::strong_count(&watch)), (0, 1));
    }
}
