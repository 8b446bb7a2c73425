//! Tables that are text files beside their workloads: the figures of an origin, and ours in its
//! columns.
//!
//! Tables are separated by empty lines. Lines without `|` are the title; the first line with `|`
//! has the headings of the columns, the others have cells. A heading may give the cell of all
//! lines, `heading = cell`, in which `#` stands for the first cell of the line; the cells of a line
//! then fill the other columns, in order. Within a cell or a title,
//!
//! | text | is |
//! |---|---|
//! | `{ROW}` | the median of a row |
//! | `{mean ROW}`, `{stddev ROW}`, `{max ROW}`, `{sum ROW}` | another statistic of it |
//! | `{PARAMETER ROW}` | a number among its parameters |
//! | `{A minus B}`, `{A over B}`, `{A gain B}` | difference, ratio, gain in percent |
//! | `{…:2}` | any of these with two digits after the point |
//! | `{@PARAMETER}` | a parameter of the run |
//!
//! A cell whose number is missing in this run reads `unavailable`; its row has the reason.

use std::cell::RefCell;

use crate::row::{Params, Row, find};
use crate::table::{Table, value};

/// The tables of `text`, filled from these rows and parameters.
pub(crate) fn tables(text: &str, rows: &[Row], params: &Params) -> Vec<Table> {
    Figures::new(rows, params).tables(text)
}

/// The rows that `text` names and that do not exist. Tables of a run are filled without them, since
/// its report may come from another version.
pub(crate) fn unknown(text: &str, rows: &[Row], params: &Params) -> Vec<String> {
    let figures = Figures::new(rows, params);
    figures.tables(text);
    figures.unknown.into_inner()
}

struct Figures<'r> {
    rows: &'r [Row],
    params: &'r Params,
    unknown: RefCell<Vec<String>>,
}

impl<'r> Figures<'r> {
    fn new(rows: &'r [Row], params: &'r Params) -> Self {
        Self { rows, params, unknown: RefCell::default() }
    }

    fn tables(&self, text: &str) -> Vec<Table> {
        text.trim_end().split("\n\n").map(|block| self.table(block)).collect()
    }

    fn table(&self, block: &str) -> Table {
        let (lines, title): (Vec<&str>, Vec<&str>) = block.lines().partition(|line| line.contains('|'));
        let headings: Vec<(&str, Option<&str>)> = split(lines.first().copied().unwrap_or_default())
            .map(|cell| cell.split_once(" = ").map_or((cell, None), |(name, cell)| (name, Some(cell))))
            .collect();
        let names: Vec<&str> = headings.iter().map(|&(name, _)| name).collect();
        let mut table = Table::new(self.fill(&title.join("\n")), &names);
        for line in lines.iter().skip(1) {
            let first = split(line).next().unwrap_or_default();
            let mut own = split(line);
            table.row(headings.iter().map(|(_, cell)| match cell {
                Some(cell) => self.fill(&cell.replace('#', first)),
                None => self.fill(own.next().unwrap_or_default()),
            }));
        }
        table
    }

    /// The text with its numbers.
    fn fill(&self, text: &str) -> String {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (term, after) = after.split_once('}').unwrap_or((after, ""));
            let Some(number) = self.number(term) else { return "unavailable".to_owned() };
            filled.push_str(before);
            filled.push_str(&number);
            rest = after;
        }
        filled + rest
    }

    fn number(&self, term: &str) -> Option<String> {
        if let Some(param) = term.strip_prefix('@') {
            return Some(self.params.get(param)?.to_string());
        }
        match term.rsplit_once(':') {
            None => Some(value(Some(self.evaluate(term)?))),
            Some((term, digits)) => {
                Some(format!("{:.*}", digits.parse::<usize>().ok()?, self.evaluate(term)?))
            }
        }
    }

    fn evaluate(&self, term: &str) -> Option<f64> {
        let both = |a, b| Some((self.evaluate(a)?, self.evaluate(b)?));
        let number = if let Some((a, b)) = term.split_once(" over ") {
            both(a, b).map(|(a, b)| a / b)?
        } else if let Some((a, b)) = term.split_once(" gain ") {
            both(a, b).map(|(a, b)| 100.0 * (a - b) / a)?
        } else if let Some((a, b)) = term.split_once(" minus ") {
            both(a, b).map(|(a, b)| a - b)?
        } else {
            let (what, name) = term.split_once(' ').unwrap_or(("median", term));
            if !self.rows.iter().any(|row| row.name == name) {
                self.unknown.borrow_mut().push(name.to_owned());
            }
            let row = find(self.rows, name);
            match what {
                "median" => row.median,
                "mean" => row.mean,
                "stddev" => row.stddev,
                "max" => row.max,
                "sum" => (row.n > 0).then(|| row.values.iter().sum()),
                param => row.params.get(param).and_then(serde_json::Value::as_f64),
            }?
        };
        number.is_finite().then_some(number)
    }
}

/// The cells of a line.
fn split(line: &str) -> impl Iterator<Item = &str> {
    line.split('|').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Spec;

    const TEXT: &str = "\
Origin: 4 processors. Here: {@cpus}.
name | before | ours = {a/#} us | ratio = {b/# over a/#:1}x
x | 10
y | 20

|all
sum | {sum a/x:0}, {threads a/x} threads, {max a/x minus a/x}, {b/x gain a/x:0}%
";

    #[test]
    fn rows_that_no_run_has_are_named() {
        let rows = [Row::new(&Spec::new("a/x", "us"), Ok(vec![1.0]))];
        let text = "name | {a/x} | {b over a/x}\nmine | {max c} | 1";
        assert_eq!(unknown(text, &rows, &Params::new()), ["c"]);
        assert_eq!(unknown("x | y\n1 | {a/x} {b}", &rows, &Params::new()), ["b"]);
    }

    #[test]
    fn ours_stand_beside_the_origins_figures() {
        let row = |name: &str, values: &[f64]| {
            Row::new(&Spec::new(name, "us").with("threads", 8), Ok(values.to_vec()))
        };
        let absent = |name: &str| Row::new(&Spec::new(name, "us"), Err("no clock".to_owned()));
        let rows = [row("a/x", &[1.0, 3.0]), row("b/x", &[8.0]), absent("a/y"), absent("b/y")];
        let params = Spec::new("", "").with("cpus", 2).params;
        let mut out = Vec::new();
        for table in tables(TEXT, &rows, &params) {
            table.write(&mut out).unwrap();
        }
        let text = String::from_utf8(out).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(
            words.join(" "),
            "Origin: 4 processors. Here: 2. name before ours ratio x 10 2.000 us 4.0x y 20 unavailable \
             unavailable all sum 4, 8.000 threads, 1.000, 75%"
        );
    }
}
