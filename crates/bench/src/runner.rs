//! Interleaved repetitions.
//!
//! One *round* takes one sample of every case, in an order drawn anew each round from a seeded
//! generator: drift (frequency, neighbours, page placement) then affects all rows alike, and values
//! with the same index were taken within one round of each other, so rows can be compared pairwise.
//! Warm-up rounds are run and discarded.
//!
//! # Invariants
//!
//! - A row contains one value for every counted round, or none and the reason.
//! - The same seed gives the same order.

use std::fmt;
use std::time::Duration;

use crate::pace::pace;
use crate::progress::Progress;
use crate::row::{Row, Spec};

/// Why a case gives no (more) values.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Failure {
    /// It cannot be measured here; its rows have the reason.
    Unavailable(String),
    /// A measured thing gave a wrong answer: the run fails.
    Wrong(String),
}

impl Failure {
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }
}

impl<E: fmt::Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Unavailable(format!("{error:#}"))
    }
}

/// The values of one sample, one for each row of its case.
pub(crate) trait Values {
    fn into_vec(self) -> Vec<f64>;
}

impl Values for f64 {
    fn into_vec(self) -> Vec<f64> {
        vec![self]
    }
}

impl<const N: usize> Values for [f64; N] {
    fn into_vec(self) -> Vec<f64> {
        self.into()
    }
}

impl Values for Vec<f64> {
    fn into_vec(self) -> Vec<f64> {
        self
    }
}

/// Takes one sample: a value for each row of its case.
type Sample<'a> = Box<dyn FnMut() -> Result<Vec<f64>, Failure> + 'a>;

/// Something to be measured: the rows that one sample of it fills, and the values so far.
pub(crate) struct Case<'a> {
    specs: Vec<Spec>,
    /// Or why there are no more samples.
    sample: Result<Sample<'a>, String>,
    values: Vec<Vec<f64>>,
    /// The machine's before each of them.
    pace: Vec<f64>,
}

impl fmt::Debug for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("specs", &self.specs).finish_non_exhaustive()
    }
}

impl<'a> Case<'a> {
    /// A case whose samples fill all of `specs`.
    pub(crate) fn new<V: Values>(
        specs: Vec<Spec>,
        mut sample: impl FnMut() -> Result<V, Failure> + 'a,
    ) -> Self {
        let values = vec![Vec::new(); specs.len()];
        let sample: Sample<'a> = Box::new(move || sample().map(Values::into_vec));
        Self { specs, values, sample: Ok(sample), pace: Vec::new() }
    }

    /// A case that cannot be measured here.
    pub(crate) fn unavailable(specs: Vec<Spec>, reason: impl Into<String>) -> Self {
        let values = vec![Vec::new(); specs.len()];
        Self { specs, values, sample: Err(reason.into()), pace: Vec::new() }
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

    /// A case of one row in nanoseconds per iteration of `run`, which is called with the number of
    /// iterations and returns how long they took. The number that fills `target` is determined
    /// here, once.
    pub(crate) fn per_iteration(
        spec: Spec,
        target: Duration,
        mut run: impl FnMut(u64) -> Result<Duration, Failure> + 'a,
    ) -> Self {
        let iterations = match calibrate(target, &mut run) {
            Ok(iterations) => iterations,
            Err(Failure::Unavailable(reason)) => return Self::unavailable(vec![spec], reason),
            // The first sample meets the wrong answer again and reports it as one.
            Err(Failure::Wrong(_)) => 1,
        };
        let spec = spec.with("iterations", iterations);
        Self::new(vec![spec], move || Ok(run(iterations)?.as_nanos() as f64 / iterations as f64))
    }

    /// Takes a sample, unless the case has already failed.
    fn take(&mut self, counted: bool, wrong: &mut Vec<String>) {
        let Ok(sample) = &mut self.sample else { return };
        let pace = pace();
        let reason = match sample() {
            Ok(values) if values.len() != self.specs.len() => {
                format!("gave {} values for {} rows", values.len(), self.specs.len())
            }
            Ok(values) => {
                if counted {
                    self.values.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
                    self.pace.push(pace);
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

    fn rows(&self) -> impl Iterator<Item = Row> {
        self.specs.iter().zip(&self.values).map(|(spec, values)| {
            Row::new(spec, self.sample.as_ref().map(|_| values.clone()).map_err(Clone::clone)).at(&self.pace)
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

/// Runs `cases` interleaved, until the plan is done or `enough` returns true for the rows so far.
/// Returns the rows, in the order of their cases, and the wrong answers.
pub(crate) fn run(
    mut cases: Vec<Case<'_>>,
    plan: &Plan,
    progress: &mut Progress,
    mut enough: impl FnMut(&[Row]) -> bool,
) -> (Vec<Row>, Vec<String>) {
    let rows = |cases: &[Case<'_>]| cases.iter().flat_map(Case::rows).collect::<Vec<_>>();
    let mut rng = SplitMix64(plan.seed);
    let mut order: Vec<usize> = (0..cases.len()).collect();
    let mut wrong = Vec::new();
    progress.begin(((plan.warmup + plan.reps) * cases.len()) as u64);
    for round in 0..plan.warmup + plan.reps {
        rng.shuffle(&mut order);
        for &index in &order {
            let case = &mut cases[index];
            progress.step(&case.specs[0].name);
            case.take(round >= plan.warmup, &mut wrong);
        }
        // Nothing is enough before there are two counted rounds.
        if round > plan.warmup && enough(&rows(&cases)) {
            break;
        }
    }
    progress.end();
    (rows(&cases), wrong)
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

/// A small generator with a fixed sequence for every seed, so that the order of a run can be
/// repeated.
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

    /// Fisher and Yates; the bias of a plain remainder is negligible at a few dozen cases.
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

    fn spec(name: impl Into<String>) -> Vec<Spec> {
        vec![Spec::new(name, "ns")]
    }

    fn outcome(case: Case<'_>, plan: &Plan) -> (Vec<Row>, Vec<String>) {
        run(vec![case], plan, &mut Progress::hidden(), |_| false)
    }

    fn recorded(log: &RefCell<Vec<char>>, name: char) -> Case<'_> {
        Case::new(spec(name), move || {
            log.borrow_mut().push(name);
            Ok(log.borrow().len() as f64)
        })
    }

    fn order_of(plan: &Plan) -> (Vec<char>, Vec<Row>) {
        let log = RefCell::new(Vec::new());
        let cases = ['a', 'b', 'c', 'd'].map(|name| recorded(&log, name)).into();
        let (rows, _) = run(cases, plan, &mut Progress::hidden(), |_| false);
        (log.into_inner(), rows)
    }

    #[test]
    fn each_round_samples_every_case_once() {
        let (log, rows) = order_of(&plan(20, 2));
        let rounds: Vec<&[char]> = log.chunks(4).collect();
        assert_eq!(rounds.len(), 22);
        for round in &rounds {
            let mut sorted = round.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, ['a', 'b', 'c', 'd']);
        }
        assert!(rounds.iter().any(|round| *round != rounds[0]));
        assert!(rows.iter().all(|row| row.n == 20));
    }

    #[test]
    fn the_same_seed_gives_the_same_order() {
        let again = plan(5, 1);
        assert_eq!(order_of(&again).0, order_of(&again).0);
    }

    #[test]
    fn warm_up_rounds_leave_no_values() {
        let (_, rows) = order_of(&plan(1, 3));
        let mut values: Vec<f64> = rows.iter().flat_map(|row| row.values.clone()).collect();
        values.sort_by(f64::total_cmp);
        // Twelve samples were warm-up.
        assert_eq!(values, [13.0, 14.0, 15.0, 16.0]);
    }

    #[test]
    fn a_run_ends_when_there_is_enough() {
        let log = RefCell::new(Vec::new());
        let cases = vec![recorded(&log, 'a')];
        let (rows, _) = run(cases, &plan(100, 0), &mut Progress::hidden(), |rows| rows[0].n == 7);
        assert_eq!(rows[0].n, 7);
    }

    #[test]
    fn a_failed_case_keeps_rows_with_reason() {
        let mut left = 3;
        let failing = Case::new(vec![Spec::new("x", "ns"), Spec::new("y", "ns")], || {
            left -= 1;
            if left == 0 {
                return Err(Failure::from("no such device"));
            }
            Ok([1.0, 2.0])
        });
        let absent = Case::unavailable(spec("z"), "no rseq");
        let (rows, wrong) = run(vec![failing, absent], &plan(5, 0), &mut Progress::hidden(), |_| false);
        let reasons: Vec<_> = rows.iter().map(|row| row.unavailable.as_deref()).collect();
        assert_eq!(reasons, [Some("no such device"), Some("no such device"), Some("no rseq")]);
        assert!(rows.iter().all(|row| row.values.is_empty()));
        assert_eq!(wrong, Vec::<String>::new());
    }

    #[test]
    fn a_sample_counts_if_the_check_holds_afterwards() {
        let taken = Cell::new(0);
        let case = Case::new(spec("x"), || {
            taken.set(taken.get() + 1);
            Ok(1.0)
        });
        let check = || if taken.get() < 2 { Ok(()) } else { Err(Failure::from("it has ended")) };
        let (rows, _) = outcome(case.guarded(check), &plan(5, 0));
        assert_eq!(rows[0].unavailable.as_deref(), Some("it has ended"));
        assert_eq!(taken.get(), 2);
    }

    #[test]
    fn a_wrong_answer_is_not_taken_for_unavailable() {
        let case = Case::new(spec("x"), || Err::<f64, _>(Failure::wrong("55 of 56 sites on")));
        assert_eq!(outcome(case, &plan(2, 0)).1, ["x: 55 of 56 sites on"]);
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
