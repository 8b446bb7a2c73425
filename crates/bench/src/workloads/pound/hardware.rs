//! `cycles/KIND/N` and `l1-misses/KIND/N`: the origin's tables from `perf stat`, where there is a
//! PMU.
//!
//! Samples apart from the others, because inherited counters are part of each switch between
//! threads. The process is counted with all threads that it starts, from before the first of them
//! to the end of the last, kernel included where that is allowed.

use std::cell::Cell;
use std::rc::Rc;

use dormouse_sys::perf::{Attr, KernelEvent, OpenEvent, Subject};

use super::drive::{Call, pound};
use super::origin::CALLS;
use crate::bench::Bench;
use crate::row::{Better, Spec};
use crate::runner::Failure;

/// Conditions that all samples have in common.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    user_only: Cell<bool>,
    /// The greatest part of the time in which an event was not counted, in percent.
    uncounted: Cell<f64>,
}

impl Conditions {
    pub(super) fn note(&self, bench: &mut Bench) {
        if self.user_only.get() {
            bench.explain(
                "cycles and l1-misses rows lack what the kernel does, which is most of it: counting that is not \
                 allowed here (kernel.perf_event_paranoid)",
            );
        }
        if self.uncounted.get() > 0.0 {
            bench.notes.push(format!(
                "cycles and l1-misses rows are scaled: others used the PMU for up to {:.1} % of the time",
                self.uncounted.get()
            ));
        }
    }
}

/// Adds the rows of a kind of call for this number of threads.
pub(super) fn rows(bench: &mut Bench, call: Call, threads: usize, calls: usize, seen: &Rc<Conditions>) {
    let each = (calls / threads).max(1);
    let spec = |what: &str, unit| {
        Spec::new(format!("{what}/{}/{threads}", call.name()), unit)
            .with("threads", threads)
            .with("calls", each * threads)
    };
    let work = move || pound(call, threads, each);
    let (shared, scale) = (Rc::clone(seen), CALLS as f64 / (each * threads) as f64);
    bench.sample(spec("cycles", "cycles").with("scaled_to_calls", CALLS), move || {
        let [cycles] = count([KernelEvent::Cycles], work, &shared)?;
        Ok(cycles * scale)
    });
    let shared = Rc::clone(seen);
    bench.sample(spec("l1-misses", "%").better(Better::Lower), move || {
        let [loads, misses] = count([KernelEvent::L1Loads, KernelEvent::L1LoadMisses], work, &shared)?;
        Ok(100.0 * misses / loads)
    });
}

/// How often each of `events` happens in this process while `work` is done.
fn count<T, const N: usize>(
    events: [KernelEvent; N],
    work: impl FnOnce() -> Result<T, Failure>,
    seen: &Conditions,
) -> Result<[f64; N], Failure> {
    let attrs = events.map(|counted| Attr::count(counted).inherited().disabled());
    let open = |attr| OpenEvent::open_allowed(attr, Subject::ThisThread);
    let events = attrs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    events.iter().try_for_each(OpenEvent::enable)?;
    work()?;
    events.iter().try_for_each(OpenEvent::disable)?;
    let mut counts = [0.0; N];
    for (event, count) in events.iter().zip(&mut counts) {
        let reading = event.read()?;
        let scaled = reading.scaled().ok_or("others used the PMU all the time")?;
        *count = scaled as f64;
        let uncounted = reading.enabled_ns.saturating_sub(reading.running_ns);
        let percent = 100.0 * uncounted as f64 / reading.enabled_ns.max(1) as f64;
        seen.uncounted.set(seen.uncounted.get().max(percent));
        seen.user_only.set(seen.user_only.get() || event.is_user_only());
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Settings;
    use crate::progress::Progress;

    /// By an event that the kernel counts itself: it is opened, scaled and inherited in the same
    /// way.
    #[test]
    fn the_threads_work_is_counted_with_the_process() {
        let seen = Conditions::default();
        let work = || pound(Call::ClockGettime, 3, 2000);
        match count([KernelEvent::TaskClock], work, &seen) {
            // 6000 calls of at least 50 ns each.
            Ok([ns]) => assert!(ns > 300_000.0, "{ns} ns"),
            Err(reason) => println!("1 skipped: no events here: {reason:?}"),
        }
        assert!(seen.uncounted.get() < 100.0);
    }

    #[test]
    fn rows_have_values_or_the_kernels_reason() {
        let settings = Settings { quick: true, reps: Some(1), seed: 1 };
        let mut bench = Bench::new(settings, Progress::hidden());
        rows(&mut bench, Call::Process, 2, 100, &Rc::default());
        bench.measure("reps", bench.plan(1, 1));
        assert_eq!(bench.wrong, Vec::<String>::new());
        let names: Vec<&str> = bench.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["cycles/process/2", "l1-misses/process/2"]);
        for row in &bench.rows {
            match &row.unavailable {
                None => assert!(row.mean.is_some_and(|mean| mean > 0.0), "{row:?}"),
                Some(reason) => {
                    assert!(reason.contains("cycles") || reason.contains("L1-dcache"), "{reason}");
                }
            }
        }
    }
}
