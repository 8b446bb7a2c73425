//! Tables of text: names to the left, numbers to the right, with the smallest width that fits.

use std::io::{self, Write};

use dormouse_statistics::Interval;

/// A table with a heading line.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone)]
pub(crate) enum Line {
    Cells(Vec<String>),
    /// A name and a sentence that ignores the columns.
    Remark(String, String),
}

impl Table {
    /// An empty title is not printed.
    pub(crate) fn new(title: impl Into<String>, heading: &[&str]) -> Self {
        let mut table = Self { title: title.into(), lines: Vec::new() };
        table.row(heading.iter().map(|&cell| cell.to_owned()));
        table
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(Line::Cells(cells.into_iter().collect()));
    }

    pub(crate) fn remark(&mut self, name: &str, sentence: &str) {
        self.lines.push(Line::Remark(name.to_owned(), sentence.to_owned()));
    }

    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        if !self.title.is_empty() {
            writeln!(out, "{}", self.title)?;
        }
        let widths = self.widths();
        for line in &self.lines {
            let text = match line {
                Line::Cells(cells) => cells
                    .iter()
                    .zip(&widths)
                    .enumerate()
                    .map(|(column, (cell, &width))| match column {
                        0 => format!("{cell:<width$}"),
                        _ => format!("  {cell:>width$}"),
                    })
                    .collect(),
                Line::Remark(name, sentence) => {
                    let width = widths.first().copied().unwrap_or(0);
                    format!("{name:<width$}  {sentence}")
                }
            };
            writeln!(out, "{}", text.trim_end())?;
        }
        Ok(())
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            let cells = match line {
                Line::Cells(cells) => cells.as_slice(),
                Line::Remark(name, _) => std::slice::from_ref(name),
            };
            widths.resize(widths.len().max(cells.len()), 0);
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.chars().count());
            }
        }
        widths
    }
}

/// A number with about four significant digits; `-` for none.
pub(crate) fn value(number: Option<f64>) -> String {
    let Some(number) = number else {
        return "-".to_owned();
    };
    let digits = match number.abs() {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{number:.digits$}")
}

/// Both ends of an interval.
pub(crate) fn range(interval: &Interval) -> String {
    format!("{} .. {}", value(Some(interval.low)), value(Some(interval.high)))
}

/// `text` in lines of at most `width` characters, broken at spaces where there are any.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new("title", &["row", "n"]);
        table.row(["a-long-name".to_owned(), "1".to_owned()]);
        table.remark("b", "unavailable: because of something long");
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "title\nrow          n\na-long-name  1\nb            unavailable: because of something long\n"
        );
    }

    #[test]
    fn text_is_broken_at_spaces() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("longer-than-that a", 5), ["longer-than-that", "a"]);
        assert_eq!(wrapped("", 5), Vec::<String>::new());
    }

    #[test]
    fn numbers_keep_four_digits() {
        let shown = [12345.6, 123.45, 12.345, 1.2345, -0.5].map(|number| value(Some(number)));
        assert_eq!(shown, ["12346", "123.5", "12.35", "1.234", "-0.500"]);
        assert_eq!(value(None), "-");
    }
}
