//! The report: one JSON object, and the same as text.
//!
//! The JSON is a contract (schema 1, design §5.8): fields are only ever added. Every row holds all its
//! values, one a round, in order, so that whoever reads it can compute what we did not. A row that could
//! not be measured is there with `unavailable` and the reason, its statistics null.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::runner::Spec;
use crate::stats::{Interval, Summary, paired_interval, paired_median_interval};
use crate::table::{Table, value, wrapped};

/// Parameters of a run or a row.
pub type Params = serde_json::Map<String, serde_json::Value>;

/// The version of the JSON.
pub const SCHEMA: u32 = 1;

/// The parameter of rows that were computed from others.
const COMPUTED: &str = "computed";

/// One run of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the workload.
    pub bench: String,
    /// What it ran on.
    pub machine: Machine,
    /// How it ran.
    pub params: Params,
    /// What was measured, then what was computed from it.
    pub rows: Vec<Row>,
    /// What to know before believing it.
    pub notes: Vec<String>,
}

/// One row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name, `kind/variant`.
    pub name: String,
    /// Parameters of this row.
    pub params: Params,
    /// Unit of all numbers here.
    pub unit: String,
    /// Values.
    pub n: usize,
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// Sample standard deviation.
    pub stddev: Option<f64>,
    /// Smallest value.
    pub min: Option<f64>,
    /// Largest value.
    pub max: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// One value a round.
    pub values: Vec<f64>,
    /// The 95 % interval of the mean, on rows that compare two others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<Interval>,
    /// The 95 % interval of the median, on rows that compare two others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95_median: Option<Interval>,
    /// Why there are no values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl Row {
    /// A row with its values.
    pub(crate) fn new(spec: &Spec, values: Vec<f64>) -> Self {
        let Some(summary) = Summary::of(&values) else {
            return Self::unavailable(spec, "no round gave a finite value");
        };
        Self {
            name: spec.name.clone(),
            params: spec.params.clone(),
            unit: spec.unit.to_owned(),
            n: summary.n,
            mean: Some(summary.mean),
            stddev: summary.stddev,
            min: Some(summary.min),
            max: Some(summary.max),
            median: Some(summary.median),
            values,
            ci95: None,
            ci95_median: None,
            unavailable: None,
        }
    }

    /// A row without, and why.
    pub(crate) fn unavailable(spec: &Spec, reason: &str) -> Self {
        Self {
            name: spec.name.clone(),
            params: spec.params.clone(),
            unit: spec.unit.to_owned(),
            n: 0,
            mean: None,
            stddev: None,
            min: None,
            max: None,
            median: None,
            values: Vec::new(),
            ci95: None,
            ci95_median: None,
            unavailable: Some(reason.to_owned()),
        }
    }

    /// A row computed pairwise from the values of two others, with its intervals.
    pub(crate) fn paired(spec: Spec, a: &Row, b: &Row, of: impl Fn(f64, f64) -> f64) -> Self {
        let spec = spec.with(COMPUTED, "round by round").with("from", vec![a.name.clone(), b.name.clone()]);
        if let Some(row) = [a, b].into_iter().find(|row| row.unavailable.is_some()) {
            let reason = row.unavailable.as_deref().unwrap_or_default();
            return Self::unavailable(&spec, &format!("{} is: {reason}", row.name));
        }
        let values: Vec<f64> = a.values.iter().zip(&b.values).map(|(&a, &b)| of(a, b)).collect();
        let (ci95, ci95_median) = (paired_interval(&values), paired_median_interval(&values));
        Self { ci95, ci95_median, ..Self::new(&spec, values) }
    }

    fn is_computed(&self) -> bool {
        self.params.contains_key(COMPUTED)
    }

    /// How many percent `a` is above `b`.
    pub(crate) fn percent(name: &str, a: &Row, b: &Row) -> Self {
        Self::paired(Spec::new(name, "%"), a, b, |a, b| 100.0 * (a / b - 1.0))
    }

    /// `a` minus `b`, in their unit.
    pub(crate) fn minus(name: &str, unit: &'static str, a: &Row, b: &Row) -> Self {
        Self::paired(Spec::new(name, unit), a, b, |a, b| a - b)
    }

    /// How many times `a` is `b`.
    pub(crate) fn times(name: &str, a: &Row, b: &Row) -> Self {
        Self::paired(Spec::new(name, "times"), a, b, |a, b| a / b)
    }
}

/// The row of this name; one that says it is missing if there is none.
pub(crate) fn find(rows: &[Row], name: &str) -> Row {
    rows.iter()
        .find(|row| row.name == name)
        .cloned()
        .unwrap_or_else(|| Row::unavailable(&Spec::new(name, ""), "this run has no such row"))
}

impl Report {
    /// Writes it for people, with what a workload wants to show beside the rows.
    pub(crate) fn write_text(&self, out: &mut dyn Write, tables: &[Table]) -> io::Result<()> {
        writeln!(out, "dormouse bench {}", self.bench)?;
        writeln!(out, "{}", self.machine.line())?;
        let plain =
            |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let params: Vec<String> = self.params.iter().map(|(k, v)| format!("{k}: {}", plain(v))).collect();
        writeln!(out, "{}\n", params.join(", "))?;
        self.measured().write(out)?;
        if self.rows.iter().any(Row::is_computed) {
            writeln!(out)?;
            self.compared().write(out)?;
        }
        for table in tables {
            writeln!(out)?;
            table.write(out)?;
        }
        if !self.notes.is_empty() {
            writeln!(out, "\nNotes")?;
        }
        for note in &self.notes {
            for (number, line) in wrapped(note, 98).into_iter().enumerate() {
                writeln!(out, "{} {line}", if number == 0 { "-" } else { " " })?;
            }
        }
        Ok(())
    }

    /// The rows that were measured.
    fn measured(&self) -> Table {
        let heading = ["row", "unit", "n", "median", "mean", "stddev", "min", "max"];
        self.table(None, &heading, false, |row| {
            let statistics = [row.median, row.mean, row.stddev, row.min, row.max];
            statistics.into_iter().map(value).collect()
        })
    }

    /// The rows that were computed from them.
    fn compared(&self) -> Table {
        let heading = ["row", "unit", "n", "median", "95 % of median", "mean", "95 % of mean"];
        self.table(Some("Compared round by round"), &heading, true, |row| {
            let interval = |interval: &Option<Interval>| {
                interval.as_ref().map_or_else(|| "-".to_owned(), Interval::to_string)
            };
            vec![value(row.median), interval(&row.ci95_median), value(row.mean), interval(&row.ci95)]
        })
    }

    fn table(
        &self,
        title: Option<&str>,
        heading: &[&str],
        computed: bool,
        statistics: impl Fn(&Row) -> Vec<String>,
    ) -> Table {
        let mut table = Table::new(title, heading);
        for row in self.rows.iter().filter(|row| row.is_computed() == computed) {
            if let Some(reason) = &row.unavailable {
                table.remark(&row.name, &format!("unavailable: {reason}"));
                continue;
            }
            let first = [row.name.clone(), row.unit.clone(), row.n.to_string()];
            table.row(first.into_iter().chain(statistics(row)));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, values: &[f64]) -> Row {
        Row::new(&Spec::new(name, "ns").with("iterations", 1000), values.to_vec())
    }

    fn report() -> Report {
        let (a, b) = (row("off/a", &[2.2, 4.4]), row("off/b", &[2.0, 4.0]));
        let absent = Row::unavailable(&Spec::new("ipis/c", "IPIs"), "no row CAL");
        let percent = Row::percent("off/a-over-b", &a, &b);
        Report {
            schema: SCHEMA,
            bench: "keys".to_owned(),
            machine: Machine::here(),
            params: Spec::new("", "").with("reps", 2).params,
            rows: vec![a, b, absent, percent],
            notes: vec!["a note".to_owned()],
        }
    }

    fn text(report: &Report) -> String {
        let mut out = Vec::new();
        report.write_text(&mut out, &[]).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let report = report();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }

    #[test]
    fn json_has_exactly_the_fields_of_the_schema() {
        let json = serde_json::to_value(report()).unwrap();
        let keys = |value: &serde_json::Value| {
            let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys.join(" ")
        };
        assert_eq!(keys(&json), "bench machine notes params rows schema");
        let plain = "max mean median min n name params stddev unit values";
        assert_eq!(keys(&json["rows"][0]), plain);
        assert_eq!(keys(&json["rows"][2]), plain.replace("unit", "unavailable unit"));
        assert_eq!(keys(&json["rows"][3]), format!("ci95 {plain}"));
        assert_eq!(json["schema"], 1);
        assert_eq!(json["rows"][2]["mean"], serde_json::Value::Null);
    }

    #[test]
    fn an_unavailable_row_is_printed_with_its_reason() {
        let text = text(&report());
        let line = text.lines().find(|line| line.starts_with("ipis/c")).unwrap();
        assert!(line.ends_with("unavailable: no row CAL"), "{line}");
    }

    #[test]
    fn comparisons_are_made_round_by_round() {
        let percent = find(&report().rows, "off/a-over-b");
        assert_eq!(percent.unit, "%");
        assert!(percent.values.iter().all(|value| (value - 10.0).abs() < 1e-9));
        let interval = percent.ci95.unwrap();
        assert!(interval.high - interval.low < 1e-9);
    }

    #[test]
    fn a_comparison_with_an_unavailable_row_is_unavailable_and_says_which() {
        let report = report();
        let times = Row::times("x", &report.rows[0], &report.rows[2]);
        assert_eq!(times.unavailable.as_deref(), Some("ipis/c is: no row CAL"));
        let missing = find(&report.rows, "nowhere");
        assert!(missing.unavailable.is_some());
    }

    #[test]
    fn values_that_are_no_numbers_make_a_row_unavailable() {
        assert!(row("x", &[f64::NAN]).unavailable.is_some());
        assert!(row("x", &[]).unavailable.is_some());
    }
}
