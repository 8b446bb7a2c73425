//! The current group, and work that takes it along.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::group::Group;
use crate::instrument::{Instrumented, Task};

impl Group {
    /// The innermost group that is current on this thread.
    ///
    /// # Cost
    ///
    /// A look at a thread-local and at a table. No lock, unless contexts of the program's own have taken so many numbers
    /// that the group's is past [`MAX_GROUPS`](crate::MAX_GROUPS).
    pub fn current() -> Option<Self> {
        Self::by_id(dormouse_events::current_context())
    }

    /// Charges what `f` does on this thread: a task of the group that begins and ends with it.
    pub fn scope<T>(self, f: impl FnOnce() -> T) -> T {
        self.task().run(f)
    }

    /// A task of the group that is run by hand: for fibers, executors and callbacks.
    ///
    /// Whoever switches fibers runs each stretch from one suspension to the next inside [`Task::run`], on
    /// whatever thread that is; between two, nothing is charged to the group. (Who sees every switch of its thread
    /// need not come back in between: [`Task::switch_to`].)
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
    /// `.await`: the group that was entered inside ends with the stretch.
    pub fn task(self) -> Task {
        self.start_task()
    }
}

pin_project! {
    /// A future that is charged to the group it was made in; see [`inherit()`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Inherited<F> {
        #[pin]
        future: Inner<F>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = InnerProjection]
    enum Inner<F> {
        Charged { #[pin] future: Instrumented<F> },
        Plain { #[pin] future: F },
    }

    impl<F> PinnedDrop for Inner<F> {
        fn drop(this: Pin<&mut Self>) {
            if let InnerProjection::Plain { .. } = this.project() {
                dormouse_events::park();
            }
        }
    }
}

/// Charges the future to the group that is current now, wherever it is polled and dropped: a task of its
/// own. Outside any group it is as it was, and is charged to none.
///
/// For futures that leave the task they were made in; those that are polled inside it (`join!`, `select!`,
/// `FuturesUnordered`) are charged to its group anyway.
///
/// ```
/// use dormouse::{Group, inherit};
///
/// let work = Group::new("orders").scope(|| inherit(async { Group::current().unwrap().name() }));
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// assert_eq!(runtime.block_on(work), "orders");
/// ```
pub fn inherit<F: Future>(future: F) -> Inherited<F> {
    let future = match Group::current() {
        Some(group) => Inner::Charged { future: group.instrument(future) },
        None => Inner::Plain { future },
    };
    Inherited { future }
}

impl<F> Inherited<F> {
    /// The group that is charged, if there is one.
    pub fn group(&self) -> Option<Group> {
        match &self.future {
            Inner::Charged { future } => Some(future.group()),
            Inner::Plain { .. } => None,
        }
    }
}

impl<F: Future> Future for Inherited<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project().future.project() {
            InnerProjection::Charged { future } => future.poll(cx),
            InnerProjection::Plain { future } => {
                // A lazy thread has kept the task before it.
                dormouse_events::park();
                future.poll(cx)
            }
        }
    }
}

/// Charges the closure to the group that is current now, on whichever thread it runs: a task of its own,
/// which also pays for the destructors of what it has captured. Outside any group it is as it was.
///
/// ```
/// use dormouse::{Group, inherit_fn};
///
/// let who = || Group::current().map(Group::name);
/// let (here, there) = Group::new("report").scope(|| rayon::join(who, inherit_fn(who)));
/// assert_eq!(there, Some("report"));
/// # let _ = here;
/// ```
pub fn inherit_fn<F: FnOnce() -> T, T>(f: F) -> impl FnOnce() -> T {
    let work = Work { f: Some(f), task: Group::current().map(Group::task) };
    move || work.run()
}

/// A closure and the task that pays for it, also when it is dropped unrun.
struct Work<F> {
    // `None` once run or dropped, which happens inside the group.
    f: Option<F>,
    task: Option<Task>,
}

impl<F> Work<F> {
    fn run<T>(mut self) -> T
    where
        F: FnOnce() -> T,
    {
        let f = self.f.take().expect("taken here and in drop only, and run takes self");
        let Some(task) = &mut self.task else {
            dormouse_events::park();
            return f();
        };
        task.run(f)
    }
}

impl<F> Drop for Work<F> {
    fn drop(&mut self) {
        if let (Some(task), Some(f)) = (&mut self.task, self.f.take()) {
            task.run_drop(|| drop(f));
        }
    }
}

/// The group that was current where [`carry`] was called, or none: to be taken into closures that run many
/// times, on many threads, or with arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried(Option<Group>);

/// Carries the current group into closures of any shape.
///
/// ```
/// use dormouse::Group;
/// use rayon::prelude::*;
///
/// let sum: u64 = Group::new("report").scope(|| {
///     let carried = dormouse::carry();
///     (0..100_u64).into_par_iter().map(|n| carried.run(|| n * n)).sum()
/// });
/// # assert_eq!(sum, 328_350);
/// ```
pub fn carry() -> Carried {
    Carried(Group::current())
}

impl Carried {
    /// Runs `f` in the group: a task that begins and ends with it.
    #[inline]
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        if let Some(group) = self.0 {
            return group.scope(f);
        }
        // Not the group's that a lazy thread may still charge.
        dormouse_events::park();
        f()
    }

    /// The group.
    pub fn group(self) -> Option<Group> {
        self.0
    }
}
