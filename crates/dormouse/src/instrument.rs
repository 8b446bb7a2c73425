//! Tasks of a group: instrumented futures and scopes.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use dormouse_events::{Event, Kind, Switched, TaskCounts};
use pin_project_lite::pin_project;

use crate::group::Group;

/// One task of a group, counted from its start to its drop; see [`Group::task`].
#[derive(Debug)]
#[must_use = "the task ends when it is dropped"]
pub struct Task {
    group: Group,
    task: dormouse_events::Task,
}

impl Task {
    pub(crate) fn new(group: Group, task: dormouse_events::Task) -> Self {
        Self { group, task }
    }

    /// The number that records show; never reused in a process.
    pub fn id(&self) -> u64 {
        self.task.id()
    }

    /// The group that is charged.
    pub fn group(&self) -> Group {
        self.group
    }

    /// Charges what `f` does on this thread, nested groups excepted, and counts an entry.
    ///
    /// When it returns or unwinds, nothing that was entered inside is current any more.
    #[inline]
    pub fn run<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let _inside = self.enter(Kind::Poll);
        f()
    }

    /// This thread goes on with the task, whatever was current on it, until the next switch: for who sees *every* switch
    /// of its thread, as a scheduler of fibers. Between two tasks of one group nothing is read. The task may be
    /// switched to on another thread once this one has gone on to something else; with [`idle`] to nothing.
    ///
    /// ```
    /// # use dormouse::Group;
    /// let group = Group::new("fibers");
    /// let (mut one, mut other) = (group.task(), group.task());
    /// one.switch_to(); // … run the one until it suspends,
    /// other.switch_to(); // the other until it suspends: no counter is read,
    /// one.switch_to(); // and the one again.
    /// dormouse::idle(); // None of them runs now; the group is charged.
    /// # assert_eq!((Group::current(), group.stat().alive), (None, 2));
    /// ```
    ///
    /// Guards of [`Group::enter`] that the previous task has left on the thread are as if dropped. What is current when a
    /// task is dropped stays so until the next switch.
    #[inline]
    pub fn switch_to(&mut self) -> Switched {
        dormouse_events::switch(Some(&mut self.task))
    }

    /// A future that is this task; [`Group::instrument`] for who wants something of the task first:
    ///
    /// ```
    /// # use dormouse::{Group, Event, events::Mode};
    /// # let counting = Group::new("import").count(&[Event::TASK_CLOCK], Mode::TaskExact)?;
    /// let mut task = Group::new("import").task();
    /// let own = task.shared_counts();
    /// let import = task.instrument(async move {
    ///     // …
    ///     own.read() // What this task has counted by the beginning of this poll.
    /// });
    /// # drop(import);
    /// # Ok::<(), dormouse::events::Error>(())
    /// ```
    pub fn instrument<F: Future>(self, future: F) -> Instrumented<F> {
        Instrumented::new(self, future)
    }

    /// What the task itself has counted, in a group that is counted in [`Mode::TaskExact`](dormouse_events::Mode): up to
    /// the end of its last poll or run. Its group has that, and what is pending, in [`Group::counts`].
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.task.counts()
    }

    /// The same for others: to be read on any thread, also when the task is gone.
    ///
    /// # Cost
    ///
    /// An allocation, once for each task.
    pub fn shared_counts(&mut self) -> TaskCounts {
        self.task.shared_counts()
    }

    /// [`Task::run`] for a destructor, which is no entry.
    pub(crate) fn run_drop(&mut self, f: impl FnOnce()) {
        let _inside = self.enter(Kind::Drop);
        f();
    }

    #[inline]
    pub(crate) fn enter(&mut self, kind: Kind) -> dormouse_events::Entered {
        dormouse_events::enter(&mut self.task, kind)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.group.finish_task(self.id());
    }
}

/// This thread runs no task from now on; charges the one that it has run. What [`Task::switch_to`] begins, this ends.
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
    // In this order: the task ends after its last switch.
    _switch: dormouse_events::Entered,
    _task: Task,
}

impl Entered {
    pub(crate) fn new(switch: dormouse_events::Entered, task: Task) -> Self {
        Self { _switch: switch, _task: task }
    }
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
            let mut this = this.project();
            // Gone already if it ran to its end.
            if this.future.is_some() {
                let _inside = this.task.enter(Kind::Drop);
                this.future.set(None);
            }
        }
    }
}

impl<F> Instrumented<F> {
    pub(crate) fn new(task: Task, future: F) -> Self {
        Self { future: Some(future), task }
    }

    /// The group that is charged.
    pub fn group(&self) -> Group {
        self.task.group
    }

    /// What this task itself has counted; see [`Task::counts`].
    pub fn counts(&self) -> Vec<(Event, u64)> {
        self.task.counts()
    }

    /// The same for others; see [`Task::shared_counts`].
    pub fn shared_counts(&mut self) -> TaskCounts {
        self.task.shared_counts()
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let _inside = this.task.enter(Kind::Poll);
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
