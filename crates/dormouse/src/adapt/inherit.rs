//! Taking the current group along with work.

use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::core::group::Group;
use crate::core::task::{Task, poll_to_its_end};

pin_project! {
    /// A future that is charged to the group in which it was made; see [`inherit()`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Inherited<F> {
        // `None` once dropped, which happens inside the group.
        #[pin]
        future: Option<F>,
        task: Option<Task>,
    }

    impl<F> PinnedDrop for Inherited<F> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            match this.task {
                Some(task) => task.drop_future(this.future),
                None => dormouse_events::park(),
            }
        }
    }
}

/// Charges the future to the group that is current now, wherever it is polled and dropped, as a
/// task of its own. Outside of any group the future is not charged.
///
/// For futures that leave the task they were made in. Futures that are polled inside it (`join!`,
/// `select!`, `FuturesUnordered`) are charged to its group anyway; [`part`](crate::part()) shows
/// where those of a collection wait.
///
/// ```
/// use dormouse::{Group, inherit};
///
/// let work = Group::new("orders").scope(|| inherit(async { Group::current().unwrap().name() }));
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// assert_eq!(runtime.block_on(work), "orders");
/// ```
pub fn inherit<F: Future>(future: F) -> Inherited<F> {
    Inherited { future: Some(future), task: Group::current().map(Group::task) }
}

impl<F> Inherited<F> {
    /// The group that is charged, or `None`.
    pub fn group(&self) -> Option<Group> {
        self.task.as_ref().map(Task::group)
    }
}

impl<F: Future> Future for Inherited<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if let Some(task) = this.task {
            return task.poll(this.future, cx);
        }
        // A lazy thread has kept the task before it.
        dormouse_events::park();
        poll_to_its_end(this.future, cx)
    }
}

/// Charges the closure to the group that is current now, on whichever thread it runs, as a task of
/// its own, which also pays for the destructors of the captured values. Outside of any group the
/// closure is not charged.
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

/// A closure and the task that pays for it, also if it is dropped unrun.
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

/// The group that was current where [`carry`] was called, or none: for closures that run many
/// times, on many threads, or with arguments.
///
/// ```
/// use dormouse::{Group, carry};
///
/// let carried = Group::new("report").scope(carry);
/// // On any thread, any number of times:
/// assert_eq!(carried.run(Group::current), Some(Group::new("report")));
/// ```
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
            return Task::part_of(group).run(f);
        }
        // A lazy thread may still charge the group before.
        dormouse_events::park();
        f()
    }

    /// The group, or `None`.
    pub fn group(self) -> Option<Group> {
        self.0
    }
}
