//! `cycles/KIND/N` and `l1-misses/KIND/N`: the origin's tables from `perf stat`, where there is a PMU.
//!
//! Runs of their own, because inherited counters are part of each switch between threads. The process is counted
//! with all threads that it starts, from before the first of them to the end of the last, kernel included where
//! that is allowed.

use std::cell::Cell;
use std::rc::Rc;

use dormouse_sys::perf::{Attr, Counted, Event, Subject};

use super::CALLS;
use super::drive::{Kind, pound};
use crate::runner::{Case, Failure, Spec};

/// What all samples have in common to say.
#[derive(Debug, Default)]
pub(super) struct Seen {
    user_only: Cell<bool>,
    /// The greatest part of the time in which an event was not counted, in percent.
    uncounted: Cell<f64>,
}

impl Seen {
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.user_only.get() {
            notes.push(
                "cycles and l1-misses rows lack what the kernel does, which is most of it: counting that is not allowed \
                 here (kernel.perf_event_paranoid)"
                    .to_owned(),
            );
        }
        if self.uncounted.get() > 0.0 {
            notes.push(format!(
                "cycles and l1-misses rows are scaled: others used the PMU for up to {:.1} % of the time",
                self.uncounted.get()
            ));
        }
        notes
    }
}

/// The cases of a kind of call for so many threads.
pub(super) fn cases(kind: Kind, threads: usize, calls: usize, seen: &Rc<Seen>) -> [Case<'static>; 2] {
    let each = (calls / threads).max(1);
    let spec = |what: &str, unit| {
        Spec::new(format!("{what}/{}/{threads}", kind.name()), unit)
            .with("threads", threads)
            .with("calls", each * threads)
    };
    let work = move || pound(kind, threads, each);
    let cycles = {
        let (seen, scale) = (Rc::clone(seen), CALLS as f64 / (each * threads) as f64);
        Case::new(vec![spec("cycles", "cycles").with("scaled_to_calls", CALLS)], move || {
            let [cycles] = count([Counted::Cycles], work, &seen)?;
            Ok(vec![cycles * scale])
        })
    };
    let seen = Rc::clone(seen);
    let misses = Case::new(vec![spec("l1-misses", "%")], move || {
        let [loads, misses] = count([Counted::L1Loads, Counted::L1LoadMisses], work, &seen)?;
        Ok(vec![100.0 * misses / loads])
    });
    [cycles, misses]
}

/// How often each of `events` happens in this process while `work` is done.
fn count<T, const N: usize>(
    events: [Counted; N],
    work: impl FnOnce() -> Result<T, Failure>,
    seen: &Seen,
) -> Result<[f64; N], Failure> {
    let attrs = events.map(|counted| Attr::count(counted).inherited().disabled());
    let open = |attr| Event::open_allowed(attr, Subject::ThisThread);
    let events = attrs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    events.iter().try_for_each(Event::enable)?;
    work()?;
    events.iter().try_for_each(Event::disable)?;
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
    use crate::progress::Progress;
    use crate::runner::{Plan, run};

    /// With an event that the kernel counts itself: it is had, scaled and inherited in the same way.
    #[test]
    fn what_the_threads_do_is_counted_with_the_process() {
        let seen = Seen::default();
        let work = || pound(Kind::ClockGettime, 3, 2000);
        match count([Counted::TaskClock], work, &seen) {
            // 6000 calls of at least 50 ns each.
            Ok([ns]) => assert!(ns > 300_000.0, "{ns} ns"),
            Err(reason) => println!("1 skipped: no events here: {reason:?}"),
        }
        assert!(seen.uncounted.get() < 100.0);
    }

    #[test]
    fn without_a_pmu_the_rows_give_the_kernels_reason_and_with_one_they_have_values() {
        let seen = Rc::new(Seen::default());
        let plan = Plan { reps: 1, warmup: 0, seed: 1 };
        let outcome =
            run(cases(Kind::Process, 2, 100, &seen).into(), &plan, &mut Progress::hidden(), |_| false);
        assert_eq!(outcome.wrong, Vec::<String>::new());
        let names: Vec<&str> = outcome.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["cycles/process/2", "l1-misses/process/2"]);
        for row in &outcome.rows {
            match &row.unavailable {
                None => assert!(row.mean.is_some_and(|mean| mean > 0.0), "{row:?}"),
                Some(reason) => {
                    assert!(reason.contains("cycles") || reason.contains("L1-dcache"), "{reason}");
                }
            }
        }
    }
}
