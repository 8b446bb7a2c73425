//! CPU budgets: of a group as a whole, and of one task on any thread.
//!
//! A group's budget is watched from outside, by the timer of [`dormouse_clock::Budget`]: it also
//! ends while a task that never yields runs. A task's budget is kept by the task itself: two reads
//! of the thread clock around each poll and each scope, no timer, and nothing to look up. Every
//! request can have one.
//!
//! A task's budget that only leaves a record ([`TaskBudget::recorded`]) sleeps with the probe
//! `dormouse.over_budget`: then it has no account, and a poll only sees that there is none.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dormouse_clock::{Budget, CpuMeter, thread_cpu_ns};
use dormouse_events::{Counting, Event, Mode};
use dormouse_keys::{StaticKey, unlikely};
use pin_project_lite::pin_project;

use crate::core::group::Group;
use crate::core::probe::{Probe, point};
use crate::core::task::poll_to_its_end;

static OVER_BUDGET_PROBE: Probe = Probe::new(",cpu_us,limit_us");
static OVER_BUDGET: StaticKey<false> =
    StaticKey::new("dormouse.over_budget", file!(), line!()).with(&OVER_BUDGET_PROBE);

/// CPU time of a group's tasks, as [`Group::read`] gives it, which is counted as long as this
/// lives.
#[derive(Debug)]
struct GroupMeter {
    group: Group,
    _counting: Counting,
}

impl CpuMeter for GroupMeter {
    fn cpu_ns(&self) -> Option<u64> {
        Some(self.group.0.context.cpu_ns())
    }
}

/// Why a group cannot have a budget.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// Its CPU time cannot be counted.
    #[error(transparent)]
    Events(#[from] dormouse_events::Error),
    /// It cannot be watched.
    #[error(transparent)]
    Clock(#[from] dormouse_clock::Error),
}

impl Group {
    /// A budget that is used up when the group's tasks have used `budget` of CPU time from now on;
    /// [`Budget`] describes the ways to learn of it. After that [`Group::read`] returns no less.
    /// The group's CPU time is counted as long as the budget exists.
    ///
    /// # Cost
    ///
    /// The cost of [`Budget::new`] and [`Group::start_counting`]. The timer's thread reads the
    /// group's CPU time whenever the budget might be used up.
    ///
    /// # Errors
    ///
    /// See [`Budget::new`] and [`Group::start_counting`].
    pub fn budget(self, budget: Duration) -> Result<Budget, BudgetError> {
        let counting = self.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?;
        Ok(Budget::new(GroupMeter { group: self, _counting: counting }, budget)?)
    }
}

/// CPU time that one piece of work may use, in however many futures and on however many threads.
/// Clones are the same budget.
///
/// ```
/// use std::time::Duration;
/// use dormouse::TaskBudget;
///
/// let limit = Duration::from_millis(50);
/// let budget = TaskBudget::new(limit, |used| eprintln!("it has used {used:?}"));
/// let request = budget.instrument(async { /* … */ });
/// let offloaded = budget.clone();
/// std::thread::spawn(move || {
///     let _counted = offloaded.enter();
///     // …
/// });
/// # drop(request);
/// ```
#[derive(Debug, Clone)]
pub struct TaskBudget {
    /// `None`: it sleeps.
    account: Option<Arc<Account>>,
}

struct Account<F: ?Sized = dyn Fn(Duration) + Send + Sync> {
    limit_ns: u64,
    used_ns: AtomicU64,
    told: AtomicBool,
    on_exceeded: F,
}

impl TaskBudget {
    /// A budget of `limit`. The first poll or scope that ends beyond the limit calls `on_exceeded`
    /// once, with the CPU time that was used by then, on its thread and in its group; but not while
    /// the thread unwinds from a panic. Work that never ends a poll is not noticed here;
    /// [`Group::budget`] notices it.
    ///
    /// # Cost
    ///
    /// An allocation.
    pub fn new(limit: Duration, on_exceeded: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        let (used_ns, told) = (AtomicU64::new(0), AtomicBool::new(false));
        let account = Account { limit_ns: nanoseconds(limit), used_ns, told, on_exceeded };
        Self { account: Some(Arc::new(account)) }
    }

    /// A budget of `limit` that leaves a record of the probe `dormouse.over_budget` when it is
    /// exceeded, in the group of the work that has exceeded it, with the fields `cpu_us` and
    /// `limit_us`. It sleeps if nobody traces this probe when it is made: then it counts nothing,
    /// also if the trace begins before the work has ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dormouse::TaskBudget;
    ///
    /// let budget = TaskBudget::recorded(Duration::from_millis(50));
    /// let request = budget.instrument(async { /* … */ });
    /// assert_eq!(budget.used(), None); // Until `dormouse trace SERVICE dormouse.over_budget`.
    /// # drop(request);
    /// ```
    ///
    /// # Cost
    ///
    /// Asleep one instruction, and a test for each poll and scope; otherwise as
    /// [`TaskBudget::new`].
    #[inline]
    pub fn recorded(limit: Duration) -> Self {
        if unlikely!(OVER_BUDGET) { Self::recording(limit) } else { Self { account: None } }
    }

    #[cold]
    fn recording(limit: Duration) -> Self {
        Self::new(limit, move |used| {
            if unlikely!(OVER_BUDGET) {
                point(&OVER_BUDGET_PROBE, |writer| {
                    writer.unsigned(microseconds(used));
                    writer.unsigned(microseconds(limit));
                });
            }
        })
    }

    /// Counts every poll of `future`, and its destructor, including everything that runs inside of
    /// them.
    ///
    /// # Cost
    ///
    /// A poll reads the thread clock twice and adds once.
    pub fn instrument<F: Future>(&self, future: F) -> Budgeted<F> {
        Budgeted { future: Some(future), budget: self.clone() }
    }

    /// Counts what this thread does until the guard is dropped. A guard inside of another one, or
    /// of a poll that is counted already, counts twice; a guard must not live across an `.await`.
    ///
    /// # Cost
    ///
    /// A read of the thread clock, and another when the guard is dropped.
    pub fn enter(&self) -> BudgetScope {
        BudgetScope { _timed: self.account.clone().map(Timed::begin), not_send: PhantomData }
    }

    #[inline]
    fn timed(&self) -> Option<Timed<&Account>> {
        self.account.as_deref().map(Timed::begin)
    }

    /// The CPU time of polls and scopes that have ended; `None` if the budget sleeps.
    pub fn used(&self) -> Option<Duration> {
        self.account.as_ref().map(|account| account.used())
    }
}

impl Account {
    fn used(&self) -> Duration {
        Duration::from_nanos(self.used_ns.load(Ordering::Relaxed))
    }

    /// Adds what the thread has used since its clock read `since`.
    fn add_since(&self, since: u64) {
        // In a fork child the clock begins again.
        let ns = thread_cpu_ns().saturating_sub(since);
        let used = self.used_ns.fetch_add(ns, Ordering::Relaxed) + ns;
        // A panic of the function's inside of another would abort the host.
        if used > self.limit_ns && !std::thread::panicking() && !self.told.swap(true, Ordering::Relaxed) {
            (self.on_exceeded)(Duration::from_nanos(used));
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limit, used) = (Duration::from_nanos(self.limit_ns), self.used());
        f.debug_struct("Account").field("limit", &limit).field("used", &used).finish()
    }
}

/// Wraps `future`, and calls a function once when its polls have used more than `limit` of CPU
/// time: a [`TaskBudget`] of its own.
///
/// ```
/// # use std::time::Duration;
/// # async fn serve() {}
/// let request = dormouse::budgeted(serve(), Duration::from_millis(50), |used| {
///     dormouse::probe!("http.over_budget", cpu_us = used.as_micros() as u64);
/// });
/// # drop(request);
/// ```
pub fn budgeted<F: Future>(
    future: F,
    limit: Duration,
    on_exceeded: impl Fn(Duration) + Send + Sync + 'static,
) -> Budgeted<F> {
    TaskBudget::new(limit, on_exceeded).instrument(future)
}

/// Adds what its thread uses to an account while it lives.
#[derive(Debug)]
struct Timed<A: Deref<Target = Account>> {
    account: A,
    since: u64,
}

impl<A: Deref<Target = Account>> Timed<A> {
    fn begin(account: A) -> Self {
        Self { account, since: thread_cpu_ns() }
    }
}

impl<A: Deref<Target = Account>> Drop for Timed<A> {
    fn drop(&mut self) {
        self.account.add_since(self.since);
    }
}

/// Counts the CPU time of the thread that made it, until it is dropped; see [`TaskBudget::enter`].
#[derive(Debug)]
#[must_use = "the thread's time is counted as long as the guard lives"]
pub struct BudgetScope {
    _timed: Option<Timed<Arc<Account>>>,
    /// The clock is its thread's.
    not_send: PhantomData<*const ()>,
}

pin_project! {
    /// A future whose polls and destructor are counted; see [`TaskBudget::instrument`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Budgeted<F> {
        // `None` once dropped, which is counted.
        #[pin]
        future: Option<F>,
        budget: TaskBudget,
    }

    impl<F> PinnedDrop for Budgeted<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.future.is_some() {
                let _timed = this.budget.timed();
                this.future.set(None);
            }
        }
    }
}

impl<F> Budgeted<F> {
    /// The budget in which the future's polls are counted.
    pub fn budget(&self) -> &TaskBudget {
        &self.budget
    }
}

impl<F: Future> Future for Budgeted<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let _timed = this.budget.timed();
        poll_to_its_end(this.future, cx)
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// At most `u64::MAX` of them: five centuries.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
