//! The report: one JSON object, and the same as text.
//!
//! The JSON is a contract (schema 1, design §5.8): fields are only ever added. Every row contains
//! all its values, one for each round, in order, so that a reader can compute other statistics. A
//! row that could not be measured is present with `unavailable` and the reason; its statistics are
//! null.

use std::io::{self, Write};

use dormouse_statistics::Interval;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::row::{Params, Row};
use crate::table::{Table, range, value, wrapped};

/// The version of the JSON format.
pub(crate) const SCHEMA: u32 = 1;

/// Notes about wrong answers begin with this.
pub(crate) const WRONG: &str = "WRONG ANSWER: ";

/// One run of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct BenchReport {
    /// The [`SCHEMA`] of the writer.
    pub(crate) schema: u32,
    /// Name of the workload.
    pub(crate) bench: String,
    /// The machine that the workload ran on.
    pub(crate) machine: Machine,
    /// The parameters of the run.
    pub(crate) params: Params,
    /// Measured rows, then the rows computed from them.
    pub(crate) rows: Vec<Row>,
    /// Goals, conditions and warnings.
    pub(crate) notes: Vec<String>,
}

impl BenchReport {
    /// Why the workload failed: a wrong answer, or no row with a value.
    pub(crate) fn failure(&self) -> Option<String> {
        if let Some(first) = self.notes.iter().find_map(|note| note.strip_prefix(WRONG)) {
            return Some(format!("wrong answer: {first}"));
        }
        if self.rows.iter().any(|row| row.n > 0) {
            return None;
        }
        let reason = self.rows.iter().find_map(|row| row.unavailable.as_deref());
        Some(format!("no row could be measured: {}", reason.unwrap_or("there is none")))
    }

    /// Writes the report for people, with the workload's tables below the rows.
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

    fn measured(&self) -> Table {
        let heading = ["row", "unit", "n", "median", "mean", "stddev", "min", "max"];
        self.table("", &heading, false, |row| {
            [row.median, row.mean, row.stddev, row.min, row.max].map(value).into()
        })
    }

    fn compared(&self) -> Table {
        let heading = ["row", "unit", "n", "median", "95 % of median", "mean", "95 % of mean"];
        self.table("Compared round by round", &heading, true, |row| {
            let interval =
                |interval: &Option<Interval>| interval.as_ref().map_or_else(|| "-".to_owned(), range);
            vec![value(row.median), interval(&row.ci95_median), value(row.mean), interval(&row.ci95)]
        })
    }

    fn table(
        &self,
        title: &str,
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
    use crate::row::Spec;

    fn report() -> BenchReport {
        let row = |name: &str, values| Row::new(&Spec::new(name, "ns").with("iterations", 1000), values);
        let (a, b) = (row("off/a", Ok(vec![2.2, 4.4])), row("off/b", Ok(vec![2.0, 4.0])));
        let absent = row("ipis/c", Err("no row CAL".to_owned()));
        let percent = Row::paired(Spec::new("off/a-over-b", "%"), &a, &b, |a, b| 100.0 * (a / b - 1.0));
        BenchReport {
            schema: SCHEMA,
            bench: "keys".to_owned(),
            machine: Machine::here(),
            params: Spec::new("", "").with("reps", 2).params,
            rows: vec![a, b, absent, percent],
            notes: vec!["a note".to_owned()],
        }
    }

    #[test]
    fn json_comes_back_as_it_went() {
        let report = report();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&json).unwrap(), report);
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
        let computed = "max mean median min n name params stddev unit values";
        let plain = format!("better {computed}");
        assert_eq!(keys(&json["rows"][0]), plain);
        assert_eq!(keys(&json["rows"][2]), plain.replace("unit", "unavailable unit"));
        assert_eq!(keys(&json["rows"][3]), format!("ci95 {computed}"));
        assert_eq!(json["schema"], 1);
        assert_eq!(json["rows"][2]["mean"], serde_json::Value::Null);
    }

    #[test]
    fn an_unavailable_row_is_printed_with_its_reason() {
        let mut out = Vec::new();
        report().write_text(&mut out, &[]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.lines().find(|line| line.starts_with("ipis/c")).unwrap();
        assert!(line.ends_with("unavailable: no row CAL"), "{line}");
    }
}
