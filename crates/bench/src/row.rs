//! A row of the report, and its description before it has values.

use dormouse_statistics::{Interval, Statistics, paired_interval, paired_median_interval};
use serde::{Deserialize, Serialize};

/// Parameters of a run or a row.
pub(crate) type Params = serde_json::Map<String, serde_json::Value>;

/// The parameter of rows that were computed from others.
const COMPUTED: &str = "computed";

/// In which direction the numbers of a row get better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    /// The row is a cost: of time, memory, interrupts, errors.
    Lower,
    /// The row is a yield.
    Higher,
}

impl Better {
    /// The direction that the unit gives. A share in percent may be either, and so may a number of
    /// things.
    fn of_unit(unit: &str) -> Option<Self> {
        match unit {
            "ns" | "us" | "ms" | "s" | "us/s" | "cycles" | "TSC cycles" | "bytes" | "KiB" | "IPIs"
            | "reads" | "traps" | "barriers" => Some(Self::Lower),
            "1/s" | "requests/s" | "requests/CPU s" => Some(Self::Higher),
            _ => None,
        }
    }
}

/// Name, unit and parameters of a row to be filled.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    better: Option<Better>,
    pub(crate) params: Params,
}

impl Spec {
    pub(crate) fn new(name: impl Into<String>, unit: &'static str) -> Self {
        Self { name: name.into(), unit, better: Better::of_unit(unit), params: Params::new() }
    }

    /// Says the way in which the row gets better, where the unit does not.
    #[must_use]
    pub(crate) fn better(self, better: Better) -> Self {
        Self { better: Some(better), ..self }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// The thing that one value is the price of.
    #[must_use]
    pub(crate) fn per(self, what: &str) -> Self {
        self.with("per", what)
    }

    /// The row is timed by the CPU time of the thread that runs it.
    #[must_use]
    pub(crate) fn cpu(self) -> Self {
        self.with("clock", "thread CPU time")
    }

    /// The row is timed by the wall clock.
    #[must_use]
    pub(crate) fn wall(self) -> Self {
        self.with("clock", "wall time")
    }
}

/// So that one row and several can be asked for alike.
impl From<Spec> for Vec<Spec> {
    fn from(spec: Spec) -> Self {
        vec![spec]
    }
}

/// One row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Name, `kind/variant`.
    pub(crate) name: String,
    /// Parameters of this row.
    pub(crate) params: Params,
    /// Unit of all numbers here.
    pub(crate) unit: String,
    /// In which direction it gets better; `None` for rows that only describe, or are computed from
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) better: Option<Better>,
    /// Number of values.
    pub(crate) n: usize,
    /// Arithmetic mean.
    pub(crate) mean: Option<f64>,
    /// Sample standard deviation.
    pub(crate) stddev: Option<f64>,
    /// Smallest value.
    pub(crate) min: Option<f64>,
    /// Largest value.
    pub(crate) max: Option<f64>,
    /// Median.
    pub(crate) median: Option<f64>,
    /// The values, one for each round.
    pub(crate) values: Vec<f64>,
    /// The pace of the machine just before each value: the CPU time of some calls of the kernel, in
    /// nanoseconds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pace: Vec<f64>,
    /// The 95 % interval of the mean, on rows that compare two others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ci95: Option<Interval>,
    /// The 95 % interval of the median, on rows that compare two others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ci95_median: Option<Interval>,
    /// Why there are no values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unavailable: Option<String>,
}

impl Row {
    /// The row with these values, or with the reason why it has none.
    pub(crate) fn new(spec: &Spec, values: Result<Vec<f64>, String>) -> Self {
        let summarised = values.and_then(|values| {
            let summary = Statistics::of(&values).ok_or("no round gave a finite value")?;
            Ok((summary, values))
        });
        let row = Self {
            name: spec.name.clone(),
            params: spec.params.clone(),
            unit: spec.unit.to_owned(),
            better: spec.better.filter(|_| !spec.params.contains_key(COMPUTED)),
            ..Self::default()
        };
        match summarised {
            Ok((summary, values)) => Self {
                n: summary.n,
                mean: Some(summary.mean),
                stddev: summary.stddev,
                min: Some(summary.min),
                max: Some(summary.max),
                median: Some(summary.median),
                values,
                ..row
            },
            Err(reason) => Self { unavailable: Some(reason), ..row },
        }
    }

    /// The row, whose values were measured at this pace of the machine.
    pub(crate) fn at(self, pace: &[f64]) -> Self {
        // A clock with coarse ticks may report 0.
        let is_known = self.unavailable.is_none() && pace.iter().all(|pace| *pace > 0.0);
        let pace = if is_known { pace.to_vec() } else { Vec::new() };
        Self { pace, ..self }
    }

    /// A row computed pairwise from the values of two others, with its intervals.
    pub(crate) fn paired(spec: Spec, a: &Row, b: &Row, of: impl Fn(f64, f64) -> f64) -> Self {
        let spec = spec.with(COMPUTED, "round by round").with("from", vec![a.name.clone(), b.name.clone()]);
        for row in [a, b] {
            if let Some(reason) = &row.unavailable {
                return Self::new(&spec, Err(format!("{} is: {reason}", row.name)));
            }
        }
        let values: Vec<f64> = a.values.iter().zip(&b.values).map(|(&a, &b)| of(a, b)).collect();
        let (ci95, ci95_median) = (paired_interval(&values), paired_median_interval(&values));
        Self { ci95, ci95_median, ..Self::new(&spec, Ok(values)) }
    }

    pub(crate) fn is_computed(&self) -> bool {
        self.params.contains_key(COMPUTED)
    }
}

/// The row with this name; if there is none, a row that reports so.
pub(crate) fn find(rows: &[Row], name: &str) -> Row {
    let missing = || Row::new(&Spec::new(name, ""), Err("this run has no such row".to_owned()));
    rows.iter().find(|row| row.name == name).cloned().unwrap_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, values: &[f64]) -> Row {
        Row::new(&Spec::new(name, "ns"), Ok(values.to_vec()))
    }

    #[test]
    fn comparisons_are_made_round_by_round() {
        let percent = Row::paired(
            Spec::new("a-over-b", "%"),
            &row("a", &[2.2, 4.4]),
            &row("b", &[2.0, 4.0]),
            |a, b| 100.0 * (a / b - 1.0),
        );
        assert!(percent.values.iter().all(|value| (value - 10.0).abs() < 1e-9));
        let interval = percent.ci95.unwrap();
        assert!(interval.high - interval.low < 1e-9);
    }

    #[test]
    fn comparing_an_unavailable_row_names_it() {
        let absent = Row::new(&Spec::new("ipis/c", "IPIs"), Err("no row CAL".to_owned()));
        let times = Row::paired(Spec::new("x", "times"), &row("a", &[1.0]), &absent, |a, b| a / b);
        assert_eq!(times.unavailable.as_deref(), Some("ipis/c is: no row CAL"));
        assert!(find(&[times], "nowhere").unavailable.is_some());
    }

    #[test]
    fn nan_makes_a_row_unavailable() {
        assert!(row("x", &[f64::NAN]).unavailable.is_some());
        assert!(row("x", &[]).unavailable.is_some());
    }
}
