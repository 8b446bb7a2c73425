//! Columns of tables: which figure of a row they show, and in which unit.

use std::cmp::Ordering;

use dormouse_protocol::{CountRow, EventInfo};
use serde_json::Value;

use super::row::{Row, ratio};
use super::table::Table;
use crate::text::{clean, tid};

/// The cell of an event that is not counted.
pub(crate) const NOT_COUNTED: &str = "<not counted>";

/// How a column writes its figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Name,
    /// A thread's id here, and the one in its own namespace.
    Tid,
    Whole,
    Percent,
    /// Per second.
    Rate,
    Seconds,
    Ms,
    Us,
    /// A time with the unit that fits.
    Time,
}

/// How much room numbers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Digits {
    /// As many as there are.
    All,
    /// Three digits and a unit: `40.9M`.
    Few,
}

/// One column of a table of rows.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) title: String,
    figure: Figure,
}

#[derive(Debug, Clone)]
enum Figure {
    Field(&'static str, Unit),
    /// How often an event happened.
    Count(EventInfo),
    /// How often it happened per second.
    Rate(String),
}

impl Column {
    /// Columns of fields.
    pub(crate) fn fields(columns: &[(&str, &'static str, Unit)]) -> Vec<Column> {
        let column = |&(title, field, unit): &(&str, &'static str, Unit)| Column {
            title: title.to_owned(),
            figure: Figure::Field(field, unit),
        };
        columns.iter().map(column).collect()
    }

    /// An event's column, with its count.
    pub(crate) fn count(event: &EventInfo) -> Column {
        let name = clean(&event.name);
        let title = match event.unit.as_str() {
            "1" | "" => name,
            "ns" => format!("{name} ms"),
            unit if name.contains(unit) => name,
            unit => format!("{name} {}", clean(unit)),
        };
        Column { title, figure: Figure::Count(event.clone()) }
    }

    /// An event's column, with its rate.
    pub(crate) fn rate(event: &str) -> Column {
        Column { title: format!("{}/s", clean(event)), figure: Figure::Rate(event.to_owned()) }
    }

    /// The order of two rows by this column: names go up, numbers down, missing ones come last.
    pub(crate) fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let number = |row: &Row| match &self.figure {
            Figure::Field(field, _) => row.number(field),
            Figure::Count(event) => row.count(&event.name).map(|count| count.value as f64),
            Figure::Rate(event) => row.rate(event),
        };
        match &self.figure {
            Figure::Field("name", _) => a.name.cmp(&b.name),
            _ => number(b).unwrap_or(-1.0).total_cmp(&number(a).unwrap_or(-1.0)),
        }
    }

    /// The row's text in this column.
    pub(crate) fn cell(&self, row: &Row, digits: Digits) -> String {
        let text = match &self.figure {
            Figure::Field(field, unit) => return field_cell(row, field, *unit, digits),
            Figure::Count(event) => row.count(&event.name).and_then(|n| count_text(event, n)),
            Figure::Rate(event) => row.rate(event).map(|per_s| digits.rate(per_s)),
        };
        let nothing = match digits {
            Digits::All => NOT_COUNTED,
            Digits::Few => "-",
        };
        text.unwrap_or_else(|| nothing.to_owned())
    }
}

/// A table of rows, its first column on the left.
pub(crate) fn table<'a>(columns: &[Column], rows: impl IntoIterator<Item = &'a Row>) -> Table {
    let title =
        |(at, column): (usize, &Column)| format!("{}{}", if at == 0 { "" } else { ">" }, column.title);
    let mut table = Table::new(columns.iter().enumerate().map(title));
    for row in rows {
        table.row(cells(columns, row, Digits::All));
    }
    table
}

/// A row's cells.
pub(crate) fn cells(columns: &[Column], row: &Row, digits: Digits) -> Vec<String> {
    columns.iter().map(|column| column.cell(row, digits)).collect()
}

fn field_cell(row: &Row, field: &str, unit: Unit, digits: Digits) -> String {
    let value = row.get(field).unwrap_or(&Value::Null);
    let Some(number) = value.as_f64().filter(|_| unit != Unit::Name) else {
        let has_ended = row.get("ended") == Some(&Value::Bool(true));
        let ended = if has_ended { " (ended)" } else { "" };
        return if unit == Unit::Name { clean(&row.name) + ended } else { String::new() };
    };
    match unit {
        Unit::Name | Unit::Whole => digits.count(value, number),
        Unit::Tid => {
            let id = |field| row.get(field).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let outer = id("tid").unwrap_or_default();
            tid(outer, id("inner_tid").unwrap_or(outer))
        }
        Unit::Percent => digits.percent(number),
        Unit::Rate => digits.rate(number),
        Unit::Seconds => digits.seconds(number),
        Unit::Ms => format!("{:.3}", number / 1e6),
        Unit::Us => format!("{:.1}", number / 1e3),
        Unit::Time => time(number),
    }
}

/// A count, and how much of the time it ran where that is not all; `None` where it never ran.
fn count_text(event: &EventInfo, count: &CountRow) -> Option<String> {
    let value = if event.unit == "ns" { ms(count.value) } else { count.value.to_string() };
    match count.running_ns {
        _ if event.unavailable.is_some() => None,
        running if running >= count.enabled_ns => Some(value),
        0 => None,
        running => Some(format!("{value} ({:.0} %)", ratio(running, count.enabled_ns) * 100.0)),
    }
}

/// Milliseconds to the microsecond.
pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

impl Digits {
    pub(crate) fn percent(self, percent: f64) -> String {
        match self {
            Digits::Few if percent >= 10_000.0 => scaled(percent),
            _ => format!("{percent:.1}"),
        }
    }

    fn seconds(self, ns: f64) -> String {
        let seconds = ns / 1e9;
        match self {
            Digits::Few if seconds >= 10_000.0 => scaled(seconds),
            Digits::Few if seconds >= 100.0 => format!("{seconds:.1}"),
            _ => format!("{seconds:.3}"),
        }
    }

    /// With a decimal only for small rates.
    fn rate(self, per_second: f64) -> String {
        match self {
            Digits::Few if per_second >= 9_999.5 => scaled(per_second),
            _ => format!("{per_second:.*}", usize::from(per_second < 100.0)),
        }
    }

    fn count(self, value: &Value, number: f64) -> String {
        match self {
            Digits::Few if number >= 10_000.0 => scaled(number),
            _ => value.to_string(),
        }
    }
}

/// A time with the unit that fits.
fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0}ns"),
        ..1e6 => format!("{}us", three(ns / 1e3)),
        ..1e9 => format!("{}ms", three(ns / 1e6)),
        _ => format!("{}s", scaled(ns / 1e9)),
    }
}

/// Three digits and a unit: `1.23k`, `40.9M`, `999G`.
fn scaled(value: f64) -> String {
    let mut rest = value;
    for unit in ["", "k", "M", "G", "T", "P"] {
        // A number that would be rounded to four digits has the next unit.
        if rest < 999.5 {
            return three(rest) + unit;
        }
        rest /= 1e3;
    }
    three(rest) + "E"
}

/// A number below 1000 by three digits.
fn three(value: f64) -> String {
    let places = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.places$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_digits_are_three_and_a_unit() {
        for (value, text) in [
            (0.0, "0.0"),
            (99.9, "99.9"),
            (999.4, "999"),
            (9_999.0, "9999"),
            (9_999.5, "10.0k"),
            (40_860_666.0, "40.9M"),
            (999_499.0, "999k"),
            (999_500.0, "1.00M"),
            (9_995_000.0, "10.0M"),
            (u64::MAX as f64, "18.4E"),
        ] {
            assert_eq!(Digits::Few.rate(value), text, "{value}");
        }
        assert_eq!(Digits::All.rate(40_860_666.0), "40860666");
        let times =
            [7, 1_230, 99_960, 999_999, 75_000_000, 12_345_678_000_000].map(|ns: u64| time(ns as f64));
        assert_eq!(times, ["7ns", "1.23us", "100us", "1000us", "75.0ms", "12.3ks"]);
        let seconds = [375_000_000, 99_999_000_000, 1_234_560_000_000, 40_860_666_000_000_000];
        let seconds = seconds.map(|ns: u64| Digits::Few.seconds(ns as f64));
        assert_eq!(seconds, ["0.375", "99.999", "1234.6", "40.9M"]);
    }
}
