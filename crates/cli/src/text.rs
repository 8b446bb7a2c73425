//! Text that somebody else wrote, made fit for a terminal, and plain tables.
//!
//! Names and field values come from the service, and it may have them from its own clients. A terminal
//! obeys what it is sent, so control characters never reach it raw.

use std::fmt::{self, Display, Write as _};

use clap::builder::styling::Style;

/// Shows text with control characters escaped.
pub(crate) struct Clean<'a>(pub(crate) &'a str);

impl Display for Clean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if is_unsafe(c) { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Shows text in quotes, with quotes and control characters escaped.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if is_unsafe(c) => write!(f, "{}", c.escape_default())?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Control characters, and those that reorder the text around them.
fn is_unsafe(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The clean text as a string.
pub(crate) fn clean(text: &str) -> String {
    Clean(text).to_string()
}

/// `1 key`, `2 keys`.
pub(crate) fn count(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// A list for a sentence, cut off where it stops being read.
pub(crate) fn list<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let mut text = String::new();
    for (i, name) in names.iter().take(most).enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{}", Clean(name.as_ref()));
    }
    if names.len() > most {
        let _ = write!(text, " and {} more", names.len() - most);
    }
    text
}

/// Where a column's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table in plain text: a header, rows, columns as wide as their widest cell.
pub(crate) struct Table {
    head: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new<S: Into<String>>(head: impl IntoIterator<Item = (S, Align)>) -> Table {
        let head = head.into_iter().map(|(title, align)| (title.into(), align)).collect();
        Table { head, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// The whole table, its header in `style`, no blanks at the ends of lines.
    pub(crate) fn render(&self, style: Style) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|(title, _)| width(title)).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, &widest), (_, align)) in cells.zip(&widths).zip(&self.head) {
                let blanks = " ".repeat(widest.saturating_sub(width(cell)));
                let _ = match align {
                    Align::Left => write!(line, "{cell}{blanks}  "),
                    Align::Right => write!(line, "{blanks}{cell}  "),
                };
            }
            line.truncate(line.trim_end().len());
            line
        };
        let head = line(&mut self.head.iter().map(|(title, _)| title.as_str()));
        let mut text = format!("{style}{head}{style:#}\n");
        for row in &self.rows {
            text.push_str(&line(&mut row.iter().map(String::as_str)));
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
    fn escape_sequences_of_others_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[31mb\nc\u{202e}d"), "a\\u{1b}[31mb\\nc\\u{202e}d");
        assert_eq!(clean("GET /menü"), "GET /menü");
        assert_eq!(Quoted("say \"hi\"\t").to_string(), "\"say \\\"hi\\\"\\t\"");
    }

    #[test]
    fn a_long_list_is_cut_off_and_says_so() {
        assert_eq!(list(&["a", "b", "c"], 3), "a, b, c");
        assert_eq!(list(&["a", "b", "c"], 1), "a and 2 more");
        assert_eq!(list::<&str>(&[], 3), "");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right), ("WHERE", Align::Left)]);
        table.row(["a".into(), "100".into(), String::new()]);
        table.row(["\x1b[1mlonger\x1b[0m".into(), "7".into(), "x".into()]);
        let text = table.render(Style::new());
        assert_eq!(text, "NAME      N  WHERE\na       100\n\x1b[1mlonger\x1b[0m    7  x\n");
    }
}
