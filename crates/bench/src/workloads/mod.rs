//! The workloads. Each lists its cases, has them run, and adds what is computed from them.

pub(crate) mod alloc;
pub(crate) mod breakpoint;
pub(crate) mod clock;
pub(crate) mod keys;
pub(crate) mod maps;
pub(crate) mod poll;
pub(crate) mod pound;
pub(crate) mod switch;
pub(crate) mod teaparty;

mod hog;
mod read;

use std::time::Duration;

use crate::report::{Params, Row};
use crate::runner::{Outcome, Plan};
use crate::table::{Table, value};

/// How thoroughly to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) quick: bool,
    pub(crate) reps: Option<usize>,
    pub(crate) seed: u64,
}

impl Settings {
    /// Rounds: what was asked for, else a default.
    pub(crate) fn reps(&self, full: usize, quick: usize) -> usize {
        self.reps.unwrap_or(if self.quick { quick } else { full })
    }

    /// A plan of so many rounds.
    pub(crate) fn plan(&self, full: usize, quick: usize) -> Plan {
        Plan { reps: self.reps(full, quick), warmup: if self.quick { 1 } else { 2 }, seed: self.seed }
    }

    /// How long a sample of a loop should last: long against the clock's resolution and the timer
    /// tick's work, short against the drift of a shared machine.
    pub(crate) fn target(&self) -> Duration {
        Duration::from_millis(if self.quick { 2 } else { 4 })
    }
}

/// What a workload hands to the report.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) rows: Vec<Row>,
    pub(crate) params: Params,
    pub(crate) notes: Vec<String>,
    pub(crate) tables: Vec<Table>,
    pub(crate) wrong: Vec<String>,
}

impl Measured {
    /// What came of carrying `plan` out.
    pub(crate) fn of(outcome: Outcome, plan: &Plan) -> Self {
        let mut params = Params::new();
        params.insert("reps".to_owned(), plan.reps.into());
        params.insert("warmup".to_owned(), plan.warmup.into());
        params.insert("order".to_owned(), "shuffled each round".into());
        Self { rows: outcome.rows, params, notes: Vec::new(), tables: Vec::new(), wrong: outcome.wrong }
    }
}

/// A goal as a sentence: what was asked, what the row's median was, and whether that meets it.
pub(crate) fn goal(text: &str, row: &Row, met: impl Fn(f64) -> bool) -> String {
    let Some(median) = row.median else {
        let reason = row.unavailable.as_deref().unwrap_or("it has no values");
        return format!("goal, {text}: not decided, {} is unavailable: {reason}", row.name);
    };
    let verdict = match met(median) {
        _ if cfg!(debug_assertions) => "not judged in a build for debugging",
        true => "met",
        false => "missed",
    };
    let interval =
        row.ci95_median.as_ref().map_or_else(String::new, |interval| format!(", 95 % interval {interval}"));
    format!("goal, {text}: {verdict}; {}: median {} {}{interval}", row.name, value(Some(median)), row.unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Spec;

    #[test]
    fn a_goal_is_met_missed_or_undecided() {
        let row = Row::new(&Spec::new("x", "%"), vec![4.0, 4.0]);
        let (high, low) = (goal("at most 5", &row, |x| x <= 5.0), goal("at most 3", &row, |x| x <= 3.0));
        assert!(high.ends_with("x: median 4.000 %"), "{high}");
        let verdicts = if cfg!(debug_assertions) { ["not judged"; 2] } else { ["met", "missed"] };
        assert!(high.contains(verdicts[0]) && low.contains(verdicts[1]), "{high}; {low}");
        let absent = Row::unavailable(&Spec::new("x", "%"), "no clock");
        assert!(goal("at most 3", &absent, |_| true).contains("not decided"));
    }
}
