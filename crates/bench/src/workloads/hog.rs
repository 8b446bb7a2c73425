//! Whether a group is charged for what its tasks used, and for nothing else.
//!
//! On a current-thread runtime an instrumented group works in short polls, next to a *hog* that nobody
//! instruments and that uses many times as much CPU: a task of its own (`attribution/hog`), or a future
//! around each instrumented one, polled before and after it in the same poll (`attribution/hog-outer`).
//! Accounting that lets the last task's context stay until the next one comes would charge the hog to the
//! group.
//!
//! The work knows by the kernel's thread clock, read around each piece, what it used itself. The value is
//! the distance of the group's charge from that, in percent of what the hog used.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use dormouse::events::{Mode, set_lazy};
use dormouse::{Event, Group};

use super::Settings;
use super::poll::runtime;
use crate::clocks::thread_cpu_ns;
use crate::runner::{Case, Failure, Spec};

pub(super) const NOTE: &str = "attribution rows: 100 * |the group's charge - what its work used by \
    CLOCK_THREAD_CPUTIME_ID, read around each piece| / what the hog used by the same clock; what dormouse and \
    the runtime need for a poll is in the difference";

/// Instrumented tasks.
const TASKS: usize = 4;

/// CPU time of one piece of instrumented work, in nanoseconds.
const WORK: u64 = 50_000;

/// CPU time of one piece of the hog's work, in nanoseconds.
const HOG: u64 = 1_000_000;

/// CPU time by the kernel's clock.
type Used = Arc<AtomicU64>;

/// The cases.
pub(super) fn cases(settings: &Settings) -> Vec<Case<'static>> {
    let polls = if settings.quick { 4 } else { 6 };
    let spec = |name| {
        Spec::new(name, "%")
            .with("tasks", TASKS)
            .with("polls", polls)
            .with("work_ns", WORK)
            .with("hog_ns", HOG)
    };
    let group = Group::new("bench attribution");
    vec![
        Case::new(vec![spec("attribution/hog")], move || {
            off_by(group, |work, hog| beside(group, polls, work, hog))
        }),
        Case::new(vec![spec("attribution/hog-outer")], move || {
            off_by(group, |work, hog| around(group, polls, work, hog))
        }),
    ]
}

/// The hog beside the group, as threads are by default, and on a lazy one, where it has no place.
pub(super) fn ways(settings: &Settings) -> Vec<Case<'static>> {
    let polls = if settings.quick { 4 } else { 6 };
    let group = Group::new("bench attribution");
    [("attribution/hog/eager", false), ("attribution/hog/lazy", true)]
        .into_iter()
        .map(|(name, lazy)| {
            let spec = Spec::new(name, "%").with("tasks", TASKS).with("polls", polls);
            Case::new(vec![spec.with("work_ns", WORK).with("hog_ns", HOG)], move || {
                set_lazy(lazy);
                let off = off_by(group, |work, hog| beside(group, polls, work, hog));
                set_lazy(false);
                off
            })
        })
        .collect()
}

/// What the group is charged wrongly while `run` runs, in percent of the hog's time.
fn off_by(group: Group, run: impl FnOnce(&Used, &Used) -> Result<(), Failure>) -> Result<Vec<f64>, Failure> {
    let (work, hog) = (Used::default(), Used::default());
    let _counting = group.count(&[Event::TASK_CLOCK], Mode::GroupExact)?;
    let before = group.stat().cpu;
    run(&work, &hog)?;
    let charged = group.stat().cpu.saturating_sub(before).as_nanos() as f64;
    let (work, hog) = (work.load(Ordering::Relaxed) as f64, hog.load(Ordering::Relaxed) as f64);
    Ok(vec![100.0 * (charged - work).abs() / hog])
}

/// The hog is a task beside those of the group.
fn beside(group: Group, polls: u32, work: &Used, hog: &Used) -> Result<(), Failure> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            tasks.push(tokio::spawn(group.instrument(burner(polls, WORK, Arc::clone(work)))));
            tasks.push(tokio::spawn(burner(polls, HOG, Arc::clone(hog))));
        }
        for task in tasks {
            task.await?;
        }
        Ok(())
    })
}

/// The hog is a future around each instrumented one.
fn around(group: Group, polls: u32, work: &Used, hog: &Used) -> Result<(), Failure> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let inner = group.instrument(burner(polls, WORK, Arc::clone(work)));
            let hog = Arc::clone(hog);
            tasks.push(tokio::spawn(async move {
                let mut inner = pin!(inner);
                poll_fn(|cx| {
                    burn(HOG / 2, &hog);
                    let result = inner.as_mut().poll(cx);
                    burn(HOG / 2, &hog);
                    result
                })
                .await;
            }));
        }
        for task in tasks {
            task.await?;
        }
        Ok(())
    })
}

/// A future that uses `nanos` of CPU time in each of its polls.
fn burner(polls: u32, nanos: u64, used: Used) -> impl Future<Output = ()> + Send + 'static {
    let mut left = polls;
    poll_fn(move |cx| {
        burn(nanos, &used);
        left -= 1;
        if left == 0 {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Uses about `nanos` of CPU time, and adds what it was by the kernel's clock to `used`.
fn burn(nanos: u64, used: &AtomicU64) {
    let begin = thread_cpu_ns();
    let mut x = 1_u64;
    let spent = loop {
        for _ in 0..1000 {
            x = black_box(x.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let spent = thread_cpu_ns() - begin;
        if spent >= nanos {
            break spent;
        }
    };
    used.fetch_add(spent, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burn_uses_at_least_its_time_and_says_how_much() {
        let used = AtomicU64::new(0);
        let before = thread_cpu_ns();
        burn(200_000, &used);
        let by_clock = thread_cpu_ns() - before;
        let said = used.load(Ordering::Relaxed);
        assert!((200_000..=by_clock).contains(&said), "{said} of {by_clock}");
    }
}
