//! Tables in plain text.

use std::fmt::Write as _;

use clap::builder::styling::Style;

/// Between two columns.
const GAP: &str = "  ";

/// A header and rows; a column is as wide as its widest cell.
pub(crate) struct Table {
    /// Titles; true: the column stands on the right.
    head: Vec<(String, bool)>,
    lines: Vec<Line>,
}

enum Line {
    Row(Vec<String>),
    /// A text that begins at this column and ends anywhere.
    Text(usize, String),
}

impl Table {
    /// An empty table with these titles. A column whose title begins with `>`, which is not shown,
    /// stands on the right.
    pub(crate) fn new<S: Into<String>>(titles: impl IntoIterator<Item = S>) -> Table {
        let title = |title: S| {
            let title = title.into();
            title.strip_prefix('>').map_or_else(|| (title.clone(), false), |rest| (rest.to_owned(), true))
        };
        Table { head: titles.into_iter().map(title).collect(), lines: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.lines.push(Line::Row(cells.into()));
    }

    /// Adds a line that begins below the left end of column `at`. It may be longer than that, and
    /// makes no column wider.
    pub(crate) fn text(&mut self, at: usize, text: String) {
        self.lines.push(Line::Text(at, text));
    }

    /// The whole table, its header in `style`, no blanks at the ends of lines.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|(title, _)| width(title)).collect();
        let rows = self.lines.iter().filter_map(|line| match line {
            Line::Row(cells) => Some(cells),
            Line::Text(..) => None,
        });
        for row in rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, &widest), (_, is_right)) in cells.zip(&widths).zip(&self.head) {
                let blanks = " ".repeat(widest - width(cell));
                let (before, after) = if *is_right { (&blanks[..], "") } else { ("", &blanks[..]) };
                let _ = write!(line, "{before}{cell}{after}{GAP}");
            }
            line.truncate(line.trim_end().len());
            line
        };
        let head = line(&mut self.head.iter().map(|(title, _)| title.as_str()));
        let mut text = format!("{style}{head}{style:#}\n");
        for below in &self.lines {
            match below {
                Line::Row(cells) => text.push_str(&line(&mut cells.iter().map(String::as_str))),
                Line::Text(at, below) => {
                    let before: usize = widths[..*at].iter().map(|width| width + GAP.len()).sum();
                    let _ = write!(text, "{:before$}{below}", "");
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Columns that a cell takes: its styles take none.
fn width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).to_string().chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", ">N", "WHERE"]);
        table.row(["a".into(), "100".into(), String::new()]);
        table.row(["\x1b[1mlonger\x1b[0m".into(), "7".into(), "x".into()]);
        let text = table.render(Style::new());
        assert_eq!(text, "NAME      N  WHERE\na       100\n\x1b[1mlonger\x1b[0m    7  x\n");
    }

    #[test]
    fn a_text_makes_no_column_wider() {
        let mut table = Table::new(["NAME", ">N", "WHERE"]);
        table.row(["a".into(), "100".into(), "x".into()]);
        table.text(1, "\x1b[1mlonger\x1b[0m than all of the table".into());
        table.row(["b".into(), "7".into(), "y".into()]);
        let text = table.render(Style::new());
        let (above, below) = ("NAME    N  WHERE\na     100  x\n", "b       7  y\n");
        assert_eq!(text, format!("{above}      \x1b[1mlonger\x1b[0m than all of the table\n{below}"));
    }
}
