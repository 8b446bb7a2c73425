//! A page of text that is renewed until the user leaves: one thread writes it, this one draws and
//! reads the keyboard.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::SIGWINCH;

use super::{Tui, failed};
use crate::exit::Outcome;
use crate::signals::{Signals, poll_until};

const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

/// Columns that a key moves the page aside.
const ASIDE: u16 = 8;

/// The writer of a page.
pub(crate) trait Writer {
    /// The page as it is now, with styles, which are not shown; `None`: it will not change again.
    fn page(&mut self) -> Outcome<Option<String>>;
}

/// A page on the screen.
#[derive(Debug, Default)]
struct Screen {
    title: String,
    lines: Vec<String>,
    /// The first line that is shown.
    top: u16,
    /// The first column that is shown.
    left: u16,
    is_paused: bool,
}

/// Shows the page that the writer of `begin` writes every `interval`, until the person leaves, one
/// of `signals` comes, the page is whole, or `end` has come; then has the thread run `finish` and
/// gives what that returns, `None` if it takes longer than `patience`.
pub(crate) fn run<W: Writer, T: Send + 'static>(
    title: String,
    begin: impl FnOnce() -> W + Send + 'static,
    finish: impl FnOnce(W) -> T + Send + 'static,
    (interval, end, patience): (Duration, Option<Instant>, Duration),
    signals: &Signals,
) -> Outcome<Option<T>> {
    let size = Signals::all(&[SIGWINCH])?;
    let (wake, waker) = UnixStream::pair().map_err(|error| failed(&error))?;
    wake.set_nonblocking(true).map_err(|error| failed(&error))?;
    waker.set_nonblocking(true).map_err(|error| failed(&error))?;
    let ((sender, pages), (leave, left)) = (channel(), channel::<()>());
    let (result, results) = channel();
    // Not joined: it may be waiting for an agent that does not answer.
    let write = move || {
        let mut writer = begin();
        loop {
            let page = writer.page();
            let is_last = !matches!(page, Ok(Some(_)));
            let is_sent = sender.send(page).is_ok();
            // A full socket wakes as well.
            let _ = (&waker).write(&[0]);
            if is_last || !is_sent || left.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        let _ = result.send(finish(writer));
    };
    thread::Builder::new().name("sampler".into()).spawn(write).map_err(|error| failed(&error))?;
    if anstream::ColorChoice::global() == anstream::ColorChoice::Never {
        ratatui::crossterm::style::force_color_output(false);
    }
    let mut terminal = Tui::enter().map_err(|error| failed(&error))?;
    let shown =
        show(&mut terminal, Screen { title, ..Screen::default() }, &pages, &wake, end, [signals, &size]);
    drop(terminal);
    drop(leave);
    shown?;
    Ok(results.recv_timeout(patience).ok())
}

fn show(
    terminal: &mut Tui,
    mut screen: Screen,
    pages: &Receiver<Outcome<Option<String>>>,
    wake: &UnixStream,
    end: Option<Instant>,
    [signals, size]: [&Signals; 2],
) -> Outcome<()> {
    let stdin = io::stdin();
    loop {
        terminal.0.draw(|frame| draw(frame, &screen)).map_err(|error| failed(&error))?;
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(size, PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        poll_until(&mut fds, end).map_err(|error| failed(&error))?;
        let is_gone = fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        let is_signalled = !fds[1].revents().is_empty();
        // A signal stays for the table, which ends by it, too.
        if is_gone || is_signalled || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(());
        }
        size.take();
        while matches!({ wake }.read(&mut [0; 64]), Ok(1..)) {}
        for page in pages.try_iter() {
            let Some(page) = page? else { return Ok(()) };
            screen.update(&page);
        }
        while poll(Duration::ZERO).map_err(|error| failed(&error))? {
            if let Event::Key(key) = read().map_err(|error| failed(&error))?
                && key.kind != KeyEventKind::Release
                && !screen.key(key)
            {
                return Ok(());
            }
        }
    }
}

impl Screen {
    fn update(&mut self, page: &str) {
        if !self.is_paused {
            self.lines = anstream::adapter::strip_str(page).to_string().lines().map(str::to_owned).collect();
            self.top = self.top.min(self.last());
        }
    }

    fn last(&self) -> u16 {
        u16::try_from(self.lines.len().saturating_sub(1)).unwrap_or(u16::MAX)
    }

    fn widest(&self) -> u16 {
        let widest = self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        u16::try_from(widest.saturating_sub(1)).unwrap_or(u16::MAX)
    }

    /// Does what a key means; false: leave.
    fn key(&mut self, key: KeyEvent) -> bool {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Char(' ' | 'p') => self.is_paused = !self.is_paused,
            KeyCode::Char('j') | KeyCode::Down => self.top = (self.top + 1).min(self.last()),
            KeyCode::Char('k') | KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top = self.top.saturating_add(10).min(self.last()),
            KeyCode::PageUp => self.top = self.top.saturating_sub(10),
            KeyCode::Char('g') | KeyCode::Home => (self.top, self.left) = (0, 0),
            KeyCode::Char('l') | KeyCode::Right => self.left = (self.left + ASIDE).min(self.widest()),
            KeyCode::Char('h') | KeyCode::Left => self.left = self.left.saturating_sub(ASIDE),
            _ => {}
        }
        true
    }
}

fn draw(frame: &mut Frame<'_>, screen: &Screen) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(Line::styled(screen.title.clone(), STRONG)), head);
    let lines = screen.lines.iter().map(|line| Line::raw(line.as_str()));
    frame.render_widget(Paragraph::new(lines.collect::<Text<'_>>()).scroll((screen.top, screen.left)), body);
    let state = if screen.is_paused { "paused  " } else { "" };
    let keys = format!("{state}q leave  Space pause  h j k l scroll");
    frame.render_widget(Paragraph::new(Line::styled(keys, FAINT)), foot);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::buffer::Cell;

    #[test]
    fn a_page_is_drawn_and_scrolled() {
        let mut screen = Screen { title: "tea".into(), ..Screen::default() };
        screen.update("\x1b[1mHITS\x1b[0m\n7\n8\n");
        assert!(screen.key(KeyCode::Char('j').into()));
        let mut terminal = Terminal::new(TestBackend::new(37, 4)).unwrap();
        terminal.draw(|frame| draw(frame, &screen)).unwrap();
        let cells: String = terminal.backend().buffer().content().iter().map(Cell::symbol).collect();
        let rows: Vec<&str> = (0..4).map(|row| cells[37 * row..37 * (row + 1)].trim_end()).collect();
        assert_eq!(rows, ["tea", "7", "8", "q leave  Space pause  h j k l scroll"]);
    }

    #[test]
    fn keys_pause_scroll_and_leave() {
        let mut screen = Screen::default();
        screen.update("1\n2\n");
        screen.key(KeyCode::Char(' ').into());
        screen.update("3\n");
        assert_eq!(screen.lines, ["1", "2"], "paused");
        for _ in 0..5 {
            screen.key(KeyCode::Down.into());
        }
        assert_eq!(screen.top, 1, "no further than the last line");
        screen.key(KeyCode::Char('l').into());
        assert_eq!(screen.left, 0, "no further than the last column");
        screen.lines = vec!["a line of a name that is longer than the terminal".into()];
        screen.key(KeyCode::Right.into());
        assert_eq!(screen.left, ASIDE);
        screen.key(KeyCode::Char('h').into());
        assert_eq!(screen.left, 0);
        assert!(!screen.key(KeyCode::Char('q').into()));
        assert!(!screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
