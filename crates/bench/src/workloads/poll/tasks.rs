//! `poll/NAME`: 32 tasks on a current-thread tokio runtime without drivers, which do nothing but
//! yield.
//!
//! A sample is timed by the thread's CPU time, from the first poll of the first task to the last
//! poll of the last one, so that neither spawning nor starting the runtime is part of it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dormouse::events::Mode;
use dormouse::{Event, Group};
use tokio::runtime::{Builder, Runtime};
use tokio_metrics::TaskMonitor;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::Spec;
use crate::runner::Failure;

/// Tasks on the runtime.
pub(crate) const TASKS: u64 = 32;

/// Adds the peers: `tokio-metrics` and `clock_gettime`.
pub(crate) fn peers(bench: &mut Bench) {
    let monitor = TaskMonitor::new();
    row(bench, spec("tokio-metrics"), || Ok(()), move |_, task| monitor.instrument(task));
    let charged = Arc::new(AtomicU64::new(0));
    row(
        bench,
        spec("clock_gettime"),
        || Ok(()),
        move |_, task| Clocked { future: task, charged: Arc::clone(&charged) },
    );
}

/// Adds `poll/bare`.
pub(crate) fn bare(bench: &mut Bench) {
    row(bench, spec("bare"), || Ok(()), |_, task| task);
}

/// Adds a row of tasks that are charged to a group whose CPU time is counted, after `ready`.
pub(crate) fn charged(bench: &mut Bench, name: &str, ready: impl Fn() -> Result<(), Failure> + 'static) {
    let group = Group::new("bench poll");
    let ready = move || {
        ready()?;
        Ok(group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?)
    };
    row(bench, spec(name), ready, move |_, task| group.instrument(task));
}

/// `poll/NAME`.
pub(crate) fn spec(name: &str) -> Spec {
    Spec::new(format!("poll/{name}"), "ns").per("poll").cpu().with("tasks", TASKS)
}

/// Adds a row whose tasks, by their number, are wrapped by `wrap`, while the result of `ready` is
/// held.
pub(crate) fn row<F, H>(
    bench: &mut Bench,
    spec: Spec,
    ready: impl Fn() -> Result<H, Failure> + 'static,
    wrap: impl Fn(u64, Yielder) -> F + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Some(runtime) = bench.need(spec.clone(), runtime()) else { return };
    bench.per_iteration(spec, move |polls| {
        let _held = ready()?;
        let (took, polled) = yield_all(&runtime, polls, &wrap)?;
        // Calibration requests fewer polls than there are tasks; scaling corrects that.
        Ok(Duration::from_nanos((took.as_nanos() as f64 * polls as f64 / polled as f64) as u64))
    });
}

/// A current-thread runtime without drivers.
pub(crate) fn runtime() -> Result<Runtime, String> {
    Builder::new_current_thread().build().map_err(|error| format!("cannot build a tokio runtime: {error}"))
}

/// Has the tasks make about `polls` polls together: how long they took, and how many there were.
fn yield_all<F>(
    runtime: &Runtime,
    polls: u64,
    wrap: impl Fn(u64, Yielder) -> F,
) -> Result<(Duration, u64), Failure>
where
    F: Future<Output = ()> + Send + 'static,
{
    let each = polls.div_ceil(TASKS).max(2);
    let course = Arc::new(Course {
        begin: AtomicU64::new(u64::MAX),
        end: AtomicU64::new(0),
        running: AtomicU32::new(TASKS as u32),
    });
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let yielder = Yielder { polls: 0, last: each, course: Arc::clone(&course) };
                tokio::spawn(wrap(task, yielder))
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        Ok::<_, Failure>(())
    })?;
    let nanos = course.end.load(Ordering::Relaxed) - course.begin.load(Ordering::Relaxed);
    Ok((Duration::from_nanos(nanos), each * TASKS))
}

/// When the polling began and ended, by the CPU time of the one thread.
#[derive(Debug)]
struct Course {
    begin: AtomicU64,
    end: AtomicU64,
    running: AtomicU32,
}

/// A task that wakes itself and yields.
#[derive(Debug)]
pub(crate) struct Yielder {
    polls: u64,
    last: u64,
    course: Arc<Course>,
}

impl Future for Yielder {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.polls += 1;
        if self.polls == 1 {
            self.course.begin.fetch_min(thread_cpu_ns(), Ordering::Relaxed);
        }
        if self.polls < self.last {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.course.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.course.end.store(thread_cpu_ns(), Ordering::Relaxed);
        }
        Poll::Ready(())
    }
}

/// CPU time per task as a service measures it that has nothing but the kernel's clock.
#[derive(Debug)]
struct Clocked<F> {
    future: F,
    charged: Arc<AtomicU64>,
}

impl<F: Future + Unpin> Future for Clocked<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let before = thread_cpu_ns();
        let result = Pin::new(&mut self.future).poll(cx);
        let used = thread_cpu_ns() - before;
        self.charged.fetch_add(used, Ordering::Relaxed);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_makes_its_polls_and_is_timed() {
        let runtime = runtime().unwrap();
        let (took, polls) = yield_all(&runtime, 3200, |_, task| task).unwrap();
        assert_eq!(polls, 3200);
        assert!(took > Duration::ZERO);
    }

    #[test]
    fn the_clock_wrapper_charges_its_futures_time() {
        let charged = Arc::new(AtomicU64::new(0));
        let runtime = runtime().unwrap();
        let sum = Arc::clone(&charged);
        yield_all(&runtime, 3200, move |_, task| Clocked { future: task, charged: Arc::clone(&sum) })
            .unwrap();
        assert!(charged.load(Ordering::Relaxed) > 0);
    }
}
