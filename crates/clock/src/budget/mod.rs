//! CPU budgets: waking when something has used so much CPU time.
//!
//! The kernel's own way (`clock_nanosleep` and `timer_create` on a CPU clock) knows threads and processes, looks at
//! them in the scheduler's tick (Linux: `kernel/time/posix-cpu-timers.c`), so up to one tick late, and takes a
//! sleeping thread or a signal for each. Here one thread looks at the meters ([`timer`]), each no more often than
//! it could be used up ([`pace`]), and what it measures may be anything whose CPU time only grows ([`CpuMeter`]).
//!
//! # The promise
//!
//! When a budget says [`BudgetEnd::Exceeded`], its meter has been read, and was at the target or past it. Meters
//! never step back, so whoever is woken by it and reads the same clock finds no less, on any thread.
//!
//! # How late
//!
//! A thread that runs is met within what the system takes to run the timer. Anything that may use several
//! processors is late by no more than 1 ms of all of them or an eighth of the budget, whichever is larger. What
//! stood still between the last two looks may be late by twice the time between them, 32 ms at most. All looks
//! together take no more than a sixteenth of one processor; with thousands of budgets at their ends, or a meter
//! that is slow to read, that makes them later. The end of what is measured is noticed within a second.
//!
//! # Async-signal-safety
//!
//! Nothing here may be called from a signal handler: budgets have locks, and are allocated.
//!
//! # Fork
//!
//! A child has its parent's budgets as objects, and they say [`BudgetEnd::Forked`]: nothing measures for them, and
//! the locks in them may be held by threads that are not there. New ones start a timer of the child's own.

mod meter;
mod pace;
mod timer;

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use meter::{CpuMeter, ProcessMeter, ThreadMeter};

use crate::error::Error;
use crate::group::ThreadGroup;
use pace::Pace;
use timer::{NOT_QUEUED, Timer};

/// How a budget ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetEnd {
    /// It was used up.
    Exceeded {
        /// CPU time since the budget was made, when that was seen: at least the budget.
        used: Duration,
    },
    /// What it was for has ended before.
    Ended {
        /// CPU time since the budget was made; where the meter does not know what it had at its end, as of
        /// the last look.
        used: Duration,
    },
    /// It was made before a fork, and this is the child.
    Forked,
}

/// CPU time that may be used, and somebody who is told when it has been: who waits ([`Budget::wait`]), awaits (it is
/// a future, for any executor) or has left a function ([`Budget::on_exceeded`]). Dropped, it is cancelled.
///
/// ```
/// use std::time::Duration;
/// use dormouse_clock::{Budget, ThreadMeter};
///
/// let budget = Budget::new(ThreadMeter::current(), Duration::from_millis(50))?
///     .on_exceeded(|used| eprintln!("this thread has used {used:?}"));
/// // … work …
/// drop(budget);
/// # Ok::<(), dormouse_clock::Error>(())
/// ```
#[must_use = "a budget is cancelled when it is dropped"]
pub struct Budget {
    watch: Arc<Watch>,
    timer: &'static Timer,
}

type Callback = Box<dyn FnOnce(Duration) + Send>;

/// What a budget and the timer share.
struct Watch<M: ?Sized = dyn CpuMeter> {
    /// The process that it was made in.
    process: u64,
    start_ns: u64,
    target_ns: u64,
    pace: Pace,
    /// The place in the timer's queue, or [`NOT_QUEUED`]; changed under the queue's lock.
    due: AtomicU64,
    /// Unique in a process.
    id: u64,
    cancelled: AtomicBool,
    state: Mutex<State>,
    ended: Condvar,
    meter: M,
}

#[derive(Default)]
struct State {
    end: Option<BudgetEnd>,
    waker: Option<Waker>,
    callback: Option<Callback>,
}

impl Budget {
    /// `budget` of CPU time from now on.
    ///
    /// # Cost
    ///
    /// A read of the meter, an allocation, and a lock that the timer's thread holds for moments. The first one in a
    /// process starts that thread, which stays.
    ///
    /// # Errors
    ///
    /// [`Error::MeterEnded`] when the meter has ended already; [`Error::Timer`] and [`Error::Leaving`] when the thread
    /// cannot be started.
    pub fn new(meter: impl CpuMeter + 'static, budget: Duration) -> Result<Self, Error> {
        let budget = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        Self::made(meter, |now| now.saturating_add(budget))
    }

    /// The budget that is used up when `meter` reads `target_ns`.
    ///
    /// # Errors
    ///
    /// Those of [`Budget::new`].
    pub fn until(meter: impl CpuMeter + 'static, target_ns: u64) -> Result<Self, Error> {
        Self::made(meter, |_| target_ns)
    }

    fn made<M: CpuMeter + 'static>(meter: M, target: impl FnOnce(u64) -> u64) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let timer = timer::running()?;
        let start_ns = meter.cpu_ns().ok_or(Error::MeterEnded)?;
        let target_ns = target(start_ns);
        let budget_ns = target_ns.saturating_sub(start_ns);
        let watch = Arc::new(Watch {
            process: process(),
            start_ns,
            target_ns,
            pace: Pace { processors: meter.processors().max(1) as u64, budget_ns },
            due: AtomicU64::new(NOT_QUEUED),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            cancelled: AtomicBool::new(false),
            state: Mutex::default(),
            ended: Condvar::new(),
            meter,
        });
        timer.begin(watch.clone());
        Ok(Self { watch, timer })
    }

    /// The reading of the meter that uses it up, in nanoseconds.
    pub fn target_ns(&self) -> u64 {
        self.watch.target_ns
    }

    /// How it ended, if it has.
    pub fn end(&self) -> Option<BudgetEnd> {
        self.watch.with_state(|state| state.end).unwrap_or(Some(BudgetEnd::Forked))
    }

    /// Waits until it is used up, or what it is for has ended. For ever, on the thread whose time it waits for, and in
    /// a function that the timer calls.
    pub fn wait(&self) -> BudgetEnd {
        loop {
            // So long a time is none.
            if let Some(end) = self.wait_timeout(Duration::MAX) {
                return end;
            }
        }
    }

    /// [`Budget::wait`], but no longer than `timeout` of wall time; `None` then.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BudgetEnd> {
        if self.watch.is_parents() {
            return Some(BudgetEnd::Forked);
        }
        let until = Instant::now().checked_add(timeout);
        let mut state = self.watch.lock();
        loop {
            if state.end.is_some() {
                return state.end;
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.watch.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.watch.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Has `callback` called once when the budget is used up (also if it is already), with the CPU time used. It runs
    /// on the timer's thread: while it does, all other budgets wait. If it panics, that is caught. Not called when
    /// what the budget is for ends before. One that has begun is not waited for by the drop of the budget.
    pub fn on_exceeded(self, callback: impl FnOnce(Duration) + Send + 'static) -> Self {
        let left = self.watch.with_state(|state| {
            let before = state.callback.replace(Box::new(callback));
            (state.end.is_some(), before)
        });
        if matches!(left, Some((true, _))) {
            self.timer.serve(Arc::clone(&self.watch));
        }
        self
    }
}

impl Future for Budget {
    type Output = BudgetEnd;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BudgetEnd> {
        let waker = context.waker().clone();
        // The one before is dropped when the lock is free again.
        match self.watch.with_state(|state| (state.end, state.waker.replace(waker))) {
            None => Poll::Ready(BudgetEnd::Forked),
            Some((Some(end), _before)) => Poll::Ready(end),
            Some((None, _before)) => Poll::Pending,
        }
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if !self.watch.is_parents() {
            self.timer.cancel(&self.watch);
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut budget = f.debug_struct("Budget");
        budget.field("start_ns", &self.watch.start_ns).field("target_ns", &self.watch.target_ns);
        budget.field("end", &self.end()).finish_non_exhaustive()
    }
}

impl<M: ?Sized> Watch<M> {
    fn is_parents(&self) -> bool {
        self.process != process()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` in a fork child, where the lock may be held for ever.
    fn with_state<T>(&self, run: impl FnOnce(&mut State) -> T) -> Option<T> {
        (!self.is_parents()).then(|| run(&mut self.lock()))
    }

    fn used(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns.saturating_sub(self.start_ns))
    }
}

/// This process among its forebears.
fn process() -> u64 {
    dormouse_sys::fork::number().map_or_else(|| u64::from(std::process::id()), NonZeroU64::get)
}

impl ThreadGroup {
    /// [`Budget::new`] on the group's CPU time.
    ///
    /// # Errors
    ///
    /// Those of [`Budget::new`].
    pub fn budget(&self, budget: Duration) -> Result<Budget, Error> {
        Budget::new(self.clone(), budget)
    }
}

/// Sleeps until `meter` reads at least `target_ns`; for ever, if that is the calling thread's own clock. The asynchronous
/// form is [`Budget::until`], awaited.
///
/// # Errors
///
/// Those of [`Budget::new`].
pub fn sleep_until(meter: impl CpuMeter + 'static, target_ns: u64) -> Result<BudgetEnd, Error> {
    Budget::until(meter, target_ns).map(|budget| budget.wait())
}
