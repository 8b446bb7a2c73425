//! CPU budgets: a wake-up when a thread, a group or the process has used a given amount of CPU
//! time.
//!
//! The kernel's own way (`clock_nanosleep` and `timer_create` on a CPU clock) covers threads and
//! processes, checks them in the scheduler's tick (Linux: `kernel/time/posix-cpu-timers.c`), so up
//! to one tick late, and needs a sleeping thread or a signal for each. Here one thread reads the
//! meters ([`timer`]), each no more often than it could be used up ([`pace`]). A meter measures
//! anything whose CPU time only grows ([`CpuMeter`]).
//!
//! # The promise
//!
//! When a budget ends with [`BudgetEnd::Exceeded`], its meter was read and was at or past the
//! target. Meters never step back, so a woken thread that reads the same clock finds no less,
//! wherever it runs.
//!
//! # How late
//!
//! For a running thread, the budget ends within the time that the system takes to run the timer.
//! For a meter that may use several processors it ends late by at most 1 ms of all of them or an
//! eighth of the budget, whichever is larger. For a meter that stood still between the last two
//! readings it may be late by twice the time between them, at most 32 ms. All readings together
//! take at most a sixteenth of one processor; with thousands of budgets near their ends, or a meter
//! that is slow to read, that makes them later. The end of a measured thread is noticed within a
//! second.
//!
//! # Locking
//!
//! None. A host's thread, which may be a real-time one, waits for another only in [`Budget::wait`].
//!
//! # Async-signal-safety
//!
//! Nothing here may be called from a signal handler: budgets are allocated.
//!
//! # Fork
//!
//! A fork child has its parent's budgets as objects, which have ended with [`BudgetEnd::Forked`]:
//! nothing measures for them. New budgets start a timer thread in the child.

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
use dormouse_sys::futex;
use dormouse_sys::process::identity;
use rustix::io::Errno;

pub use meter::CpuMeter;
pub use timer::start_timer;
pub use watch::BudgetEnd;

use crate::error::Error;
use pace::Pace;
use slot::Slot;
use timer::{Letter, Timer};
use watch::{NOT_QUEUED, Watch};

/// An amount of CPU time that may be used. Its end wakes threads that wait ([`Budget::wait`]) and
/// tasks that await it (it is a future, for any executor), and calls a function
/// ([`Budget::on_exceeded`]). Dropping it cancels it.
///
/// ```
/// use std::time::Duration;
/// use dormouse_clock::{Budget, CpuMeter, process_cpu_ns};
///
/// struct Process;
///
/// impl CpuMeter for Process {
///     fn cpu_ns(&self) -> Option<u64> {
///         Some(process_cpu_ns())
///     }
/// }
///
/// let budget = Budget::new(Process, Duration::from_millis(50))?
///     .on_exceeded(|used| eprintln!("this process has used {used:?}"));
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
    /// A budget of `budget` of CPU time from now on.
    ///
    /// # Cost
    ///
    /// A read of the meter and a few allocations, and a system call if the timer's thread has to be
    /// woken. The first budget of a process starts that thread, which stays, unless [`start_timer`]
    /// has started it.
    ///
    /// # Errors
    ///
    /// [`Error::MeterEnded`] if the measured thing has ended already; [`Error::Timer`] and
    /// [`Error::Leaving`] if the thread cannot be started.
    pub fn new(meter: impl CpuMeter + 'static, budget: Duration) -> Result<Self, Error> {
        let budget = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        Self::made(meter, |now| now.saturating_add(budget))
    }

    /// A budget that is used up when `meter` reads `target_ns`.
    ///
    /// # Errors
    ///
    /// See [`Budget::new`].
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

    /// The reading of the meter at which the budget is used up, in nanoseconds.
    pub fn target_ns(&self) -> u64 {
        self.watch.target_ns
    }

    /// How the budget ended, or `None` while it runs.
    pub fn end(&self) -> Option<BudgetEnd> {
        if self.watch.is_parents() { Some(BudgetEnd::Forked) } else { self.watch.end() }
    }

    /// Waits until the budget is used up, or the measured thing has ended. On the measured thread
    /// itself, and in a function that the timer calls, it waits for ever.
    pub fn wait(&self) -> BudgetEnd {
        loop {
            // `Duration::MAX` is no limit.
            if let Some(end) = self.wait_timeout(Duration::MAX) {
                return end;
            }
        }
    }

    /// Waits as [`Budget::wait`] does, but returns `None` after `timeout` of wall time.
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
            if futex::wait(&self.watch.ended, 0, left.as_ref()) == Err(Errno::TIMEDOUT) {
                return self.end();
            }
            // Woken or interrupted: look again.
        }
    }

    /// Has `callback` called once when the budget is used up (also if it already is), with the CPU
    /// time used. It runs on the timer's thread: meanwhile all other budgets wait. A panic in it is
    /// caught. It is not called if the measured thing ends before. Dropping the budget does not
    /// wait for a callback that has begun.
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

/// Sleeps until `meter` reads at least `target_ns`; for ever, if that is the calling thread's own
/// clock. For the asynchronous form, await [`Budget::until`].
///
/// # Errors
///
/// See [`Budget::new`].
pub fn sleep_until(meter: impl CpuMeter + 'static, target_ns: u64) -> Result<BudgetEnd, Error> {
    Budget::until(meter, target_ns).map(|budget| budget.wait())
}
