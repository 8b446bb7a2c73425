//! The live view on a terminal's cells.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::plain::headline;
use super::screen::{HELP, Mode, Pane, Screen, sums};

/// Lines of the groups' table beside its rows: a border, the head, two sums.
const GROUPS_FRAME: u16 = 4;
/// Lines of the threads' table beside its rows.
const THREADS_FRAME: u16 = 2;

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);
const SORTED: Style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
const ALERT: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let groups = screen.rows(Pane::Groups);
    let threads = screen.rows(Pane::Threads);
    let room = frame.area().height.saturating_sub(2);
    // Groups are what this is about: they get what they need, threads the rest, though never nothing.
    let wanted = lines(&groups).saturating_add(GROUPS_FRAME);
    let least = lines(&threads).saturating_add(THREADS_FRAME).min(room / 3);
    let [head, upper, lower, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(wanted.min(room.saturating_sub(least))),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    frame.render_widget(Paragraph::new(title(screen)), head);
    let [table_area, sums_area] = Layout::vertical([Constraint::Fill(1), Constraint::Length(2)]).areas(upper);
    table(frame, screen, Pane::Groups, groups, table_area);
    if let Some(view) = &screen.view {
        let rows = sums(view).into_iter().map(|cells| Row::new(texts(cells)));
        frame.render_widget(Table::new(rows, widths(&screen.columns(Pane::Groups))).style(FAINT), sums_area);
    }
    table(frame, screen, Pane::Threads, threads, lower);
    frame.render_widget(Paragraph::new(status(screen)), foot);
    if screen.mode == Mode::Help {
        help(frame);
    }
}

fn title(screen: &Screen) -> Line<'_> {
    match &screen.view {
        Some(view) => Line::styled(headline(&screen.who, view), STRONG),
        None => Line::from(vec![Span::styled(screen.who.as_str(), STRONG), Span::raw(": measuring …")]),
    }
}

fn table(frame: &mut Frame<'_>, screen: &Screen, pane: Pane, rows: Vec<Vec<String>>, area: Rect) {
    let place = screen.place(pane);
    let is_focused = screen.focus == pane;
    let columns = screen.columns(pane);
    let widths = widths(&columns);
    let titles = columns.into_iter().enumerate().map(|(i, title)| {
        let style = if i == place.column { SORTED } else { STRONG };
        aligned(Text::styled(title, style), i)
    });
    let rule = if is_focused { STRONG } else { FAINT };
    let count = rows.len();
    let widget = Table::new(rows.into_iter().map(|cells| Row::new(texts(cells))), widths)
        .header(Row::new(titles))
        .row_highlight_style(if is_focused { SELECTED } else { Style::new() })
        .block(Block::new().borders(ratatui::widgets::Borders::TOP).border_style(rule));
    let mut state = TableState::new().with_selected((count > 0).then_some(place.selected));
    frame.render_stateful_widget(widget, area, &mut state);
}

/// Names take what numbers leave.
fn widths(columns: &[String]) -> Vec<Constraint> {
    columns
        .iter()
        .enumerate()
        .map(|(i, title)| match i {
            0 => Constraint::Min(16),
            _ => Constraint::Length((title.len() as u16 + 1).max(9)),
        })
        .collect()
}

fn texts(cells: Vec<String>) -> Vec<Text<'static>> {
    cells.into_iter().enumerate().map(|(i, cell)| aligned(Text::raw(cell), i)).collect()
}

/// Numbers stand on the right.
fn aligned(text: Text<'_>, column: usize) -> Text<'_> {
    if column == 0 { text } else { text.alignment(Alignment::Right) }
}

fn lines(rows: &[Vec<String>]) -> u16 {
    u16::try_from(rows.len()).unwrap_or(u16::MAX)
}

fn status(screen: &Screen) -> Line<'_> {
    if screen.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("/", STRONG),
            Span::raw(&screen.filter),
            Span::styled(" ", SELECTED),
        ]);
    }
    let mut spans = Vec::new();
    if screen.is_paused {
        spans.push(Span::styled("paused  ", ALERT));
    }
    if !screen.filter.is_empty() {
        spans.push(Span::styled(format!("/{}  ", screen.filter), ALERT));
    }
    spans.push(Span::styled("q leave  ? help  / filter  s sort  Space pause  Tab groups/threads", FAINT));
    Line::from(spans)
}

fn help(frame: &mut Frame<'_>) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(keys, what)| Line::from(vec![Span::styled(format!(" {keys:<13}"), STRONG), Span::raw(*what)]))
        .collect();
    let area = frame.area();
    let (width, height) = (62.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let area =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::top::model::View;
    use crate::cmd::top::model::tests::pair;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    fn screen() -> Screen {
        let (before, after) = pair();
        let mut screen = Screen::new("tea (process 7)".into());
        screen.update(View::between(&before, &after, &[]));
        screen
    }

    #[test]
    fn the_screen_shows_groups_sums_and_threads() {
        let text = drawn(&screen(), 80, 14);
        assert_eq!(
            text,
            "\
tea (process 7): 100.0 % CPU over 500 ms, 3 keys on, 4 records dropped
────────────────────────────────────────────────────────────────────────────────
GROUP                    CPU %     CPU s   POLLS/s     ALIVE   STARTED  FINISHED
POST /brew                80.2     0.401       100         1         3         2
GET /menu                 20.0     0.150      2000         1         3         2
idle                       0.0     0.020       0.0         1         3         2
(unattributed)             0.0     0.029
(process)                100.0     0.600
────────────────────────────────────────────────────────────────────────────────
THREAD                                                   TID     CPU %     CPU s
main                                                      10      82.0     0.500
worker                                                    11       0.0     0.000

q leave  ? help  / filter  s sort  Space pause  Tab groups/threads
"
        );
    }

    #[test]
    fn help_filter_and_pause_are_visible() {
        let mut screen = screen();
        screen.key(KeyCode::Char(' ').into());
        screen.key(KeyCode::Char('/').into());
        screen.key(KeyCode::Char('m').into());
        assert!(drawn(&screen, 80, 14).contains("\n/m"));
        screen.key(KeyCode::Enter.into());
        let text = drawn(&screen, 80, 14);
        assert!(text.contains("paused  /m  q leave"), "{text}");
        assert!(!text.contains("POST /brew"));
        screen.key(KeyCode::Char('?').into());
        let text = drawn(&screen, 80, 14);
        assert!(HELP.iter().all(|(_, what)| text.contains(what)), "{text}");
    }

    #[test]
    fn no_size_of_terminal_is_too_small() {
        let mut screen = screen();
        for mode in [Mode::Table, Mode::Help, Mode::Filter] {
            screen.mode = mode;
            for (width, height) in [(1, 1), (80, 1), (80, 3), (3, 80), (20, 6)] {
                drawn(&screen, width, height);
            }
        }
        drawn(&Screen::new("nobody yet".into()), 20, 6);
    }
}
