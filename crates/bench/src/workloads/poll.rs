//! `bench poll`: what charging each poll of a future to a group costs, and whether the charge is right.
//!
//! 32 tasks on a current-thread tokio runtime without drivers do nothing but yield, so that a poll is as
//! cheap as it gets and what a wrapper adds is as plain as it gets. A sample is timed, by the thread's CPU
//! time, from the first poll of the first task to the last poll of the last one: no spawn, no runtime in
//! it.

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

use super::{Measured, Settings, goal, hog, read};
use crate::clocks::thread_cpu_ns;
use crate::progress::Progress;
use crate::report::{Row, find};
use crate::runner::{Case, Failure, Spec, run as run_cases};
use crate::table::value;

/// Tasks on the runtime.
const TASKS: u64 = 32;

/// Runs the workload.
pub(crate) fn run(settings: &Settings, progress: &mut Progress) -> Measured {
    let plan = settings.plan(100, 6);
    progress.say("calibrating");
    let mut cases = cases(settings);
    cases.push(read::rdtsc(settings));
    cases.push(read::thread_clock(settings));
    cases.push(read::clock_gettime_thread(settings));
    cases.extend(hog::cases(settings));
    let mut measured = Measured::of(run_cases(cases, &plan, progress, |_| false), &plan);
    measured.params.insert("tasks".to_owned(), TASKS.into());
    measured.params.insert("runtime".to_owned(), "tokio current-thread, no drivers".into());
    compare(&mut measured);
    measured
}

/// Rows computed from the measured ones, and what to say of them.
fn compare(measured: &mut Measured) {
    let rows = &measured.rows;
    let bare = find(rows, "poll/bare");
    let mut computed: Vec<Row> = ["dormouse", "tokio-metrics", "clock_gettime"]
        .iter()
        .map(|peer| {
            let row = find(rows, &format!("poll/{peer}"));
            Row::minus(&format!("poll-added/{peer}"), "ns", &row, &bare)
        })
        .collect();
    let rdtsc = find(rows, "read/rdtsc").median;
    let allowed = rdtsc.map(|rdtsc| 2.0 * rdtsc + 30.0);
    let added = &computed[0];
    let notes = &mut measured.notes;
    notes.push(goal(
        &format!("poll/dormouse adds at most 2 read/rdtsc + 30 ns, {} ns in this run", value(allowed)),
        added,
        |x| allowed.is_some_and(|allowed| x <= allowed),
    ));
    for name in ["attribution/hog", "attribution/hog-outer"] {
        let text = format!("{name} within 5 % of the hog's time");
        notes.push(goal(&text, &find(rows, name), |x| x <= 5.0));
    }
    notes.extend(
        [
            "poll rows: CPU time of the one thread for a poll of a task that wakes itself and returns \
             Pending, scheduling included; from the first poll of the first task to the last poll of the \
             last one",
            "poll/clock_gettime reads CLOCK_THREAD_CPUTIME_ID before and after each poll and adds the \
             difference to a shared atomic; poll/tokio-metrics is TaskMonitor::instrument, which measures \
             wall time and wake-ups, so other things than CPU time",
            "poll-added/X: X - poll/bare, of values of the same round",
        ]
        .map(str::to_owned),
    );
    notes.push(hog::NOTE.to_owned());
    measured.rows.append(&mut computed);
}

fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let mut cases = peers(settings);
    cases.insert(1, charged("poll/dormouse", settings, || Ok(())));
    cases
}

/// What polls are compared with.
pub(super) fn peers(settings: &Settings) -> Vec<Case<'static>> {
    let monitor = TaskMonitor::new();
    let used = Arc::new(AtomicU64::new(0));
    vec![
        bare(settings),
        case("poll/tokio-metrics", settings, move |task| monitor.instrument(task)),
        case("poll/clock_gettime", settings, move |task| Clocked {
            future: task,
            charged: Arc::clone(&used),
        }),
    ]
}

/// `poll/bare`.
pub(super) fn bare(settings: &Settings) -> Case<'static> {
    case("poll/bare", settings, |task| task)
}

/// A row of tasks that are charged to a group whose CPU time is counted, after `ready`.
pub(super) fn charged(
    name: &str,
    settings: &Settings,
    ready: impl Fn() -> Result<(), Failure> + 'static,
) -> Case<'static> {
    let group = Group::new("bench poll");
    let ready = move || {
        ready()?;
        Ok(group.count(&[Event::TASK_CLOCK], Mode::GroupExact)?)
    };
    case_in(spec(name), settings, ready, move |_, task| group.instrument(task))
}

/// A row whose tasks are wrapped by `wrap`.
fn case<F>(name: &str, settings: &Settings, wrap: impl Fn(Yielder) -> F + 'static) -> Case<'static>
where
    F: Future<Output = ()> + Send + 'static,
{
    case_in(spec(name), settings, || Ok(()), move |_, task| wrap(task))
}

/// A row of this kind.
pub(super) fn spec(name: &str) -> Spec {
    Spec::new(name, "ns").with("per", "poll").with("clock", "thread CPU time").with("tasks", TASKS)
}

/// A row whose tasks, by their number, are wrapped by `wrap`, while what `ready` gives is held.
pub(super) fn case_in<F, H>(
    spec: Spec,
    settings: &Settings,
    ready: impl Fn() -> Result<H, Failure> + 'static,
    wrap: impl Fn(u64, Yielder) -> F + 'static,
) -> Case<'static>
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            let reason = format!("cannot build a tokio runtime: {error}");
            return Case::unavailable(vec![spec], reason);
        }
    };
    Case::per_iteration(spec, settings.target(), move |polls| {
        let _held = ready()?;
        let (took, polled) = yield_all(&runtime, polls, &wrap)?;
        // Calibration asks for fewer polls than there are tasks; scale, so that it learns the price.
        Ok(Duration::from_nanos((took.as_nanos() as f64 * polls as f64 / polled as f64) as u64))
    })
}

/// A current-thread runtime without drivers.
pub(super) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_current_thread().build()
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
pub(super) struct Yielder {
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

/// What a service does that wants CPU time per task and has nothing but the kernel's clock.
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
    fn every_task_makes_its_polls_and_the_course_is_timed() {
        let runtime = runtime().unwrap();
        let (took, polls) = yield_all(&runtime, 3200, |_, task| task).unwrap();
        assert_eq!(polls, 3200);
        assert!(took > Duration::ZERO);
    }

    #[test]
    fn the_clock_wrapper_charges_what_its_future_used() {
        let charged = Arc::new(AtomicU64::new(0));
        let runtime = runtime().unwrap();
        let sum = Arc::clone(&charged);
        yield_all(&runtime, 3200, move |_, task| Clocked { future: task, charged: Arc::clone(&sum) })
            .unwrap();
        assert!(charged.load(Ordering::Relaxed) > 0);
    }
}
