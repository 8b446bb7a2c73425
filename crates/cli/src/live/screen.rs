//! The state of the live view and how keys change it, independent of a terminal.

use std::cmp::{Ordering as RowOrder, Reverse};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::render::column::{Column, Digits, cells};
use crate::render::profile::uses::of_thread;
use crate::render::row::Row;
use crate::render::view::{View, group_columns, thread_columns, wait_columns};

/// How many rows a page key moves.
const PAGE: usize = 10;

/// Keys and their effects, for the help.
pub(super) const HELP: &[(&str, &str)] = &[
    ("q, Ctrl-C", "leave"),
    ("j k, arrows", "move; PgUp PgDn by ten"),
    ("g G", "first, last row"),
    ("Tab", "groups or threads"),
    ("h l, arrows", "sort by the column to the left, right"),
    ("s", "sort by the next column"),
    ("i", "turn the order round"),
    ("/", "show only names with this text; Esc shows all"),
    ("Enter", "the functions of the group; q comes back"),
    ("u", "the functions of work in no group"),
    ("w", "where tasks spend their time; w comes back"),
    ("Space, p", "pause"),
    ("?", "this help"),
];

/// A table of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Groups,
    Threads,
}

/// Order, selection and place of one table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) column: usize,
    pub(super) is_inverted: bool,
    pub(super) selected: usize,
}

/// The meaning of the keyboard at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Table,
    Filter,
    Help,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Stay,
    Leave,
    /// Goes to the functions of [`Screen::opened`].
    Open,
    /// Goes to the functions of work in no group.
    OpenUnattributed,
}

/// The live view without its terminal.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) who: String,
    pub(super) view: Option<View>,
    pub(super) focus: Pane,
    pub(super) mode: Mode,
    pub(super) filter: String,
    pub(super) is_paused: bool,
    /// The groups' columns are those of times.
    pub(super) shows_waits: bool,
    /// Set by the key that shows waits, and read by the thread that talks to the agent.
    pub(super) wants_waits: Arc<AtomicBool>,
    /// The positions in the lists of groups and of threads.
    places: [Place; 2],
}

impl Screen {
    pub(super) fn new(who: String) -> Screen {
        let place = |columns: &[Column]| Place { column: first(columns), is_inverted: false, selected: 0 };
        Screen {
            who,
            view: None,
            focus: Pane::Groups,
            mode: Mode::Table,
            filter: String::new(),
            is_paused: false,
            shows_waits: false,
            wants_waits: Arc::default(),
            places: [place(&group_columns(&[])), place(&thread_columns(&[]))],
        }
    }

    /// Shows a newer view, unless the person wants to read this one.
    pub(super) fn update(&mut self, view: View) {
        if !self.is_paused {
            if view.inside.is_none() {
                self.focus = Pane::Threads;
            }
            self.view = Some(view);
            self.keep_selection_inside();
        }
    }

    /// A table's columns.
    pub(super) fn columns(&self, pane: Pane) -> Vec<Column> {
        let view = self.view.as_ref();
        let mut columns = match pane {
            Pane::Groups if self.shows_waits => wait_columns(),
            Pane::Groups => group_columns(view.map_or(&[], |view| &view.events)),
            Pane::Threads => return thread_columns(view.map_or(&[], |view| &view.thread_events)),
        };
        Column::of_rows(&mut columns, &view.map_or(&[][..], View::groups).iter());
        columns
    }

    pub(super) fn place(&self, pane: Pane) -> Place {
        self.places[pane as usize]
    }

    /// The cells of the rows of a table.
    pub(super) fn rows(&self, pane: Pane) -> Vec<Vec<String>> {
        let columns = self.columns(pane);
        self.ordered(pane).into_iter().map(|row| cells(&columns, row, Digits::Few)).collect()
    }

    /// The rows of a table, filtered and in order.
    fn ordered(&self, pane: Pane) -> Vec<&Row> {
        let Some(view) = &self.view else { return Vec::new() };
        let rows = match pane {
            Pane::Groups => view.groups(),
            Pane::Threads => &view.threads,
        };
        let (columns, place) = (self.columns(pane), self.place(pane));
        let filter = self.filter.to_lowercase();
        let mut rows: Vec<&Row> =
            rows.iter().filter(|row| row.name.to_lowercase().contains(&filter)).collect();
        rows.sort_by(|a, b| {
            // A column may leave with the last row that had its figure.
            let order = columns.get(place.column).map_or(RowOrder::Equal, |column| column.compare(a, b));
            if place.is_inverted { order.reverse() } else { order }
        });
        rows
    }

    /// The selected group; in a process without groups the selected thread: as the parts of its
    /// profile are called.
    pub(super) fn opened(&self) -> Option<String> {
        let is_inside = self.view.as_ref()?.inside.is_some();
        if is_inside && self.focus == Pane::Threads {
            return None;
        }
        let name = &self.ordered(self.focus).get(self.place(self.focus).selected)?.name;
        Some(if is_inside { name.clone() } else { of_thread(name) })
    }

    /// The rows below the groups.
    pub(super) fn sums(&self) -> Vec<Vec<String>> {
        let columns = self.columns(Pane::Groups);
        let sums = self.view.iter().flat_map(View::sums);
        sums.map(|row| cells(&columns, &row, Digits::Few)).collect()
    }

    /// Does what a key means.
    pub(super) fn key(&mut self, key: KeyEvent) -> Flow {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Flow::Leave;
        }
        match self.mode {
            Mode::Help => self.mode = Mode::Table,
            Mode::Filter => self.edit(key.code),
            Mode::Table => return self.command(key.code),
        }
        Flow::Stay
    }

    fn edit(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.keep_selection_inside();
    }

    fn command(&mut self, code: KeyCode) -> Flow {
        let last = self.rows(self.focus).len().saturating_sub(1);
        let columns = self.columns(self.focus).len();
        let can_open = self.opened().is_some();
        let has_groups = self.view.as_ref().is_some_and(|view| view.inside.is_some());
        let place = &mut self.places[self.focus as usize];
        match code {
            KeyCode::Char('q') => return Flow::Leave,
            KeyCode::Enter if can_open => return Flow::Open,
            KeyCode::Char('u') if has_groups => return Flow::OpenUnattributed,
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('j') | KeyCode::Down => place.selected = (place.selected + 1).min(last),
            KeyCode::Char('k') | KeyCode::Up => place.selected = place.selected.saturating_sub(1),
            KeyCode::PageDown => place.selected = (place.selected + PAGE).min(last),
            KeyCode::PageUp => place.selected = place.selected.saturating_sub(PAGE),
            KeyCode::Char('g') | KeyCode::Home => place.selected = 0,
            KeyCode::Char('G') | KeyCode::End => place.selected = last,
            KeyCode::Char('l' | 's') | KeyCode::Right => place.column = (place.column + 1) % columns,
            KeyCode::Char('h') | KeyCode::Left => place.column = (place.column + columns - 1) % columns,
            KeyCode::Char('w') => self.toggle_waits(),
            KeyCode::Char('i') => place.is_inverted = !place.is_inverted,
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Pane::Groups => Pane::Threads,
                    Pane::Threads => Pane::Groups,
                };
            }
            KeyCode::Esc => self.filter.clear(),
            _ => {}
        }
        Flow::Stay
    }

    /// Shows the other columns of groups, by CPU time, which both have.
    fn toggle_waits(&mut self) {
        self.shows_waits = !self.shows_waits;
        let has_times = self.view.as_ref().is_some_and(|view| view.groups().iter().any(|row| row.has_waits));
        if self.shows_waits && !has_times {
            self.wants_waits.store(true, Ordering::Relaxed);
        }
        let column = first(&self.columns(Pane::Groups));
        let place = &mut self.places[Pane::Groups as usize];
        (place.column, place.is_inverted) = (column, false);
    }

    fn keep_selection_inside(&mut self) {
        for pane in [Pane::Groups, Pane::Threads] {
            let last = self.rows(pane).len().saturating_sub(1);
            let place = &mut self.places[pane as usize];
            place.selected = place.selected.min(last);
        }
    }
}

/// The column that rows are sorted by at first.
fn first(columns: &[Column]) -> usize {
    columns.iter().position(|column| column.sorts).unwrap_or(0)
}

/// The columns that leave where there is no room, the first one first; of events the last one.
pub(super) fn leaving(columns: &[Column]) -> Vec<usize> {
    let mut leaving: Vec<usize> = (0..columns.len()).filter(|&at| columns[at].leaves > 0).collect();
    leaving.sort_by_key(|&at| (columns[at].leaves, Reverse(at)));
    leaving
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::view::tests::pair;

    fn screen() -> Screen {
        let (before, after) = pair();
        let mut screen = Screen::new("tea (process 7)".into());
        screen.update(View::between(&before, &before, &after, &[]));
        screen
    }

    fn press(screen: &mut Screen, keys: &str) -> Flow {
        let mut flow = Flow::Stay;
        for c in keys.chars() {
            let code = match c {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\t' => KeyCode::Tab,
                '\x7f' => KeyCode::Backspace,
                c => KeyCode::Char(c),
            };
            flow = screen.key(code.into());
        }
        flow
    }

    fn names(screen: &Screen, pane: Pane) -> Vec<String> {
        screen.rows(pane).into_iter().map(|mut cells| cells.swap_remove(0)).collect()
    }

    #[test]
    fn the_busiest_stands_on_top_at_first() {
        let mut screen = screen();
        assert_eq!(names(&screen, Pane::Groups), ["POST /brew", "GET /menu", "idle"]);
        press(&mut screen, "ssssss");
        assert_eq!(names(&screen, Pane::Groups), ["GET /menu", "POST /brew", "idle"], "by polls per second");
        press(&mut screen, "i");
        assert_eq!(names(&screen, Pane::Groups), ["idle", "POST /brew", "GET /menu"]);
        press(&mut screen, "ihhhhhhh");
        assert_eq!(names(&screen, Pane::Groups), ["GET /menu", "POST /brew", "idle"], "by name");
        press(&mut screen, "hl");
        assert_eq!(screen.place(Pane::Groups).column, 0, "columns wrap around");
        assert_eq!(names(&screen, Pane::Threads), ["main", "worker"], "the other table keeps its order");
    }

    #[test]
    fn the_selection_stays_inside_the_table() {
        let mut screen = screen();
        press(&mut screen, "jjjjjjj");
        assert_eq!(screen.place(Pane::Groups).selected, 2);
        press(&mut screen, "kg");
        assert_eq!(screen.place(Pane::Groups).selected, 0);
        press(&mut screen, "k");
        assert_eq!(screen.place(Pane::Groups).selected, 0);
        press(&mut screen, "G");
        assert_eq!(screen.place(Pane::Groups).selected, 2);
        press(&mut screen, "/brew\n");
        assert_eq!(screen.place(Pane::Groups).selected, 0, "rows that are gone cannot be selected");
        press(&mut screen, "\tj");
        assert_eq!((screen.focus, screen.place(Pane::Threads).selected), (Pane::Threads, 0));
    }

    #[test]
    fn a_filter_is_typed_corrected_kept_and_cleared() {
        let mut screen = screen();
        press(&mut screen, "/MENUx\x7f");
        assert_eq!(names(&screen, Pane::Groups), ["GET /menu"]);
        assert_eq!(press(&mut screen, "q"), Flow::Stay, "q is a letter here");
        press(&mut screen, "\x7f\n");
        assert_eq!((screen.mode, names(&screen, Pane::Groups).len()), (Mode::Table, 1));
        press(&mut screen, "\x1b");
        assert_eq!(names(&screen, Pane::Groups).len(), 3);
    }

    fn keys_on(screen: &Screen) -> Option<usize> {
        Some(screen.view.as_ref()?.inside.as_ref()?.keys_on)
    }

    #[test]
    fn pausing_keeps_what_is_read() {
        let mut screen = screen();
        let (before, after) = pair();
        press(&mut screen, " ");
        screen.update(View::between(&after, &after, &before, &[]));
        assert_eq!(keys_on(&screen), Some(3));
        press(&mut screen, "p");
        screen.update(View::between(&before, &before, &before, &[]));
        assert_eq!(keys_on(&screen), Some(2));
    }

    #[test]
    fn enter_opens_the_selected_group() {
        let mut screen = screen();
        press(&mut screen, "j");
        assert_eq!((press(&mut screen, "\n"), screen.opened().as_deref()), (Flow::Open, Some("GET /menu")));
        press(&mut screen, "/brew\n");
        assert_eq!(screen.opened().as_deref(), Some("POST /brew"));
        press(&mut screen, "\t");
        assert_eq!(press(&mut screen, "\n"), Flow::Stay, "threads have no functions beside groups");
        assert_eq!(press(&mut screen, "u"), Flow::OpenUnattributed);
    }

    #[test]
    fn w_shows_the_columns_of_times() {
        let mut screen = screen();
        let titles = |screen: &Screen| -> Vec<String> {
            screen.columns(Pane::Groups).into_iter().map(|column| column.title).collect()
        };
        let before = titles(&screen);
        press(&mut screen, "ssssw");
        assert!(screen.shows_waits && titles(&screen).iter().any(|title| title == "RUNNABLE"));
        assert_eq!(names(&screen, Pane::Groups), ["POST /brew", "GET /menu", "idle"], "by CPU time again");
        press(&mut screen, "hhw");
        assert_eq!((titles(&screen), screen.place(Pane::Groups).column), (before, 1));
    }

    #[test]
    fn q_and_ctrl_c_leave() {
        let mut screen = screen();
        press(&mut screen, "?");
        assert_eq!(screen.mode, Mode::Help);
        assert_eq!(press(&mut screen, "q"), Flow::Stay);
        assert_eq!(screen.mode, Mode::Table);
        assert_eq!(press(&mut screen, "q"), Flow::Leave);
        press(&mut screen, "/");
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(ctrl_c), Flow::Leave);
    }
}
