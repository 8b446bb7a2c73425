//! `long-poll/…`: the delay from the moment at which a poll has lasted for the threshold to the
//! report on it; and the cost of scanning for long polls while nothing runs.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse::{Group, LongPoll, long_polls};

use crate::bench::Bench;
use crate::clocks::thread_cpu_by_name;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// The threshold, and how long each poll lasts.
const THRESHOLD: Duration = Duration::from_millis(10);
const LONG: Duration = Duration::from_millis(50);
/// How long an idle process is measured.
const IDLE: Duration = Duration::from_millis(500);
/// The longest wait for a report.
const PATIENCE: Duration = Duration::from_secs(10);

/// The row of polls that sleep, and that of those that compute.
pub(super) const ASLEEP: &str = "long-poll/asleep";
pub(super) const BUSY: &str = "long-poll/busy";

/// Adds the rows.
pub(super) fn rows(bench: &mut Bench) {
    let spec = |name: &str| {
        let ms = |time: Duration| time.as_millis() as u64;
        Spec::new(name, "ms").wall().with("threshold_ms", ms(THRESHOLD)).with("poll_ms", ms(LONG))
    };
    bench.sample(spec(ASLEEP), || delay(|| thread::sleep(LONG)));
    bench.sample(spec(BUSY), || {
        delay(|| {
            let begun = Instant::now();
            while begun.elapsed() < LONG {
                std::hint::spin_loop();
            }
        })
    });
    let idle = Spec::new("long-poll/idle", "%")
        .better(Better::Lower)
        .with("of", "a processor")
        .with("clock", "CPU time of the lookout");
    bench.sample(idle, idle_cpu);
}

pub(super) fn compare(bench: &mut Bench) {
    for (text, row) in [("a poll that sleeps", ASLEEP), ("a poll that computes", BUSY)] {
        let worst = bench.row(row).max;
        let worst = worst.map_or_else(String::new, |worst| format!("; worst {worst:.1} ms"));
        let text = format!("{text} for 50 ms is reported at most 20 ms after 10 ms");
        bench.goal(&text, row, |median| median <= 20.0).push_str(&worst);
    }
}

/// The time from the threshold to the report with its stack, in milliseconds.
fn delay(block: impl FnOnce() + Send) -> Result<f64, Failure> {
    let polls = long_polls(THRESHOLD)?;
    let end = Instant::now() + PATIENCE;
    while polls.between() == Duration::ZERO && Instant::now() < end {
        thread::sleep(THRESHOLD);
    }
    thread::scope(|scope| {
        let begun = scope.spawn(|| {
            let begun = Instant::now();
            let mut task = pin!(Group::new("bench long polls").instrument(async { block() }));
            let _ready: Poll<()> = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            begun
        });
        let (report, came) = first(&polls)?;
        let begun = begun.join().map_err(|_| "the poll has panicked")?;
        if report.stack.is_none() {
            return Err(Failure::wrong(format!("no stack: {:?}", report.no_stack)));
        }
        Ok(came.saturating_duration_since(begun + THRESHOLD).as_secs_f64() * 1e3)
    })
}

/// The first report, and when it came.
fn first(polls: &dormouse::LongPolls) -> Result<(LongPoll, Instant), Failure> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if let Some(report) = polls.take().into_iter().next() {
            return Ok((report, Instant::now()));
        }
        thread::sleep(Duration::from_micros(200));
    }
    Err("no report has come".into())
}

/// CPU time of the lookout while nothing runs, in percent of a processor.
fn idle_cpu() -> Result<f64, Failure> {
    let _polls = long_polls(THRESHOLD)?;
    let used = || thread_cpu_by_name("dormouse-look").ok_or("there is no lookout");
    let (before, begun) = (used()?, Instant::now());
    thread::sleep(IDLE);
    Ok(used()?.saturating_sub(before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_sleeps_is_reported() {
        assert!(delay(|| thread::sleep(LONG)).unwrap() >= 0.0);
        assert!(idle_cpu().unwrap() < 100.0);
    }
}
