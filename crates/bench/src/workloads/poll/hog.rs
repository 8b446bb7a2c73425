//! Whether a group is charged for the CPU time of its tasks, and for nothing else.
//!
//! On a current-thread runtime an instrumented group works in short polls, next to a *hog*, which
//! is not instrumented and uses many times more CPU: a task (`attribution/hog`), or a future around
//! each instrumented one, polled before and after it in the same poll (`attribution/hog-outer`).
//! Accounting that left the last task's context current until the next one comes would charge the
//! hog to the group.
//!
//! The work reads the kernel's thread clock around each piece, so its own CPU time is known. A
//! value is the distance of the group's charge from that, in percent of the hog's time.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use dormouse::events::{Mode, set_lazy};
use dormouse::{Event, Group};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use crate::bench::Bench;
use crate::clocks::thread_cpu_ns;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Instrumented tasks.
const TASKS: usize = 4;

/// CPU time of one piece of instrumented work, in nanoseconds.
const WORK: u64 = 50_000;

/// CPU time of one piece of the hog's work, in nanoseconds.
const HOG: u64 = 1_000_000;

/// CPU time by the kernel's clock.
type Used = Arc<AtomicU64>;

/// Where the hog is: the tasks of one turn.
type Start = fn(Group, u32, &Used, &Used) -> Vec<JoinHandle<()>>;

/// Adds the hog beside the group, and around each of its tasks.
pub(crate) fn rows(bench: &mut Bench) {
    row(bench, "attribution/hog", beside, false);
    row(bench, "attribution/hog-outer", around, false);
}

/// Adds the hog beside the group on a thread of either kind; on a lazy thread a hog is charged.
pub(crate) fn rows_by_thread(bench: &mut Bench) {
    row(bench, "attribution/hog/eager", beside, false);
    row(bench, "attribution/hog/lazy", beside, true);
}

fn row(bench: &mut Bench, name: &str, start: Start, lazy: bool) {
    let polls = bench.pick(6, 4);
    let spec = Spec::new(name, "%").better(Better::Lower).with("tasks", TASKS).with("polls", polls);
    let group = Group::new("bench attribution");
    bench.sample(spec.with("work_ns", WORK).with("hog_ns", HOG), move || {
        set_lazy(lazy);
        let off = off_by(group, polls, start);
        set_lazy(false);
        off
    });
}

/// How much the group is charged wrongly, in percent of the hog's time.
fn off_by(group: Group, polls: u32, start: Start) -> Result<f64, Failure> {
    let (work, hog) = (Used::default(), Used::default());
    let _counting = group.start_counting(&[Event::TASK_CLOCK], Mode::GroupExact)?;
    let before = group.read().cpu;
    Builder::new_current_thread().build()?.block_on(async {
        for task in start(group, polls, &work, &hog) {
            task.await?;
        }
        Ok::<_, Failure>(())
    })?;
    let charged = group.read().cpu.saturating_sub(before).as_nanos() as f64;
    let (work, hog) = (work.load(Ordering::Relaxed) as f64, hog.load(Ordering::Relaxed) as f64);
    Ok(100.0 * (charged - work).abs() / hog)
}

/// The hog is a task beside each of the group.
fn beside(group: Group, polls: u32, work: &Used, hog: &Used) -> Vec<JoinHandle<()>> {
    let tasks = (0..TASKS).flat_map(|_| {
        let inside = tokio::spawn(group.instrument(burner(polls, WORK, Arc::clone(work))));
        [inside, tokio::spawn(burner(polls, HOG, Arc::clone(hog)))]
    });
    tasks.collect()
}

/// The hog is a future around each instrumented one.
fn around(group: Group, polls: u32, work: &Used, hog: &Used) -> Vec<JoinHandle<()>> {
    let tasks = (0..TASKS).map(|_| {
        let inner = group.instrument(burner(polls, WORK, Arc::clone(work)));
        let hog = Arc::clone(hog);
        tokio::spawn(async move {
            let mut inner = pin!(inner);
            poll_fn(|cx| {
                burn(HOG / 2, &hog);
                let result = inner.as_mut().poll(cx);
                burn(HOG / 2, &hog);
                result
            })
            .await;
        })
    });
    tasks.collect()
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

/// Uses about `nanos` of CPU time, and adds the time by the kernel's clock to `used`.
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
    fn a_burn_lasts_long_enough_and_is_counted() {
        let used = AtomicU64::new(0);
        let before = thread_cpu_ns();
        burn(200_000, &used);
        let by_clock = thread_cpu_ns() - before;
        let said = used.load(Ordering::Relaxed);
        assert!((200_000..=by_clock).contains(&said), "{said} of {by_clock}");
    }
}
