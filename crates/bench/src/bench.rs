//! The run of one workload: the cases that it adds, their measured rows, and the comparisons, goals
//! and notes computed from them.
//!
//! A workload adds cases, has them measured ([`Bench::measure`]), and then compares rows by their
//! names. A computed row can be compared and judged like a measured one.

use std::fmt::Display;
use std::time::Duration;

use crate::injected;
use crate::progress::Progress;
use crate::row::{Params, Row, Spec, find};
use crate::runner::{self, Case, Failure, Plan, Values};
use crate::table::{range, value};

/// How thoroughly to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    pub(crate) reps: Option<usize>,
    pub(crate) seed: u64,
}

/// A workload on its way from cases to a report.
#[derive(Debug)]
pub(crate) struct Bench {
    settings: Settings,
    progress: Progress,
    cases: Vec<Case<'static>>,
    pub(crate) params: Params,
    pub(crate) rows: Vec<Row>,
    pub(crate) notes: Vec<String>,
    /// Wrong answers: each fails the run.
    pub(crate) wrong: Vec<String>,
}

/// How the workload runs.
impl Bench {
    pub(crate) fn new(settings: Settings, progress: Progress) -> Self {
        Self {
            settings,
            progress,
            cases: Vec::new(),
            params: Params::new(),
            rows: Vec::new(),
            notes: Vec::new(),
            wrong: Vec::new(),
        }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// One of two sizes: that of a full run or that of a quick one.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.settings.quick { quick } else { full }
    }

    /// The rounds that the user asked for, else these.
    pub(crate) fn plan(&self, full: usize, quick: usize) -> Plan {
        let reps = self.settings.reps.unwrap_or(self.pick(full, quick));
        Plan { reps, warmup: self.pick(2, 1), seed: self.settings.seed }
    }

    /// How long a sample of a loop should last: long against the clock's resolution and the work of
    /// a timer tick, short against the drift of a shared machine.
    pub(crate) fn target(&self) -> Duration {
        Duration::from_millis(self.pick(4, 2))
    }

    /// Shows the work outside the rounds.
    pub(crate) fn say(&mut self, what: &str) {
        self.progress.say(what);
    }

    pub(crate) fn param(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.params.insert(name.to_owned(), value.into());
    }
}

/// Cases, until they are measured.
impl Bench {
    /// Adds rows; each call of `sample` gives a value for each of them.
    pub(crate) fn sample<V: Values>(
        &mut self,
        specs: impl Into<Vec<Spec>>,
        sample: impl FnMut() -> Result<V, Failure> + 'static,
    ) {
        self.cases.push(Case::new(specs.into(), sample));
    }

    /// Adds a row in nanoseconds per iteration of `run`, which is called with the number of
    /// iterations and returns how long they took. The number of iterations that fills
    /// [`Bench::target`] is determined here.
    pub(crate) fn per_iteration(
        &mut self,
        spec: Spec,
        mut run: impl FnMut(u64) -> Result<Duration, Failure> + 'static,
    ) {
        let mut added = 0;
        if let Some((percent, note)) = injected::percent(&spec.name) {
            self.notes.push(note);
            added = percent;
        }
        let run = move |iterations: u64| run(iterations + iterations.saturating_mul(added).div_ceil(100));
        self.cases.push(Case::per_iteration(spec, self.target(), run));
    }

    /// Adds rows that cannot be measured here.
    pub(crate) fn unavailable(&mut self, specs: impl Into<Vec<Spec>>, reason: impl Display) {
        self.cases.push(Case::unavailable(specs.into(), format!("{reason:#}")));
    }

    /// The thing that the rows need, if it could be made; else the rows are added as unavailable.
    pub(crate) fn need<T>(
        &mut self,
        specs: impl Into<Vec<Spec>>,
        made: Result<T, impl Into<Failure>>,
    ) -> Option<T> {
        let failure = match made {
            Ok(made) => return Some(made),
            Err(error) => error.into(),
        };
        self.cases.push(Case::new(specs.into(), move || Err::<f64, _>(failure.clone())));
        None
    }

    /// Has samples of the cases added so far taken only while `check` allows it.
    pub(crate) fn guard(&mut self, check: impl Fn() -> Result<(), Failure> + Clone + 'static) {
        self.cases = self.cases.drain(..).map(|case| case.guarded(check.clone())).collect();
    }

    /// Measures the cases added so far, interleaved. The report has the number of rounds as `reps`.
    pub(crate) fn measure(&mut self, reps: &str, plan: Plan) {
        self.measure_until(reps, plan, |_| false);
    }

    /// [`Bench::measure`], but ends early when `enough` returns true for the rows so far.
    pub(crate) fn measure_until(&mut self, reps: &str, plan: Plan, enough: impl FnMut(&[Row]) -> bool) {
        self.param(reps, plan.reps);
        if !self.params.contains_key("order") {
            self.param("warmup", plan.warmup);
            self.param("order", "shuffled each round");
        }
        let cases = std::mem::take(&mut self.cases);
        let (rows, wrong) = runner::run(cases, &plan, &mut self.progress, enough);
        self.rows.extend(rows);
        self.wrong.extend(wrong);
    }
}

/// Rows, once they are measured.
impl Bench {
    /// The row with this name; if there is none, a row that reports so.
    pub(crate) fn row(&self, name: &str) -> Row {
        find(&self.rows, name)
    }

    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.row(name).median
    }

    /// From these names, that of the row with the largest median. An unavailable row counts as
    /// larger, so that a goal judged by it stays undecided.
    pub(crate) fn largest(&self, names: impl IntoIterator<Item = String>) -> String {
        let median = |name: &String| self.median(name).unwrap_or(f64::INFINITY);
        names.into_iter().max_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or_default()
    }

    /// From these names, that of the row with the smallest median. An unavailable row counts as
    /// smaller.
    pub(crate) fn smallest(&self, names: impl IntoIterator<Item = String>) -> String {
        let median = |name: &String| self.median(name).unwrap_or(f64::NEG_INFINITY);
        names.into_iter().min_by(|a, b| median(a).total_cmp(&median(b))).unwrap_or_default()
    }

    /// Adds a row computed from two others, round by round.
    pub(crate) fn paired(&mut self, spec: Spec, a: &str, b: &str, of: impl Fn(f64, f64) -> f64) {
        self.rows.push(Row::paired(spec, &self.row(a), &self.row(b), of));
    }

    /// Adds how many percent `a` is above `b`.
    pub(crate) fn percent(&mut self, name: impl Into<String>, a: &str, b: &str) {
        self.paired(Spec::new(name, "%"), a, b, |a, b| 100.0 * (a / b - 1.0));
    }

    /// Adds how many times `a` is `b`.
    pub(crate) fn times(&mut self, name: impl Into<String>, a: &str, b: &str) {
        self.paired(Spec::new(name, "times"), a, b, |a, b| a / b);
    }

    /// Adds `a` minus `b`, which are in nanoseconds.
    pub(crate) fn minus(&mut self, name: impl Into<String>, a: &str, b: &str) {
        self.paired(Spec::new(name, "ns"), a, b, |a, b| a - b);
    }

    /// Adds `KIND-added/PEER` for each peer: `KIND/PEER` minus `KIND/BASE`.
    pub(crate) fn added(&mut self, kind: &str, base: &str, peers: &[&str]) {
        let base = format!("{kind}/{base}");
        for peer in peers {
            self.minus(format!("{kind}-added/{peer}"), &format!("{kind}/{peer}"), &base);
        }
    }

    /// Notes a goal: its text, the median of the row `name`, and whether that meets it.
    pub(crate) fn goal(&mut self, text: &str, name: &str, met: impl Fn(f64) -> bool) -> &mut String {
        let (place, note) = (self.notes.len(), goal(text, &self.row(name), met));
        self.notes.push(note);
        &mut self.notes[place]
    }

    pub(crate) fn at_most(&mut self, text: &str, name: &str, most: f64) {
        self.goal(text, name, |median| median <= most);
    }

    pub(crate) fn at_least(&mut self, text: &str, name: &str, least: f64) {
        self.goal(text, name, |median| median >= least);
    }

    /// Notes each paragraph of `text`.
    pub(crate) fn explain(&mut self, text: &str) {
        let words = |paragraph: &str| paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        self.notes.extend(text.split("\n\n").map(words));
    }
}

fn goal(text: &str, row: &Row, met: impl Fn(f64) -> bool) -> String {
    let Some(median) = row.median else {
        let reason = row.unavailable.as_deref().unwrap_or("it has no values");
        return format!("goal, {text}: not decided, {} is unavailable: {reason}", row.name);
    };
    let verdict = match met(median) {
        _ if cfg!(debug_assertions) => "not judged in a build for debugging",
        true => "met",
        false => "missed",
    };
    let interval = row
        .ci95_median
        .as_ref()
        .map_or_else(String::new, |interval| format!(", 95 % interval {}", range(interval)));
    format!("goal, {text}: {verdict}; {}: median {} {}{interval}", row.name, value(Some(median)), row.unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> Bench {
        Bench::new(Settings { quick: true, reps: Some(2), seed: 1 }, Progress::hidden())
    }

    #[test]
    fn a_goal_is_met_missed_or_undecided() {
        let mut bench = bench();
        bench.sample(Spec::new("x", "%"), || Ok(4.0));
        bench.unavailable(Spec::new("y", "%"), "no clock");
        bench.measure("reps", bench.plan(2, 2));
        bench.at_most("at most 5", "x", 5.0);
        bench.at_most("at most 3", "x", 3.0);
        bench.at_most("at most 3", "y", 3.0);
        let [high, low, absent] = &bench.notes[..] else { panic!("{:?}", bench.notes) };
        assert!(high.ends_with("x: median 4.000 %"), "{high}");
        let verdicts = if cfg!(debug_assertions) { ["not judged"; 2] } else { ["met", "missed"] };
        assert!(high.contains(verdicts[0]) && low.contains(verdicts[1]), "{high}; {low}");
        assert!(absent.contains("not decided"));
    }

    #[test]
    fn added_rows_compare_every_peer_with_its_base() {
        let mut bench = bench();
        for (name, value) in [("k/none", 1.0), ("k/a", 3.0), ("k/b", 2.0)] {
            bench.sample(Spec::new(name, "ns"), move || Ok(value));
        }
        bench.measure("reps", bench.plan(2, 2));
        bench.added("k", "none", &["a", "b"]);
        assert_eq!([bench.median("k-added/a"), bench.median("k-added/b")], [Some(2.0), Some(1.0)]);
        assert_eq!(bench.largest(["k/b", "k/a"].map(str::to_owned)), "k/a");
    }

    #[test]
    fn rows_whose_need_is_missing_say_why() {
        let mut bench = bench();
        let made: Result<(), &str> = Err("no runtime");
        assert!(bench.need([Spec::new("x", "ns"), Spec::new("y", "ns")], made).is_none());
        bench.measure("reps", bench.plan(2, 2));
        assert_eq!(bench.row("y").unavailable.as_deref(), Some("no runtime"));
        assert_eq!(bench.params["reps"], 2);
    }
}
