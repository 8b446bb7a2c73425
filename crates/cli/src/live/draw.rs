//! The live view as cells of a terminal.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph, Row, Table, TableState};

use super::fit::{Fit, cut, fit, width};
use super::screen::{HELP, Mode, Pane, Screen, leaving};
use crate::render::view::View;

/// Lines below the groups: what no group's row shows.
const SUMS: u16 = 3;
/// Lines of the groups' table beside its rows: a border, the head, the sums.
const GROUPS_FRAME: u16 = 2 + SUMS;
/// Notices about groups, one a line.
const NOTICES: usize = 3;
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
    let notices = screen.view.as_ref().map_or(&[][..], View::notices);
    let notices = &notices[..notices.len().min(NOTICES)];
    let room = frame.area().height.saturating_sub(2 + notices.len() as u16);
    // Groups are the main content: they get the lines that they need, threads the rest, but at
    // least some.
    let wanted = lines(&groups).saturating_add(GROUPS_FRAME);
    let least = lines(&threads).saturating_add(THREADS_FRAME).min(room / 3);
    let [head, upper, lower, beneath, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(wanted.min(room.saturating_sub(least))),
        Constraint::Fill(1),
        Constraint::Length(notices.len() as u16),
        Constraint::Length(1),
    ])
    .areas(frame.area());

    let room = usize::from(frame.area().width);
    frame.render_widget(Paragraph::new(title(screen, room)), head);
    let [table_area, sums_area] =
        Layout::vertical([Constraint::Fill(1), Constraint::Length(SUMS)]).areas(upper);
    let sums = screen.sums();
    let fits =
        [(Pane::Groups, &groups, &sums[..]), (Pane::Threads, &threads, &[])].map(|(pane, rows, sums)| {
            let titles = titles(screen, pane);
            let dropped = leaving(&screen.columns(pane));
            fit(&titles, rows.iter().chain(sums), &dropped, screen.place(pane).column, room)
        });
    let [groups_fit, threads_fit] = &fits;
    table(frame, screen, Pane::Groups, &groups, groups_fit.as_ref(), table_area);
    if let Some(fit) = groups_fit {
        let rows = sums.iter().map(|cells| row(cells, fit));
        frame.render_widget(Table::new(rows, constraints(fit)).column_spacing(1).style(FAINT), sums_area);
    }
    table(frame, screen, Pane::Threads, &threads, threads_fit.as_ref(), lower);
    let notices = notices.iter().map(|notice| Line::styled(cut(notice, room), ALERT));
    frame.render_widget(Paragraph::new(notices.collect::<Text<'_>>()), beneath);
    let focused = if screen.focus == Pane::Groups { groups_fit } else { threads_fit };
    frame.render_widget(Paragraph::new(status(screen, focused.as_ref())), foot);
    if screen.mode == Mode::Help {
        help(frame);
    }
}

/// As many parts of the title as fit.
fn title(screen: &Screen, room: usize) -> Line<'static> {
    let parts = match &screen.view {
        Some(view) => view.headline_parts(),
        None => vec![": measuring …".to_owned()],
    };
    let mut text = cut(&screen.who, room);
    for part in parts {
        if width(&text) + width(&part) > room {
            break;
        }
        text.push_str(&part);
    }
    Line::styled(text, STRONG)
}

/// Titles of columns; the one that rows are sorted by is marked.
fn titles(screen: &Screen, pane: Pane) -> Vec<String> {
    let place = screen.place(pane);
    let mut titles: Vec<String> = screen.columns(pane).into_iter().map(|column| column.title).collect();
    if let Some(title) = titles.get_mut(place.column) {
        // Numbers go down, names up.
        let is_up = (place.column == 0) != place.is_inverted;
        title.insert(0, if is_up { '▲' } else { '▼' });
    }
    titles
}

fn table(
    frame: &mut Frame<'_>,
    screen: &Screen,
    pane: Pane,
    rows: &[Vec<String>],
    fit: Option<&Fit>,
    area: Rect,
) {
    let place = screen.place(pane);
    let is_focused = screen.focus == pane;
    let rule = if is_focused { STRONG } else { FAINT };
    let block = Block::new().borders(ratatui::widgets::Borders::TOP).border_style(rule);
    let Some(fit) = fit else {
        frame.render_widget(Paragraph::new("the window is too narrow").block(block), area);
        return;
    };
    let titles = fit.columns.iter().map(|column| {
        let style = if column.at == place.column { SORTED } else { STRONG };
        aligned(Text::styled(column.title.clone(), style), column.at)
    });
    let widget = Table::new(rows.iter().map(|cells| row(cells, fit)), constraints(fit))
        .column_spacing(1)
        .header(Row::new(titles))
        .row_highlight_style(if is_focused { SELECTED } else { Style::new() })
        .block(block);
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(place.selected));
    frame.render_stateful_widget(widget, area, &mut state);
}

fn constraints(fit: &Fit) -> Vec<Constraint> {
    fit.columns.iter().map(|column| Constraint::Length(column.width as u16)).collect()
}

/// The cells that are shown; a name may be cut, a number never is.
fn row(cells: &[String], fit: &Fit) -> Row<'static> {
    Row::new(fit.columns.iter().map(|column| {
        let cell = cells.get(column.at).map(String::as_str).unwrap_or_default();
        aligned(Text::raw(cut(cell, column.width)), column.at)
    }))
}

/// Numbers stand on the right.
fn aligned(text: Text<'_>, column: usize) -> Text<'_> {
    if column == 0 { text } else { text.alignment(Alignment::Right) }
}

fn lines(rows: &[Vec<String>]) -> u16 {
    u16::try_from(rows.len()).unwrap_or(u16::MAX)
}

fn status<'a>(screen: &'a Screen, fit: Option<&Fit>) -> Line<'a> {
    if screen.mode == Mode::Filter {
        return Line::from(vec![
            Span::styled("/", STRONG),
            Span::raw(&screen.filter),
            Span::styled(" ", SELECTED),
        ]);
    }
    let mut spans = Vec::new();
    let no_waits = screen.view.as_ref().and_then(|view| view.no_waits.as_ref());
    if let Some(why) = no_waits.filter(|_| screen.shows_waits) {
        spans.push(Span::styled(format!("{why}  "), ALERT));
    }
    if screen.is_paused {
        spans.push(Span::styled("paused  ", ALERT));
    }
    if !screen.filter.is_empty() {
        spans.push(Span::styled(format!("/{}  ", screen.filter), ALERT));
    }
    if let Some(Fit { hidden, .. }) = fit.filter(|fit| !fit.hidden.is_empty()) {
        spans.push(Span::styled(format!("no room for {}  ", hidden.join(", ")), ALERT));
    }
    spans.push(Span::styled("q leave  ? help  Enter functions  / filter  s sort  Tab groups/threads", FAINT));
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
    use crate::render::view::tests::pair;
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
        screen.update(View::between(&before, &before, &after, &[]));
        screen
    }

    #[test]
    fn the_screen_shows_groups_sums_and_threads() {
        let text = drawn(&screen(), 80, 15);
        assert_eq!(
            text,
            "\
tea (process 7): 100.0 % CPU over 500 ms, 3 keys on, 4 records dropped
────────────────────────────────────────────────────────────────────────────────
GROUP                      ▼CPU % CPU s REQ/s ERR % CANC/s CPU/REQ POLLS/s ALIVE
POST /brew                   80.2 0.401   4.0                200ms     100     1
GET /menu                    20.0 0.100   0.0                         2000     1
idle                          0.0 0.000   0.0                          0.0     1
(unattributed)                0.0 0.000
(process)                   100.0 0.500
(before)                          0.100
────────────────────────────────────────────────────────────────────────────────
THREAD                                               TID ▼CPU % RUNNABLE % CPU s
main                                                  10   82.0        8.2 0.410
worker                                                11   <0.1            0.000

q leave  ? help  Enter functions  / filter  s sort  Tab groups/threads
"
        );
    }

    /// A view with numbers as large as they come, and the true ones by the titles of their columns.
    fn large(scale: u64) -> (View, Vec<Vec<(String, f64)>>) {
        use dormouse_protocol::{CountRow, OutcomesRow};
        let (mut before, mut after) = pair();
        let events = ["alloc-count", "alloc-bytes", "page-faults", "context-switches"].map(str::to_owned);
        for (sample, times) in [(&mut before, 0), (&mut after, scale)] {
            sample.mono_ns = 1_000_000_000 + u64::from(times > 0) * 500_000_000;
            sample.threads.clear();
            let inside = sample.inside.as_mut().unwrap();
            inside.groups.retain(|group| group.id == 1);
            let group = &mut inside.groups[0];
            group.name = "route".into();
            (group.cpu_ns, group.requests) = (411_111_111 * times, 97 * times);
            let (completed, error, cancelled) = (77 * times, 13 * times, 7 * times);
            group.outcomes = Some(OutcomesRow { completed, error, cancelled, ..OutcomesRow::default() });
            (group.polls, group.alive) = (3_217 * times, 1_234 * times);
            group.counts = (1..)
                .zip(&events)
                .map(|(n, event)| CountRow {
                    event: event.clone().into(),
                    value: 20_430_333 / n * times,
                    enabled_ns: times,
                    running_ns: times,
                })
                .collect();
        }
        let view = View::between(&before, &before, &after, &events);
        let group = &view.groups()[0];
        let of = |field| group.number(field).unwrap();
        let mut row = vec![
            ("CPU %".to_owned(), of("cpu_percent")),
            ("CPU s".into(), of("cpu_ns") / 1e9),
            ("REQ/s".into(), of("requests_per_s")),
            ("ERR %".into(), of("error_percent")),
            ("CANC/s".into(), of("cancelled_per_s")),
            ("CPU/REQ".into(), of("cpu_ns_per_request") / 1e9),
            ("POLLS/s".into(), of("polls_per_s")),
            ("ALIVE".into(), of("alive")),
        ];
        row.extend(events.iter().map(|event| (format!("{event}/s"), group.rate(event).unwrap())));
        (view, vec![row])
    }

    fn number(text: &str) -> f64 {
        let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
        let unit = match &text[digits.len()..] {
            "" | "s" => 1.0,
            "ns" => 1e-9,
            "us" => 1e-6,
            "ms" => 1e-3,
            "k" | "ks" => 1e3,
            "M" | "Ms" => 1e6,
            "G" => 1e9,
            "T" => 1e12,
            "P" => 1e15,
            "E" => 1e18,
            other => panic!("{other:?} is no unit"),
        };
        digits.parse::<f64>().unwrap_or_else(|_| panic!("{text:?} is no number")) * unit
    }

    #[test]
    fn every_number_on_screen_is_whole() {
        for scale in [1, 40, 1_000, 1_000_000, 20_000_000_000] {
            let (view, rows) = large(scale);
            let mut screen = Screen::new("tea (process 7)".into());
            screen.update(view);
            let mut most = 0;
            for (width, least) in [(20, 1), (40, 3), (60, 5), (80, 7), (120, 10), (200, 12)] {
                let text = drawn(&screen, width, 14);
                let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
                let titles = line("GROUP").replace("CPU ", "CPU_").replace("ERR ", "ERR_").replace('▼', "");
                let titles: Vec<String> =
                    titles.split_whitespace().skip(1).map(|title| title.replace('_', " ")).collect();
                let cells: Vec<&str> = line("route").split_whitespace().skip(1).collect();
                assert_eq!(titles.len(), cells.len(), "{text}");
                assert!(titles.len() >= least && titles.len() >= most, "{width}: {text}");
                most = titles.len();
                assert_eq!(most < 12, text.contains("no room for "), "{text}");
                for (title, cell) in titles.iter().zip(cells) {
                    let start = title.trim_end_matches('…');
                    let (_, right) = rows[0].iter().find(|(name, _)| name.starts_with(start)).unwrap();
                    let shown = number(cell);
                    assert!((shown - right).abs() <= right * 0.005 + 0.05, "{title} {cell} {right}: {text}");
                }
            }
            assert!(drawn(&screen, 9, 14).contains("the windo"), "it is too narrow");
        }
    }

    #[test]
    fn help_filter_and_pause_are_visible() {
        let mut screen = screen();
        screen.key(KeyCode::Char(' ').into());
        screen.key(KeyCode::Char('/').into());
        screen.key(KeyCode::Char('m').into());
        assert!(drawn(&screen, 80, 15).contains("\n/m"));
        screen.key(KeyCode::Enter.into());
        let text = drawn(&screen, 80, 15);
        assert!(text.contains("paused  /m  q leave"), "{text}");
        assert!(!text.contains("POST /brew"));
        screen.key(KeyCode::Char('?').into());
        let text = drawn(&screen, 80, 15);
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
