//! Taking the current group along with work.

use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use crate::core::group::Group;
#[cfg(feature = "rayon")]
use crate::core::task::Entered;
use crate::core::task::{Task, poll_to_its_end};
use crate::core::ungrouped;

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
/// task of its own. Outside of any group the future is not charged, and `dormouse doctor` reports
/// the call.
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
#[track_caller]
pub fn inherit<F: Future>(future: F) -> Inherited<F> {
    Inherited { future: Some(future), task: here().map(Group::task) }
}

/// The group that work inherits which is handed on here.
pub(super) fn current() -> Option<Group> {
    #[cfg(feature = "tokio")]
    if super::blocking::is_current() {
        return None;
    }
    Group::current()
}

/// [`current`], where a call that finds none is counted. In a runtime whose work is all
/// instrumented it is not: there such calls are the way to say that nobody pays.
#[track_caller]
fn here() -> Option<Group> {
    let group = current();
    if group.is_none() && !dormouse_events::is_lazy() {
        ungrouped::count(Location::caller());
    }
    group
}

impl<F> Inherited<F> {
    /// A future that is this task, whichever group is current here.
    #[cfg(feature = "tokio")]
    pub(super) fn of(task: Task, future: F) -> Self {
        Self { future: Some(future), task: Some(task) }
    }

    /// The future, which the caller's caller spawns as a whole.
    #[cfg(feature = "tokio")]
    #[track_caller]
    pub(super) fn spawned(mut self) -> Self {
        if let Some(task) = &mut self.task {
            task.spawns_at(Location::caller());
        }
        self
    }

    /// The root future of a runtime. Most are in no group, and that is no fault to report.
    #[cfg(feature = "tokio")]
    pub(super) fn root(future: F) -> Self {
        Self { future: Some(future), task: current().map(Group::task) }
    }

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
            let output = ready!(task.poll(this.future, cx));
            task.finish();
            return Poll::Ready(output);
        }
        // A lazy thread has kept the task before it.
        dormouse_events::park();
        poll_to_its_end(this.future, cx)
    }
}

/// Charges the closure to the group that is current now, on whichever thread it runs, as a task of
/// its own, which also pays for the destructors of the captured values. Outside of any group the
/// closure is not charged, and `dormouse doctor` reports the call.
///
/// ```
/// use dormouse::{Group, inherit_fn};
///
/// let work = Group::new("report").scope(|| inherit_fn(|| Group::current().map(Group::name)));
/// assert_eq!(std::thread::spawn(work).join().unwrap(), Some("report"));
/// ```
#[track_caller]
pub fn inherit_fn<F: FnOnce() -> T, T>(f: F) -> impl FnOnce() -> T {
    let work = Work { f: Some(f), task: here().map(Group::task) };
    move || work.run()
}

/// [`inherit_fn`] for calls of this library's, which are no places of the program.
#[cfg(feature = "tokio")]
pub(super) fn inherit_fn_within<F: FnOnce() -> T, T>(f: F) -> impl FnOnce() -> T {
    let work = Work { f: Some(f), task: current().map(Group::task) };
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

/// Carries the current group into closures of any shape. Where no group is current, there is none
/// to carry, and `dormouse doctor` reports the call.
///
/// ```
/// use dormouse::Group;
///
/// let on_page = Group::new("report").scope(|| {
///     let carried = dormouse::carry();
///     move |page: u32| carried.run(|| (page, Group::current().unwrap().name()))
/// });
/// assert_eq!(on_page(7), (7, "report")); // wherever it is called
/// ```
#[track_caller]
pub fn carry() -> Carried {
    Carried(here())
}

impl Carried {
    /// [`carry`] that is not counted where no group is current.
    #[cfg(feature = "rayon")]
    pub(super) fn here() -> Self {
        Self(current())
    }

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

    /// A callback that is called once, by a library, and returns a future: both are one task of the
    /// group, wherever they run. For the handlers of upgraded connections:
    ///
    /// ```
    /// use dormouse::{Group, carry};
    /// # fn on_upgrade<F: Future>(callback: impl FnOnce(u32) -> F) -> F { callback(7) }
    ///
    /// let chat = async |socket: u32| (socket, Group::current());
    /// // Within the handler, of whichever framework:
    /// let upgraded = Group::new("GET /chat").scope(|| on_upgrade(carry().callback(chat)));
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # assert_eq!(runtime.block_on(upgraded), (7, Some(Group::new("GET /chat"))));
    /// ```
    pub fn callback<A, F, T>(self, f: F) -> impl FnOnce(A) -> Inherited<T>
    where
        F: FnOnce(A) -> T,
        T: Future,
    {
        let mut task = self.0.map(Group::connection);
        move |argument| {
            let future = match &mut task {
                Some(task) => task.run(|| f(argument)),
                None => f(argument),
            };
            Inherited { future: Some(future), task }
        }
    }

    /// Makes the thread a part of the group until the guard is dropped.
    #[cfg(feature = "rayon")]
    pub(crate) fn enter(self) -> Option<Entered> {
        self.0.map(|group| Task::part_of(group).into_entered())
    }

    /// The group, or `None`.
    pub fn group(self) -> Option<Group> {
        self.0
    }
}
