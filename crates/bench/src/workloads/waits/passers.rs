//! `wake/NAME`: 32 tasks on a current-thread tokio runtime without drivers, each of which wakes the
//! next one by a waker that the next one has left.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use await_tree::{Config, Registry};
use dormouse::events::Mode;
use dormouse::{Event, Group};
use dormouse_waits::{TaskWaits, Waiting, Who};
use tokio_metrics::TaskMonitor;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;
use crate::workloads::poll::tasks::runtime;

/// Tasks on the runtime.
pub(crate) const TASKS: usize = 32;

thread_local! {
    static COURSE: Course = const { Course::new() };
}

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "bare", || Ok(()), |_, task| task);
    row(bench, "asleep", || Ok(()), Timed::new);
    row(bench, "times", || Ok(Waiting::start()?), Timed::new);
    let group = Group::new("bench waits");
    let counting = move || Ok(group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?);
    row(bench, "account", counting, move |_, task| group.instrument(task));
    let both = move || Ok((counting()?, Waiting::start()?));
    row(bench, "account-times", both, move |_, task| group.instrument(task));
    let watched = move || Ok((counting()?, dormouse::long_polls(Duration::from_millis(10))?));
    row(bench, "account-watched", watched, move |_, task| group.instrument(task));
    let monitor = TaskMonitor::new();
    row(bench, "tokio-metrics", || Ok(()), move |_, task| monitor.instrument(task));
    let registry = Registry::new(Config::default());
    row(bench, "await-tree", || Ok(()), move |_, task| registry.register_anonymous("task").instrument(task));
}

/// Adds a row whose tasks are wrapped by `wrap`, while the result of `ready` is held.
fn row<F, H>(
    bench: &mut Bench,
    name: &str,
    ready: impl Fn() -> Result<H, Failure> + 'static,
    wrap: impl Fn(u64, Passer) -> F + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let spec = Spec::new(format!("wake/{name}"), "ns").per("poll").cpu().with("tasks", TASKS);
    let Some(runtime) = bench.need(spec.clone(), runtime()) else { return };
    bench.per_iteration(spec, move |polls| {
        let _held = ready()?;
        let each = polls.div_ceil(TASKS as u64).max(4);
        COURSE.with(|course| course.begin(each * TASKS as u64));
        runtime.block_on(async {
            let tasks: Vec<_> =
                (0..TASKS).map(|place| tokio::spawn(wrap(place as u64 + 1, Passer { place }))).collect();
            for task in tasks {
                task.await?;
            }
            Ok::<_, Failure>(())
        })?;
        let (took, polled) = COURSE.with(Course::end);
        // Calibration requests fewer polls than there are; scaling corrects that.
        Ok(Duration::from_nanos((took as f64 * polls as f64 / polled as f64) as u64))
    });
}

/// The polls of one sample, and the wakers that tasks have left.
struct Course {
    left: Cell<u64>,
    polls: Cell<u64>,
    begun: Cell<u64>,
    ended: Cell<u64>,
    wakers: RefCell<[Option<Waker>; TASKS]>,
}

impl Course {
    const fn new() -> Self {
        Self {
            left: Cell::new(0),
            polls: Cell::new(0),
            begun: Cell::new(0),
            ended: Cell::new(0),
            wakers: RefCell::new([const { None }; TASKS]),
        }
    }

    fn begin(&self, polls: u64) {
        self.left.set(polls);
        self.polls.set(polls);
        self.begun.set(0);
    }

    /// How long the polls took, and how many they were.
    fn end(&self) -> (u64, u64) {
        (self.ended.get() - self.begun.get(), self.polls.get())
    }
}

/// A task that wakes the next one, and waits for the one before.
pub(crate) struct Passer {
    place: usize,
}

impl Future for Passer {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        COURSE.with(|course| {
            let left = course.left.get();
            if course.begun.get() == 0 {
                course.begun.set(thread_cpu_ns());
            }
            let mut wakers = course.wakers.borrow_mut();
            if left == 0 {
                wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
                return Poll::Ready(());
            }
            course.left.set(left - 1);
            if left == 1 {
                course.ended.set(thread_cpu_ns());
            }
            if let Some(waker) = wakers[(self.place + 1) % TASKS].take() {
                waker.wake();
            }
            wakers[self.place] = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// A future with times, and without an account.
pub(crate) struct Timed<F> {
    future: F,
    who: Who,
    waits: TaskWaits,
}

impl<F> Timed<F> {
    pub(crate) fn new(task: u64, future: F) -> Self {
        let who = Who { task, group: 1 };
        Self { future, who, waits: TaskWaits::begun(who) }
    }
}

impl<F: Future + Unpin> Future for Timed<F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, who, waits } = &mut *self;
        waits.poll(*who, cx, |cx| Pin::new(future).poll(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_poll_is_counted_and_all_tasks_end() {
        COURSE.with(|course| course.begin(1000));
        runtime().unwrap().block_on(async {
            let tasks: Vec<_> = (0..TASKS).map(|place| tokio::spawn(Passer { place })).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let (took, polls) = COURSE.with(Course::end);
        assert!(took > 0 && polls == 1000, "{took} ns for {polls}");
    }
}
