//! Which columns of a table fit into a window: a number is shown whole or not at all.
//!
//! Cells are short already ([`super::plain`]). If they do not fit, these are removed, one after the
//! other, until the rest does: the blanks beside names, the ends of long titles, then whole columns
//! in the order that the table gives. The column by which rows are sorted stays to the end.

use ratatui::text::Span;

/// Titles are not cut below this.
const SHORTEST_TITLE: usize = 9;
/// Nor are names.
const SHORTEST_NAME: usize = 8;
const LONGEST_NAME: usize = 24;

/// A table that fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// From left to right; the first holds names.
    pub(super) columns: Vec<Column>,
    /// Titles of those that do not fit.
    pub(super) hidden: Vec<String>,
}

/// A column that is shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Column {
    /// Its index in a row.
    pub(super) at: usize,
    pub(super) title: String,
    pub(super) width: usize,
}

/// Fits a table into `room` columns of a window: `None` where not even names and the column `kept`
/// fit. Columns go in the order of `dropped`.
pub(super) fn fit<'a>(
    titles: &[String],
    rows: impl Iterator<Item = &'a Vec<String>>,
    dropped: &[usize],
    kept: usize,
    room: usize,
) -> Option<Fit> {
    let mut cells = vec![0; titles.len()];
    for row in rows {
        for (widest, cell) in cells.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    let name = cells[0].clamp(SHORTEST_NAME, LONGEST_NAME);
    let mut shown: Vec<usize> = (1..titles.len()).collect();
    let mut drops = dropped.iter().filter(|&&at| at != kept);
    loop {
        let full = |at: usize| width(&titles[at]);
        let short = |at: usize| full(at).min(SHORTEST_TITLE);
        for (name, title) in
            [(name, &full as &dyn Fn(usize) -> usize), (name, &short), (SHORTEST_NAME, &short)]
        {
            let numbers = shown.iter().map(|&at| Column {
                at,
                width: cells[at].max(title(at)),
                title: cut(&titles[at], cells[at].max(title(at))),
            });
            let numbers: Vec<Column> = numbers.collect();
            let wanted: usize = numbers.iter().map(|column| column.width + 1).sum();
            if name + wanted <= room {
                let width = room - wanted;
                let names = Column { at: 0, title: cut(&titles[0], width), width };
                let columns = std::iter::once(names).chain(numbers).collect();
                let is_hidden = |at: &usize| !shown.contains(at);
                let hidden = (1..titles.len()).filter(is_hidden).map(|at| titles[at].clone()).collect();
                return Some(Fit { columns, hidden });
            }
        }
        let next = drops.next()?;
        shown.retain(|at| at != next);
    }
}

/// Columns of a window that text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Text of at most `room` columns, with a mark if it was cut.
pub(super) fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut short = String::new();
    for c in text.chars() {
        short.push(c);
        if width(&short) + 1 > room {
            short.pop();
            break;
        }
    }
    if room > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(room: usize, kept: usize) -> Option<(Vec<String>, Vec<String>)> {
        let titles = ["NAME", "CPU %", "an-event-of-them/s", "ALIVE"].map(str::to_owned);
        let rows = [["tea house".to_owned(), "12345".into(), "1".into(), "123456789".into()].to_vec()];
        let fit = fit(&titles, rows.iter(), &[3, 2, 1], kept, room)?;
        let wide = fit.columns.iter().map(|column| column.width + 1).sum::<usize>() - 1;
        assert_eq!(wide, room, "names take what is left");
        Some((fit.columns.into_iter().map(|column| column.title).collect(), fit.hidden))
    }

    #[test]
    fn titles_are_cut_before_columns_go() {
        let shown = |room, kept| table(room, kept).map(|(shown, hidden)| (shown.join(" "), hidden.join(" ")));
        let is = |shown: &str, hidden: &str| Some((shown.to_owned(), hidden.to_owned()));
        assert_eq!(shown(44, 1), is("NAME CPU % an-event-of-them/s ALIVE", ""));
        assert_eq!(shown(43, 1), is("NAME CPU % an-event… ALIVE", ""));
        assert_eq!(shown(34, 1), is("NAME CPU % an-event… ALIVE", ""));
        assert_eq!(shown(24, 1), is("NAME CPU % an-event…", "ALIVE"));
        assert_eq!(shown(33, 3), is("NAME CPU % ALIVE", "an-event-of-them/s"));
        assert_eq!(shown(18, 3), is("NAME ALIVE", "CPU % an-event-of-them/s"));
        assert_eq!(shown(14, 1), is("NAME CPU %", "an-event-of-them/s ALIVE"));
        assert_eq!(shown(13, 1), None);
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("GET /menu", 9), "GET /menu");
        assert_eq!(cut("GET /menu", 5), "GET …");
        assert_eq!((cut("GET", 1).as_str(), cut("GET", 0).as_str()), ("…", ""));
        assert_eq!(cut("茶茶茶", 4), "茶…", "a character may take two columns");
    }
}
