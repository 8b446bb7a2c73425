//! `read/NAME`: reading very many tasks that wait.

use std::future::{Future, pending};
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use dormouse_waits::Waiting;

use super::passers::Timed;
use crate::bench::Bench;
use crate::row::Spec;
use crate::runner::Failure;

pub(super) type Waiter = Timed<Pin<Box<dyn Future<Output = ()>>>>;

/// Adds the rows.
pub(crate) fn rows(bench: &mut Bench) {
    let tasks = bench.pick(100_000, 10_000);
    row(bench, "living", tasks, || dormouse_waits::living().count());
    row(bench, "groups", tasks, || dormouse_waits::read().len());
}

fn row(bench: &mut Bench, name: &str, tasks: u64, read: fn() -> usize) {
    let spec = Spec::new(format!("read/{name}"), "us").wall().with("tasks", tasks);
    bench.sample(spec, move || {
        let _waiting = Waiting::start()?;
        let _waiters = waiters(tasks);
        let began = Instant::now();
        black_box(read());
        Ok::<_, Failure>(micros(began.elapsed()))
    });
}

fn micros(took: Duration) -> f64 {
    took.as_nanos() as f64 / 1e3
}

/// Tasks that have been polled once, and wait.
pub(super) fn waiters(tasks: u64) -> Vec<Waiter> {
    let mut cx = Context::from_waker(Waker::noop());
    let waiter = |task| {
        let mut waiter = Timed::new(task, Box::pin(pending()) as _);
        assert!(Pin::new(&mut waiter).poll(&mut cx).is_pending(), "nothing ends it");
        waiter
    };
    (1..=tasks).map(waiter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waiter_is_looked_at() {
        let _waiting = Waiting::start().unwrap();
        let waiters = waiters(1000);
        assert!(dormouse_waits::living().count() >= 1000);
        drop(waiters);
    }
}
