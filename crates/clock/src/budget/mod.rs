//! CPU budgets: a wake-up when a thread, a group or the process has used that much CPU time.
//!
//! The kernel's own way (`clock_nanosleep` and `timer_create` on a CPU clock) knows threads and
//! processes, looks at them in the scheduler's tick (Linux: `kernel/time/posix-cpu-timers.c`), so
//! up to one tick late, and takes a sleeping thread or a signal for each. Here one thread looks at
//! the meters ([`timer`]), each no more often than it could be used up ([`pace`]). A meter measures
//! anything whose CPU time only grows ([`CpuMeter`]).
//!
//! # The promise
//!
//! When a budget says [`BudgetEnd::Exceeded`], its meter has been read, and was at the target or
//! past it. Meters never step back, so a woken thread that reads the same clock finds no less,
//! wherever it runs.
//!
//! # How late
//!
//! A thread that runs is met within the time that the system takes to run the timer. A meter that
//! may use several processors is late by no more than 1 ms of all of them or an eighth of the
//! budget, the larger of the two. One that stood still between the last two looks may be late by
//! twice the time between them, 32 ms at most. All looks together take no more than a sixteenth of
//! one processor; with thousands of budgets at their ends, or a meter that is slow to read, that
//! makes them later. The end of a measured thread is noticed within a second.
//!
//! # Locking
//!
//! None: a host's thread, which may be a real-time one, waits for no other but where it asks to
//! ([`Budget::wait`]).
//!
//! # Async-signal-safety
//!
//! Nothing here may be called from a signal handler: budgets are allocated.
//!
//! # Fork
//!
//! A child has its parent's budgets as objects, and they say [`BudgetEnd::Forked`]: nothing
//! measures for them. New ones start a timer of the child's own.

mod meter;
mod pace;
mod slot;
mod timer;
mod watch;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::process::identity;
use rustix::io::Errno;
use rustix::thread::futex;

pub use meter::{CpuMeter, ProcessMeter, ThreadMeter};
pub use timer::start_timer;
pub use watch::BudgetEnd;

use crate::error::Error;
use crate::group::ThreadGroup;
use pace::Pace;
use slot::Slot;
use timer::{Letter, Timer};
use watch::{NOT_QUEUED, Watch};

/// CPU time that may be used. Its end wakes threads that wait ([`Budget::wait`]) and tasks that
/// await it (it is a future, for any executor), and calls a function ([`Budget::on_exceeded`]).
/// Dropped, it is cancelled.
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
    /// For the drop, which allocates nothing.
    cancellation: Option<Box<Letter>>,
}

impl Budget {
    /// `budget` of CPU time from now on.
    ///
    /// # Cost
    ///
    /// A read of the meter and a few allocations; a system call, if the timer's thread has to be
    /// woken. The first one in a process starts that thread, which stays, unless [`start_timer`]
    /// has.
    ///
    /// # Errors
    ///
    /// [`Error::MeterEnded`] when the meter has ended already; [`Error::Timer`] and
    /// [`Error::Leaving`] when the thread cannot be started.
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
            process: identity::id(),
            start_ns,
            target_ns,
            pace: Pace { processors: meter.processors().max(1) as u64, budget_ns },
            due: AtomicU64::new(NOT_QUEUED),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            cancelled: AtomicBool::new(false),
            end: AtomicU64::new(0),
            ended: AtomicU32::new(0),
            waker: Slot::new(),
            callback: Slot::new(),
            meter,
        });
        timer.begin(watch.clone());
        let cancellation = Some(Box::new(Letter::cancellation(watch.clone())));
        Ok(Self { watch, timer, cancellation })
    }

    /// The reading of the meter that uses it up, in nanoseconds.
    pub fn target_ns(&self) -> u64 {
        self.watch.target_ns
    }

    /// Its end, if it has ended.
    pub fn end(&self) -> Option<BudgetEnd> {
        if self.watch.is_parents() { Some(BudgetEnd::Forked) } else { self.watch.end() }
    }

    /// Waits until it is used up, or the measured thing has ended. For ever, on the thread whose
    /// time it waits for, and in a function that the timer calls.
    pub fn wait(&self) -> BudgetEnd {
        loop {
            // `Duration::MAX` is no limit.
            if let Some(end) = self.wait_timeout(Duration::MAX) {
                return end;
            }
        }
    }

    /// [`Budget::wait`], but no longer than `timeout` of wall time; `None` then.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<BudgetEnd> {
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns().saturating_add(timeout);
        loop {
            if let Some(end) = self.end() {
                return Some(end);
            }
            let left = until.saturating_sub(monotonic_ns());
            if left == 0 {
                return None;
            }
            let left = Duration::from_nanos(left).try_into().ok();
            if futex::wait(&self.watch.ended, futex::Flags::PRIVATE, 0, left.as_ref()) == Err(Errno::TIMEDOUT)
            {
                return self.end();
            }
            // Woken or interrupted: look again.
        }
    }

    /// Has `callback` called once when the budget is used up (also if it is already), with the CPU
    /// time used. It runs on the timer's thread: while it does, all other budgets wait. If it
    /// panics, that is caught. Not called when the measured thing ends before. One that has begun
    /// is not waited for by the drop of the budget.
    pub fn on_exceeded(self, callback: impl FnOnce(Duration) + Send + 'static) -> Self {
        if !self.watch.is_parents() {
            let _before = self.watch.callback.put(Box::new(callback));
            // Else the timer finds it there when it ends the budget.
            if self.watch.end().is_some() {
                self.timer.serve(Arc::clone(&self.watch));
            }
        }
        self
    }
}

impl Future for Budget {
    type Output = BudgetEnd;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BudgetEnd> {
        if let Some(end) = self.end() {
            return Poll::Ready(end);
        }
        let _before = self.watch.waker.put(context.waker().clone());
        // Else the timer finds it there when it ends the budget.
        self.end().map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        if self.watch.is_parents() {
            return;
        }
        self.watch.cancelled.store(true, Ordering::Relaxed);
        drop((self.watch.callback.take(), self.watch.waker.take()));
        if self.watch.end().is_none()
            && let Some(cancellation) = self.cancellation.take()
        {
            self.timer.cancel(cancellation);
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

/// Sleeps until `meter` reads at least `target_ns`; for ever, if that is the calling thread's own
/// clock. The asynchronous form is [`Budget::until`], awaited.
///
/// # Errors
///
/// Those of [`Budget::new`].
pub fn sleep_until(meter: impl CpuMeter + 'static, target_ns: u64) -> Result<BudgetEnd, Error> {
    Budget::until(meter, target_ns).map(|budget| budget.wait())
}
