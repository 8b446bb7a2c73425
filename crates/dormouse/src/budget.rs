//! CPU budgets: of a group as a whole, and of one task wherever it runs.
//!
//! A group's budget is watched from outside, by the timer of [`dormouse_clock::Budget`]: it also ends while a task
//! that never yields runs. A task's is kept by the task itself: two reads of the thread clock around each poll and
//! each scope, no timer, and nothing to look up. Every request can have one.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dormouse_clock::{Budget, CpuMeter, thread_cpu_ns};
use dormouse_events::{Counting, Event, Mode};
use pin_project_lite::pin_project;

use crate::group::Group;

/// CPU time of a group's tasks, as [`Group::stat`] gives it, which is counted as long as this lives.
#[derive(Debug)]
struct GroupMeter {
    group: Group,
    _counting: Counting,
}

impl CpuMeter for GroupMeter {
    fn cpu_ns(&self) -> Option<u64> {
        Some(nanoseconds(self.group.stat().cpu))
    }
}

/// Why a group can have no budget.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// Its CPU time cannot be counted.
    #[error(transparent)]
    Events(#[from] dormouse_events::Error),
    /// Nobody can watch it.
    #[error(transparent)]
    Clock(#[from] dormouse_clock::Error),
}

impl Group {
    /// Wakes somebody when the group's tasks have used `budget` of CPU time from now on: see [`Budget`] for how. Reads
    /// of [`Group::stat`] after that say no less. The group's CPU time is counted as long as the budget lives.
    ///
    /// # Cost
    ///
    /// That of [`Budget::new`] and [`Group::count`]; and as long as it lives a read of [`Group::stat`] when it might be
    /// used up, by the timer's thread.
    ///
    /// # Errors
    ///
    /// Those of [`Budget::new`] and [`Group::count`].
    pub fn budget(self, budget: Duration) -> Result<Budget, BudgetError> {
        let counting = self.count(&[Event::TASK_CLOCK], Mode::GroupExact)?;
        Ok(Budget::new(GroupMeter { group: self, _counting: counting }, budget)?)
    }
}

/// CPU time that one piece of work may use, in however many futures and on however many threads. Clones are the
/// same budget.
///
/// ```
/// use std::time::Duration;
/// use dormouse::TaskBudget;
///
/// let budget = TaskBudget::new(Duration::from_millis(50), |used| eprintln!("it has used {used:?}"));
/// let request = budget.instrument(async { /* … */ });
/// let offloaded = budget.clone();
/// std::thread::spawn(move || {
///     let _counted = offloaded.enter();
///     // …
/// });
/// # drop(request);
/// ```
#[derive(Clone)]
pub struct TaskBudget {
    account: Arc<Account>,
}

struct Account<F: ?Sized = dyn Fn(Duration) + Send + Sync> {
    limit_ns: u64,
    used_ns: AtomicU64,
    told: AtomicBool,
    on_exceeded: F,
}

impl TaskBudget {
    /// A budget of `limit`. `on_exceeded` is called once, with what was used by then, at the end of the first poll or
    /// scope after which that is more than the limit: on the thread and in the group that it ran in. Not while the
    /// thread unwinds from a panic. Work that never ends a poll is never told of; [`Group::budget`] sees it.
    ///
    /// # Cost
    ///
    /// An allocation.
    pub fn new(limit: Duration, on_exceeded: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        let (used_ns, told) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { account: Arc::new(Account { limit_ns: nanoseconds(limit), used_ns, told, on_exceeded }) }
    }

    /// Counts every poll of `future`, and its destructor, with everything that runs inside of them.
    ///
    /// # Cost
    ///
    /// A poll reads the thread clock twice and adds once.
    pub fn instrument<F: Future>(&self, future: F) -> Budgeted<F> {
        Budgeted { future: Some(future), budget: self.clone() }
    }

    /// Counts what this thread does until the guard is dropped. Not inside of what is counted already, which would
    /// count it twice, nor across an `.await`.
    ///
    /// # Cost
    ///
    /// A read of the thread clock, and another when the guard is dropped.
    pub fn enter(&self) -> Counted {
        Counted { budget: self.clone(), since: thread_cpu_ns(), not_send: PhantomData }
    }

    /// What was used in polls and scopes that have ended.
    pub fn used(&self) -> Duration {
        Duration::from_nanos(self.account.used_ns.load(Ordering::Relaxed))
    }
}

impl Account {
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

impl fmt::Debug for TaskBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut budget = f.debug_struct("TaskBudget");
        budget
            .field("limit", &Duration::from_nanos(self.account.limit_ns))
            .field("used", &self.used())
            .finish()
    }
}

/// `future`, and a function that is called once when its polls have used more than `limit` of CPU time: a
/// [`TaskBudget`] of its own.
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
    Budgeted { future: Some(future), budget: TaskBudget::new(limit, on_exceeded) }
}

/// Counts what its thread does; see [`TaskBudget::enter`].
#[must_use = "the thread's time is counted as long as the guard lives"]
pub struct Counted {
    budget: TaskBudget,
    since: u64,
    /// The clock is its thread's.
    not_send: PhantomData<*const ()>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.budget.account.add_since(self.since);
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counted").field(&self.budget).finish()
    }
}

/// [`Counted`] for a poll, which holds its budget anyway.
struct Piece<'a> {
    account: &'a Account,
    since: u64,
}

impl<'a> Piece<'a> {
    fn of(budget: &'a TaskBudget) -> Self {
        Self { account: &budget.account, since: thread_cpu_ns() }
    }
}

impl Drop for Piece<'_> {
    fn drop(&mut self) {
        self.account.add_since(self.since);
    }
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
                let _counted = Piece::of(this.budget);
                this.future.set(None);
            }
        }
    }
}

impl<F> Budgeted<F> {
    /// The budget that its polls are counted in.
    pub fn budget(&self) -> &TaskBudget {
        &self.budget
    }
}

impl<F: Future> Future for Budgeted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let _counted = Piece::of(this.budget);
        // None: polled after its end, which no executor does, and which may do anything but panic into the
        // host.
        let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
        let poll = future.poll(cx);
        if poll.is_ready() {
            this.future.set(None);
        }
        poll
    }
}

/// At most `u64::MAX` of them: five centuries.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
