//! Tasks of a group: futures, scopes, threads, and tasks that are run by hand.

use std::future::Future;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;

use dormouse_events::{Event, Kind, Mark, Switched, TaskCounts};
use dormouse_waits::{Around, Arrival, Site, Stretch, TaskEnd, TaskWaits, TraceContext, Who};
use pin_project_lite::pin_project;

use crate::core::ends::{Ending, TaskOutcome, outcome_of};
use crate::core::group::Group;
use crate::core::long_lived::LongSince;
use crate::core::own_probes::{PollMark, poll_enters, poll_leaves, task_traced};
use crate::core::panics::{Unwound, UnwoundGuard};
use crate::core::tasks::{Origin, is_request};

impl Group {
    /// Charges every poll of `future`, and its destructor, to this group.
    pub fn instrument<F: Future>(self, future: F) -> Instrumented<F> {
        self.task().instrument(future)
    }

    /// Charges what `f` does on this thread, as a task of the group that begins and ends with it.
    pub fn scope<T>(self, f: impl FnOnce() -> T) -> T {
        self.task().run(f)
    }

    /// Charges what this thread does to the group, until the guard is dropped.
    ///
    /// The guard must not live across an `.await`: use [`Group::instrument`] there.
    pub fn enter(self) -> Entered {
        self.task().into_entered()
    }

    /// Starts a thread that is charged to this group from its beginning to its end, named after the
    /// group.
    ///
    /// # Errors
    ///
    /// The error of [`std::thread::Builder::spawn`], if the system has no more threads.
    pub fn spawn_thread<T, F>(self, run: F) -> io::Result<JoinHandle<T>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        // A thread's name must not hold a NUL byte.
        let name = self.name().replace('\0', " ");
        std::thread::Builder::new().name(name).spawn(move || {
            let _entered = self.enter();
            run()
        })
    }

    /// A task of the group that is run by hand: for fibers, executors and callbacks.
    ///
    /// A scheduler of fibers runs each stretch from one suspension to the next inside
    /// [`Task::run`], on any thread; between two stretches nothing is charged to the group. (A
    /// scheduler that sees every switch of its thread need not return in between:
    /// [`Task::switch_to`].)
    ///
    /// ```
    /// # use dormouse::Group;
    /// # let mut fiber = (0..3).into_iter(); // Stands for what has a stack of its own.
    /// let mut task = Group::new("fibers").task();
    /// while task.run(|| fiber.next()).is_some() {
    ///     // Suspended: the thread runs others; the fiber goes on, here or elsewhere.
    /// }
    /// task.run(|| drop(fiber)); // Its destructors are its own, too.
    /// ```
    ///
    /// A guard of [`Group::enter`] must not live across a suspension, just as it must not across an
    /// `.await`: a group that was entered inside ends with the stretch.
    pub fn task(self) -> Task {
        Task::begun(self, self.begin_task(false))
    }

    /// Makes a task that is only a number current on this thread; `None` if that is impossible, for
    /// example in too deep a nesting.
    pub(crate) fn enter_task(self, number: u64) -> Option<Mark> {
        self.enter_numbered(number, Kind::Scope)
    }

    pub(crate) fn enter_numbered(self, number: u64, kind: Kind) -> Option<Mark> {
        let mut task = dormouse_events::Task::new(self.0.context, number);
        let mark = dormouse_events::enter(&mut task, kind).into_mark(number)?;
        poll_enters(number, self.id());
        Some(mark)
    }

    /// Leaves a task that is only a number; false if it is not current on this thread.
    pub(crate) fn leave_task(self, mark: Mark) -> bool {
        let has_left = dormouse_events::leave(mark);
        if has_left {
            poll_leaves(mark.task, self.id());
        }
        has_left
    }
}

/// One task of a group, counted from its start to its drop; see [`Group::task`].
///
/// ```
/// use dormouse::Group;
///
/// let mut task = Group::new("fibers").task();
/// // Each stretch from one suspension to the next, on any thread:
/// task.run(|| assert_eq!(Group::current(), Some(Group::new("fibers"))));
/// ```
#[derive(Debug)]
#[must_use = "the task ends when it is dropped"]
pub struct Task {
    pub(super) group: Group,
    inner: dormouse_events::Task,
    pub(super) waits: TaskWaits,
    pub(super) ending: Ending,
    /// Since when it lives for long.
    pub(super) long: Option<LongSince>,
    site: Site,
    /// Whether its end has been counted.
    is_over: bool,
}

impl Task {
    /// A task that goes on with the work of another one of the group, wherever that is.
    pub(crate) fn part_of(group: Group) -> Self {
        Self::begun(group, group.begin_task(true))
    }

    /// The thread is in the task from now on, which ends with the guard.
    pub(crate) fn into_entered(mut self) -> Entered {
        let inside = self.enter(Kind::Scope);
        Entered { _unwound: UnwoundGuard::begin(), _inside: inside, _task: self }
    }

    pub(super) fn begun(group: Group, number: u64) -> Self {
        Self::begun_after(group, number, |_| None)
    }

    pub(super) fn begun_after(
        group: Group,
        number: u64,
        arrival: impl FnOnce(Around) -> Option<Arrival>,
    ) -> Self {
        let is_long = Origin::of(number) == Origin::Connection;
        Self::begun_as(group, number, is_long.then(|| group.0.tasks.lives_long()), arrival)
    }

    pub(super) fn begun_as(
        group: Group,
        number: u64,
        long: Option<LongSince>,
        arrival: impl FnOnce(Around) -> Option<Arrival>,
    ) -> Self {
        let waits = TaskWaits::begun_after(Who { task: number, group: group.id() }, arrival);
        // Of the span, or the task, in which it begins.
        task_traced(number, group.id(), || waits.trace());
        let inner = dormouse_events::Task::new(group.0.context, number);
        Self { group, inner, waits, ending: Ending::Completed, long, site: Site::NONE, is_over: false }
    }

    /// The task's number in records; never reused in a process.
    pub fn id(&self) -> u64 {
        self.inner.id()
    }

    /// The group that is charged.
    pub fn group(&self) -> Group {
        self.group
    }

    /// Charges what `f` does on this thread, except in nested groups, and counts an entry.
    ///
    /// When it returns or unwinds, nothing that was entered inside is current any more.
    #[inline]
    pub fn run<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let _inside = self.enter(Kind::Run);
        Unwound::unless(f)
    }

    /// Makes this thread go on with the task, whatever was current on it, until the next switch:
    /// for a scheduler of fibers that sees *every* switch of its thread. Between two tasks of one
    /// group no counter is read. Another thread may switch to the task once this one has gone on to
    /// another task, or with [`idle`] to none.
    ///
    /// ```
    /// # use dormouse::Group;
    /// let group = Group::new("fibers");
    /// let (mut one, mut other) = (group.task(), group.task());
    /// one.switch_to(); // … run the one until it suspends,
    /// other.switch_to(); // the other until it suspends: no counter is read,
    /// one.switch_to(); // and the one again.
    /// dormouse::idle(); // None of them runs now; the group is charged.
    /// # assert_eq!((Group::current(), group.read().alive), (None, 2));
    /// ```
    ///
    /// A switch invalidates guards of [`Group::enter`] that the previous task has left on the
    /// thread. If a task is dropped, it stays current until the next switch.
    #[inline]
    pub fn switch_to(&mut self) -> Switched {
        // A switch has no end by which its time could be known.
        self.waits.forget();
        dormouse_events::switch(Some(&mut self.inner))
    }

    /// A future that is this task. [`Group::instrument`] does the same if the task itself is not
    /// needed before:
    ///
    /// ```
    /// # use dormouse::{Group, Event, events::Mode};
    /// # let events = [Event::TASK_CLOCK];
    /// # let counting = Group::new("import").start_counting(&events, Mode::TaskExact)?;
    /// let mut task = Group::new("import").task();
    /// let own = task.shared_counts();
    /// let import = task.instrument(async move {
    ///     // …
    ///     own.read() // The counts of this task at the beginning of this poll.
    /// });
    /// # drop(import);
    /// # Ok::<(), dormouse::events::Error>(())
    /// ```
    pub fn instrument<F: Future>(self, future: F) -> Instrumented<F> {
        Instrumented { future: Some(future), task: self }
    }

    /// Reads what the task itself has counted up to the end of its last poll or run, in a group
    /// that is counted in [`Mode::TaskExact`](dormouse_events::Mode). [`Group::read_counts`]
    /// returns the sum over all its tasks, including what is pending.
    pub fn read_counts(&self) -> Vec<(Event, u64)> {
        self.inner.counts()
    }

    /// A handle that reads the same on any thread, even after the task has ended.
    ///
    /// # Cost
    ///
    /// One allocation for each task.
    pub fn shared_counts(&mut self) -> TaskCounts {
        self.inner.shared_counts()
    }

    /// [`Task::run`] for a destructor, which is no entry.
    pub(crate) fn run_drop(&mut self, f: impl FnOnce()) {
        let _inside = self.enter(Kind::Drop);
        Unwound::unless(f);
    }

    /// The task is about to be spawned there, as a whole: by itself, not within another future.
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "for runtimes"))]
    pub(crate) fn spawns_at(&mut self, caller: &'static Location<'static>) {
        self.site = Site::of(caller);
        self.site.begins(self.id());
        self.waits.spawned(self.site);
    }

    /// The task ends so, unless more is known then.
    #[inline]
    pub(crate) fn ends(&mut self, ending: Ending) {
        self.ending = ending;
    }

    /// The task is about to be dropped before its end: it is cancelled.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        self.ending = Ending::Cancelled;
        // A stream ends so as a rule, when its client goes.
        if is_request(self.id()) && self.long.is_none() {
            self.waits.cancel(self.who());
        }
    }

    /// Drops a future, unless it ran to its end. Then the task is cancelled.
    pub(crate) fn drop_future<F>(&mut self, mut future: Pin<&mut Option<F>>) {
        if future.is_some() {
            self.cancel();
            self.run_drop(|| future.set(None));
        }
    }

    /// Records that the task was called from outside, and belongs to its caller's trace. `context`
    /// is not called while times are not taken.
    #[cfg_attr(not(any(feature = "actix", feature = "tower")), expect(dead_code, reason = "for layers"))]
    #[inline]
    pub(crate) fn call(&mut self, context: impl FnOnce() -> Option<TraceContext>) {
        if let Some(context) = self.waits.call(context) {
            task_traced(self.id(), self.group.id(), || Some(context));
        }
    }

    /// Charges a poll of a future, which is dropped at its end.
    #[inline]
    pub(crate) fn poll<F: Future>(
        &mut self,
        future: Pin<&mut Option<F>>,
        cx: &mut Context<'_>,
    ) -> Poll<F::Output> {
        // Polled after its end: the task must not be charged or get times again.
        if future.is_none() {
            return Poll::Pending;
        }
        let last = self.waits.last_poll();
        self.poll_with(cx, |cx| {
            let polled = poll_to_its_end(future, cx);
            if polled.is_ready() {
                last.has_ended();
            }
            polled
        })
    }

    /// Charges a poll of anything.
    #[inline]
    pub(crate) fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        if cfg!(dormouse_off) {
            return poll(cx);
        }
        let who = self.who();
        let enter = || dormouse_events::enter(&mut self.inner, Kind::Poll);
        // The time of the poll is that for which the group is charged.
        self.waits.poll_inside(who, cx, enter, |cx| {
            let _seen = PollMark::begin();
            Unwound::unless(|| poll(cx))
        })
    }

    #[inline]
    fn enter(&mut self, kind: Kind) -> Inside {
        let stretch = self.waits.run(self.who());
        if let Some(stretch) = stretch.as_ref().filter(|_| kind != Kind::Drop) {
            stretch.enters_by_hand();
        }
        let switch = dormouse_events::enter(&mut self.inner, kind);
        Inside { _seen: PollMark::begin(), _switch: switch, _stretch: stretch }
    }

    fn who(&self) -> Who {
        Who { task: self.id(), group: self.group.id() }
    }
}

impl Task {
    /// The task is over, also if its owner keeps it for longer. Its counts can still be read.
    pub(crate) fn finish(&mut self) {
        if cfg!(dormouse_off) || std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.site.ends(self.id());
        let outcome = outcome_of(self.id(), self.ending);
        if let Some(since) = self.long {
            let _no_age = self.waits.end(TaskEnd::NoRequest);
            return self.group.end_long(self.id(), since);
        }
        let as_what = ends_as(self.id(), outcome);
        let dropped = if outcome.is_cancelled() { self.waits.dropped() } else { None };
        let age_ns = self.waits.end_with(as_what, Some(outcome.number()));
        self.group.end_aged(self.id(), outcome, age_ns, dropped);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.finish();
    }
}

/// How a task with that number and outcome ends, for the account of latencies.
#[inline]
pub(crate) fn ends_as(number: u64, outcome: TaskOutcome) -> TaskEnd {
    match is_request(number) {
        false => TaskEnd::NoRequest,
        true if outcome.is_cancelled() => TaskEnd::Cancelled,
        true if outcome.is_unanswered() => TaskEnd::Unanswered,
        true => TaskEnd::Answered,
    }
}

/// Polls a future, and drops it at its end.
#[inline]
pub(crate) fn poll_to_its_end<F: Future>(
    mut future: Pin<&mut Option<F>>,
    cx: &mut Context<'_>,
) -> Poll<F::Output> {
    // `None` if somebody polls after the end. No executor does, and a panic would hit the host.
    let Some(running) = future.as_mut().as_pin_mut() else { return Poll::Pending };
    let poll = running.poll(cx);
    if poll.is_ready() {
        future.set(None);
    }
    poll
}

/// Makes this thread run no task from now on, and charges the one that it has run. It ends what
/// [`Task::switch_to`] begins.
///
/// ```
/// use dormouse::{Group, idle};
///
/// let mut fibers = [Group::new("fibers").task(), Group::new("fibers").task()];
/// for fiber in &mut fibers {
///     fiber.switch_to(); // and resume it until it suspends
/// }
/// idle(); // before the thread sleeps, or does anything else
/// ```
pub fn idle() -> Switched {
    dormouse_events::switch(None)
}

/// Keeps a group current on this thread; see [`Group::enter`].
///
/// It stays on its thread:
///
/// ```compile_fail
/// let entered = dormouse::Group::new("here").enter();
/// std::thread::spawn(move || drop(entered));
/// ```
#[derive(Debug)]
#[must_use = "the group is current as long as the guard lives"]
pub struct Entered {
    // In this order: a panic is seen inside of the task, which ends after its last switch.
    _unwound: UnwoundGuard,
    _inside: Inside,
    _task: Task,
}

/// A thread is in a task. In this order: the time of a stretch holds that of its switches.
#[derive(Debug)]
struct Inside {
    _seen: PollMark,
    _switch: dormouse_events::TaskGuard,
    _stretch: Option<Stretch>,
}

pin_project! {
    /// A future whose polls and destructor are charged to a group; see [`Group::instrument`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Instrumented<F> {
        // `None` once dropped, which happens inside the group.
        #[pin]
        future: Option<F>,
        task: Task,
    }

    impl<F> PinnedDrop for Instrumented<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.task.drop_future(this.future);
        }
    }
}

impl<F> Instrumented<F> {
    /// The group that is charged.
    pub fn group(&self) -> Group {
        self.task.group
    }

    /// Reads what this task itself has counted; see [`Task::read_counts`].
    pub fn read_counts(&self) -> Vec<(Event, u64)> {
        self.task.read_counts()
    }

    /// A handle that reads the same elsewhere; see [`Task::shared_counts`].
    pub fn shared_counts(&mut self) -> TaskCounts {
        self.task.shared_counts()
    }
}

impl<F: Future> Instrumented<F> {
    /// Polls the future, with whose output the task ends as `ending` says.
    #[inline]
    pub(super) fn poll_until(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        ending: impl FnOnce(&F::Output) -> Ending,
    ) -> Poll<F::Output> {
        let this = self.project();
        let output = ready!(this.task.poll(this.future, cx));
        this.task.ends(ending(&output));
        this.task.finish();
        Poll::Ready(output)
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_until(cx, |_| Ending::Completed)
    }
}
