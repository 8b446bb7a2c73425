//! Interleaved repetitions.
//!
//! One *round* takes one sample of every case, in an order drawn anew each round from a seeded generator:
//! what drifts (frequency, neighbours, page placement) then falls on all rows alike, and values with the
//! same index were taken within one round of each other, so rows can be compared pairwise. Warm-up
//! rounds are run and thrown away.
//!
//! # Invariants
//!
//! - A row holds one value of every counted round, or none and the reason.
//! - The same seed gives the same order.

use std::fmt;
use std::time::Duration;

use crate::progress::Progress;
use crate::report::{Params, Row};

/// Why a case gives no (more) values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It cannot be measured here; its rows say so.
    Unavailable(String),
    /// What was measured gave a wrong answer: the run fails.
    Wrong(String),
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Unavailable(format!("{error:#}"))
    }
}

/// Name, unit and parameters of a row to be filled.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) params: Params,
}

impl Spec {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, params: Params::new() }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }
}

/// Takes one sample: a value for each row of its case.
pub(crate) type Sample<'a> = Box<dyn FnMut() -> Result<Vec<f64>, Failure> + 'a>;

/// Something to be measured, with the rows that one sample of it fills.
pub(crate) struct Case<'a> {
    specs: Vec<Spec>,
    sample: Result<Sample<'a>, String>,
}

impl fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("specs", &self.specs).finish_non_exhaustive()
    }
}

impl<'a> Case<'a> {
    /// A case whose samples fill several rows at once.
    pub(crate) fn new(specs: Vec<Spec>, sample: impl FnMut() -> Result<Vec<f64>, Failure> + 'a) -> Self {
        Self { specs, sample: Ok(Box::new(sample)) }
    }

    /// A case that cannot be measured here.
    pub(crate) fn unavailable(specs: Vec<Spec>, reason: impl Into<String>) -> Self {
        Self { specs, sample: Err(reason.into()) }
    }

    /// The case, whose samples are only taken while `check` allows it.
    pub(crate) fn guarded(self, check: impl Fn() -> Result<(), Failure> + 'a) -> Self {
        let sample = self.sample.map(|mut sample| -> Sample<'a> {
            Box::new(move || {
                check()?;
                let values = sample()?;
                check()?;
                Ok(values)
            })
        });
        Self { sample, ..self }
    }

    /// A case of one row in nanoseconds per iteration of `run`, which is told how many iterations to make
    /// and says how long they took. The number that fills `target` is found once, here.
    pub(crate) fn per_iteration(
        spec: Spec,
        target: Duration,
        mut run: impl FnMut(u64) -> Result<Duration, Failure> + 'a,
    ) -> Self {
        let iterations = match calibrate(target, &mut run) {
            Ok(iterations) => iterations,
            Err(Failure::Unavailable(reason)) => return Self::unavailable(vec![spec], reason),
            // The first sample meets it again and reports it as what it is.
            Err(Failure::Wrong(_)) => 1,
        };
        let spec = spec.with("iterations", iterations);
        Self::new(vec![spec], move || {
            let elapsed = run(iterations)?;
            Ok(vec![elapsed.as_nanos() as f64 / iterations as f64])
        })
    }
}

/// How to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Counted rounds, at most.
    pub(crate) reps: usize,
    /// Rounds thrown away first.
    pub(crate) warmup: usize,
    /// Seed of the order.
    pub(crate) seed: u64,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The rows, in the order of their cases.
    pub(crate) rows: Vec<Row>,
    /// Wrong answers seen.
    pub(crate) wrong: Vec<String>,
}

/// Runs `cases` interleaved, until the plan is done or `enough` says so of the rows so far.
pub(crate) fn run(
    cases: Vec<Case<'_>>,
    plan: &Plan,
    progress: &mut Progress,
    mut enough: impl FnMut(&[Row]) -> bool,
) -> Outcome {
    let mut rng = SplitMix64(plan.seed);
    let mut running: Vec<Running<'_>> = cases.into_iter().map(Running::new).collect();
    let mut order: Vec<usize> = (0..running.len()).collect();
    let mut wrong = Vec::new();
    progress.begin(((plan.warmup + plan.reps) * running.len()) as u64);
    for round in 0..plan.warmup + plan.reps {
        rng.shuffle(&mut order);
        for &index in &order {
            let case = &mut running[index];
            progress.step(&case.specs[0].name);
            case.take(round >= plan.warmup, &mut wrong);
        }
        let counted = (round + 1).saturating_sub(plan.warmup);
        if counted > 1 && enough(&rows(&running)) {
            break;
        }
    }
    progress.end();
    Outcome { rows: rows(&running), wrong }
}

fn rows(running: &[Running<'_>]) -> Vec<Row> {
    running.iter().flat_map(Running::rows).collect()
}

/// A case and the values that it has given.
struct Running<'a> {
    specs: Vec<Spec>,
    sample: Result<Sample<'a>, String>,
    values: Vec<Vec<f64>>,
}

impl<'a> Running<'a> {
    fn new(case: Case<'a>) -> Self {
        Self { values: vec![Vec::new(); case.specs.len()], specs: case.specs, sample: case.sample }
    }

    /// Takes a sample, unless the case has already failed.
    fn take(&mut self, counted: bool, wrong: &mut Vec<String>) {
        let Ok(sample) = &mut self.sample else { return };
        let reason = match sample() {
            Ok(values) if values.len() != self.specs.len() => {
                format!("gave {} values for {} rows", values.len(), self.specs.len())
            }
            Ok(values) => {
                if counted {
                    for (column, value) in self.values.iter_mut().zip(values) {
                        column.push(value);
                    }
                }
                return;
            }
            Err(Failure::Unavailable(reason)) => reason,
            Err(Failure::Wrong(what)) => {
                wrong.push(format!("{}: {what}", self.specs[0].name));
                what
            }
        };
        self.sample = Err(reason);
    }

    fn rows(&self) -> Vec<Row> {
        self.specs
            .iter()
            .zip(&self.values)
            .map(|(spec, values)| match &self.sample {
                Ok(_) => Row::new(spec, values.clone()),
                Err(reason) => Row::unavailable(spec, reason),
            })
            .collect()
    }
}

/// The number of iterations for which `run` takes about `target`.
fn calibrate(
    target: Duration,
    run: &mut impl FnMut(u64) -> Result<Duration, Failure>,
) -> Result<u64, Failure> {
    const MOST: u64 = 1 << 40;
    let mut iterations = 16_u64;
    loop {
        let elapsed = run(iterations)?;
        if elapsed >= target / 4 || iterations >= MOST {
            let scale = target.as_secs_f64() / elapsed.as_secs_f64().max(1e-9);
            return Ok(((iterations as f64 * scale) as u64).clamp(1, MOST));
        }
        iterations *= 4;
    }
}

/// A small generator with a fixed sequence for every seed: the order of a run can be had again.
#[derive(Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher and Yates; the bias of a plain remainder is nothing at a few dozen cases.
    pub(crate) fn shuffle(&mut self, items: &mut [usize]) {
        for last in (1..items.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    fn plan(reps: usize, warmup: usize) -> Plan {
        Plan { reps, warmup, seed: 7 }
    }

    fn recorded(log: &RefCell<Vec<char>>, name: char) -> Case<'_> {
        Case::new(vec![Spec::new(name, "ns")], move || {
            log.borrow_mut().push(name);
            Ok(vec![log.borrow().len() as f64])
        })
    }

    fn order_of(plan: &Plan) -> (Vec<char>, Outcome) {
        let log = RefCell::new(Vec::new());
        let cases = ['a', 'b', 'c', 'd'].map(|name| recorded(&log, name)).into();
        let outcome = run(cases, plan, &mut Progress::hidden(), |_| false);
        (log.into_inner(), outcome)
    }

    #[test]
    fn each_round_samples_every_case_once_and_orders_differ() {
        let (log, outcome) = order_of(&plan(20, 2));
        let rounds: Vec<&[char]> = log.chunks(4).collect();
        assert_eq!(rounds.len(), 22);
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, ['a', 'b', 'c', 'd']);
        }
        assert!(rounds.iter().any(|round| *round != rounds[0]));
        assert!(outcome.rows.iter().all(|row| row.n == 20));
    }

    #[test]
    fn the_same_seed_gives_the_same_order() {
        let again = plan(5, 1);
        assert_eq!(order_of(&again).0, order_of(&again).0);
    }

    #[test]
    fn warm_up_rounds_leave_no_values() {
        let (_, outcome) = order_of(&plan(1, 3));
        let mut values: Vec<f64> = outcome.rows.iter().flat_map(|row| row.values.clone()).collect();
        values.sort_by(f64::total_cmp);
        // Twelve samples were warm-up.
        assert_eq!(values, [13.0, 14.0, 15.0, 16.0]);
    }

    #[test]
    fn a_run_ends_when_there_is_enough() {
        let log = RefCell::new(Vec::new());
        let outcome =
            run(vec![recorded(&log, 'a')], &plan(100, 0), &mut Progress::hidden(), |rows| rows[0].n == 7);
        assert_eq!(outcome.rows[0].n, 7);
    }

    #[test]
    fn a_case_that_fails_keeps_its_rows_with_the_reason() {
        let mut left = 3;
        let failing = Case::new(vec![Spec::new("x", "ns"), Spec::new("y", "ns")], || {
            left -= 1;
            if left == 0 {
                return Err(Failure::from("no such device"));
            }
            Ok(vec![1.0, 2.0])
        });
        let absent = Case::unavailable(vec![Spec::new("z", "us")], "no rseq");
        let outcome = run(vec![failing, absent], &plan(5, 0), &mut Progress::hidden(), |_| false);
        let reasons: Vec<_> = outcome.rows.iter().map(|row| row.unavailable.as_deref()).collect();
        assert_eq!(reasons, [Some("no such device"), Some("no such device"), Some("no rseq")]);
        assert!(outcome.rows.iter().all(|row| row.values.is_empty()));
        assert_eq!(outcome.wrong, Vec::<String>::new());
    }

    #[test]
    fn a_sample_counts_only_if_the_check_holds_after_it_too() {
        let taken = Cell::new(0);
        let case = Case::new(vec![Spec::new("x", "ns")], || {
            taken.set(taken.get() + 1);
            Ok(vec![1.0])
        });
        let check = || if taken.get() < 2 { Ok(()) } else { Err(Failure::from("it has ended")) };
        let outcome = run(vec![case.guarded(check)], &plan(5, 0), &mut Progress::hidden(), |_| false);
        assert_eq!(outcome.rows[0].unavailable.as_deref(), Some("it has ended"));
        assert_eq!(taken.get(), 2);
    }

    #[test]
    fn a_wrong_answer_is_not_taken_for_an_unavailable_one() {
        let case =
            Case::new(vec![Spec::new("x", "ns")], || Err(Failure::Wrong("55 of 56 sites on".to_owned())));
        let outcome = run(vec![case], &plan(2, 0), &mut Progress::hidden(), |_| false);
        assert_eq!(outcome.wrong, ["x: 55 of 56 sites on"]);
    }

    #[test]
    fn calibration_fills_the_target() {
        let per_iteration = Duration::from_nanos(3);
        let iterations =
            calibrate(Duration::from_millis(3), &mut |n| Ok(per_iteration * u32::try_from(n).unwrap()))
                .unwrap();
        assert_eq!(iterations, 1_000_000);
    }
}
