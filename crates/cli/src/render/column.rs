//! Columns of tables: which figure of a row they show, and in which unit.

use std::cmp::Ordering;

use dormouse_protocol::figures::{
    EVENTS_LEAVE, Figure, FigureColumn, FigurePart, FigureUnit as Unit, FigureValue, FigureView, ratio,
};
use dormouse_protocol::{CountRow, EventInfo};

use super::row::Row;
use super::table::Table;
use crate::text::{clean, tid};

/// The cell of an event that is not counted.
pub(crate) const NOT_COUNTED: &str = "<not counted>";

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
    /// Where there is no room, columns leave in this order; those with 0 stay.
    pub(crate) leaves: u8,
    /// Whether rows stand in the order of this column at first.
    pub(crate) sorts: bool,
    /// Whether the column is left out if no row has the figure.
    if_any: bool,
    shown: Shown,
}

#[derive(Debug, Clone)]
enum Shown {
    /// The figure at that place of the table.
    Figure(usize, FigurePart, Unit),
    /// How often an event happened.
    Count(EventInfo),
    /// How often it happened per second.
    Rate(String),
}

impl Column {
    /// The columns of a view, whose figures are those of the table.
    pub(crate) fn of_view<Of>(figures: &[Figure<Of>], view: FigureView) -> Vec<Column> {
        let all = figures.iter().enumerate();
        let all = all.flat_map(|(at, figure)| figure.columns.iter().map(move |column| (at, column)));
        let mut columns: Vec<(usize, &FigureColumn)> =
            all.filter(|(_, column)| column.view == view).collect();
        columns.sort_by_key(|(_, column)| column.place);
        let column = |(at, column): (usize, &FigureColumn)| Column {
            title: column.title.to_owned(),
            leaves: column.leaves,
            sorts: column.sorts,
            if_any: column.if_any,
            shown: Shown::Figure(at, column.part, column.unit),
        };
        columns.into_iter().map(column).collect()
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
        Column {
            title,
            leaves: EVENTS_LEAVE,
            sorts: false,
            if_any: false,
            shown: Shown::Count(event.clone()),
        }
    }

    /// An event's column, with its rate.
    pub(crate) fn rate(event: &str) -> Column {
        let (title, shown) = (format!("{}/s", clean(event)), Shown::Rate(event.to_owned()));
        Column { title, leaves: EVENTS_LEAVE, sorts: false, if_any: false, shown }
    }

    /// Leaves out the columns that no row has, if they are such.
    pub(crate) fn of_rows<'a>(columns: &mut Vec<Column>, rows: &(impl Iterator<Item = &'a Row> + Clone)) {
        columns.retain(|column| match &column.shown {
            Shown::Figure(at, part, _) if column.if_any => {
                rows.clone().any(|row| row.value(*at, *part) != FigureValue::Absent)
            }
            _ => true,
        });
    }

    /// The order of two rows by this column: names go up, numbers down, missing ones come last.
    pub(crate) fn compare(&self, a: &Row, b: &Row) -> Ordering {
        let number = |row: &Row| match &self.shown {
            Shown::Figure(at, part, _) => row.value(*at, *part).number(),
            Shown::Count(event) => row.count(&event.name).map(|count| count.value as f64),
            Shown::Rate(event) => row.rate(event),
        };
        match self.shown {
            Shown::Figure(_, _, Unit::Name) => a.name.cmp(&b.name),
            _ => number(b).unwrap_or(-1.0).total_cmp(&number(a).unwrap_or(-1.0)),
        }
    }

    /// Whether the row has a number in this column that is not 0.
    pub(crate) fn is_used(&self, row: &Row) -> bool {
        match &self.shown {
            Shown::Figure(_, _, Unit::Name) => false,
            Shown::Figure(at, part, _) => row.value(*at, *part).number().is_some_and(|n| n > 0.0),
            Shown::Count(event) => row.count(&event.name).is_some_and(|count| count.value > 0),
            Shown::Rate(event) => row.rate(event).is_some_and(|per_s| per_s > 0.0),
        }
    }

    /// The row's text in this column.
    pub(crate) fn cell(&self, row: &Row, digits: Digits) -> String {
        let text = match &self.shown {
            Shown::Figure(at, part, unit) => return figure_cell(row, &row.value(*at, *part), *unit, digits),
            Shown::Count(event) => row.count(&event.name).and_then(|n| count_text(event, n)),
            Shown::Rate(event) => row.rate(event).map(|per_s| digits.rate(per_s)),
        };
        let nothing = match digits {
            Digits::All => NOT_COUNTED,
            Digits::Few => "-",
        };
        text.unwrap_or_else(|| nothing.to_owned())
    }
}

/// A table of rows, its first column and its texts on the left.
pub(crate) fn table<'a>(
    mut columns: Vec<Column>,
    rows: impl IntoIterator<Item = &'a Row, IntoIter: Clone>,
) -> Table {
    let rows = rows.into_iter();
    Column::of_rows(&mut columns, &rows);
    let title = |(at, column): (usize, &Column)| {
        let is_text = at == 0 || matches!(column.shown, Shown::Figure(_, _, Unit::Text));
        format!("{}{}", if is_text { "" } else { ">" }, column.title)
    };
    let mut table = Table::new(columns.iter().enumerate().map(title));
    for row in rows {
        table.row(cells(&columns, row, Digits::All));
    }
    table
}

/// A row's cells.
pub(crate) fn cells(columns: &[Column], row: &Row, digits: Digits) -> Vec<String> {
    columns.iter().map(|column| column.cell(row, digits)).collect()
}

fn figure_cell(row: &Row, value: &FigureValue, unit: Unit, digits: Digits) -> String {
    if unit == Unit::Name {
        return clean(&row.name) + if row.has_ended { " (ended)" } else { "" };
    }
    if let FigureValue::Text(text) = value {
        return clean(text);
    }
    let Some(number) = value.number() else { return String::new() };
    match unit {
        Unit::Name | Unit::Text | Unit::Whole => digits.count(value, number),
        Unit::Tid => row.tid.map(|(outer, inner)| tid(outer, inner)).unwrap_or_default(),
        Unit::Percent | Unit::Share => digits.percent(number),
        Unit::Rate => digits.rate(number),
        Unit::Seconds => digits.seconds(number),
        Unit::Ms => format!("{:.3}", number / 1e6),
        Unit::Us => format!("{:.1}", number / 1e3),
        Unit::Time => time(number),
    }
}

/// A count, and how much of the time it ran where that is not all; `None` where it never ran, or
/// was not even enabled: counts of groups may be asleep.
fn count_text(event: &EventInfo, count: &CountRow) -> Option<String> {
    let value = if event.unit == "ns" { ms(count.value) } else { count.value.to_string() };
    match count.running_ns {
        _ if event.unavailable.is_some() || !count.is_counted() => None,
        running if running >= count.enabled_ns => Some(value),
        running => Some(format!("{value} ({:.0} %)", ratio(running, count.enabled_ns) * 100.0)),
    }
}

/// Milliseconds to the microsecond.
pub(crate) fn ms(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

impl Digits {
    /// `0.0` is exactly none, and `100.0` exactly all: one missed request in 10,000 must show.
    pub(crate) fn percent(self, percent: f64) -> String {
        match self {
            _ if percent > 0.0 && percent < 0.05 => "<0.1".to_owned(),
            _ if (99.95..100.0).contains(&percent) => ">99.9".to_owned(),
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
            _ if per_second > 0.0 && per_second < 0.05 => "<0.1".to_owned(),
            Digits::Few if per_second >= 9_999.5 => scaled(per_second),
            _ => format!("{per_second:.*}", usize::from(per_second < 100.0)),
        }
    }

    fn count(self, value: &FigureValue, number: f64) -> String {
        match (self, value) {
            (Digits::Few, _) if number >= 10_000.0 => scaled(number),
            (_, FigureValue::Whole(n)) => n.to_string(),
            _ => number.to_string(),
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

    #[test]
    fn little_is_not_nothing_nor_nearly_all() {
        for (value, percent, rate) in [
            (0.0, "0.0", "0.0"),
            (0.04, "<0.1", "<0.1"),
            (0.05, "0.1", "0.1"),
            (99.94, "99.9", "99.9"),
            (99.96, ">99.9", "100.0"),
            (100.0, "100.0", "100"),
        ] {
            for digits in [Digits::All, Digits::Few] {
                assert_eq!((digits.percent(value).as_str(), digits.rate(value).as_str()), (percent, rate));
            }
        }
    }

    #[test]
    fn what_was_never_enabled_has_no_count() {
        let [name, unit, pmu] = ["page-faults", "1", "software"].map(str::to_owned);
        let event = EventInfo { name, unit, pmu, note: String::new(), unavailable: None };
        let text = |(enabled_ns, running_ns)| {
            count_text(&event, &CountRow { event: "page-faults".into(), value: 0, enabled_ns, running_ns })
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!([(8, 8), (8, 4), (8, 0), (0, 0)].map(text), [some("0"), some("0 (50 %)"), None, None]);
    }
}
