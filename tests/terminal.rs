//! The live view on a terminal: it draws, it hears keys, and whatever ends it, the terminal is as
//! it was.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::profile;
use crate::support::{HANG, Service, command, signal_to};
use crate::tasks::{LONG, TaskService};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// The live view's orders when it takes the terminal, and when it gives it back.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

const ROWS: usize = 30;
const COLUMNS: usize = 100;

/// A terminal's cells: enough of one for the orders of the live view.
struct Screen {
    cells: Vec<[char; COLUMNS]>,
    row: usize,
    column: usize,
    /// An escape sequence under way.
    escape: String,
}

impl Screen {
    fn new() -> Screen {
        Screen { cells: vec![[' '; COLUMNS]; ROWS], row: 0, column: 0, escape: String::new() }
    }

    fn put(&mut self, c: char) {
        if !self.escape.is_empty() || c == '\x1b' {
            self.escape.push(c);
            let is_whole = self.escape.len() > 2 && ('@'..='~').contains(&c);
            if is_whole {
                let sequence = std::mem::take(&mut self.escape);
                self.obey(&sequence);
            }
            return;
        }
        match c {
            '\r' => self.column = 0,
            '\n' => self.row += 1,
            c => {
                if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
                    *cell = c;
                }
                self.column += 1;
            }
        }
        if self.row == ROWS {
            self.cells.remove(0);
            self.cells.push([' '; COLUMNS]);
            self.row -= 1;
        }
    }

    fn obey(&mut self, sequence: &str) {
        let numbers = |end: char| -> Option<Vec<usize>> {
            let inner = sequence.strip_prefix("\x1b[")?.strip_suffix(end)?;
            Some(inner.split(';').map(|n| n.parse().unwrap_or(1)).collect())
        };
        if let Some(at) = numbers('H') {
            self.row = at.first().map_or(0, |row| row - 1);
            self.column = at.get(1).map_or(0, |column| column - 1);
        } else if sequence == "\x1b[2J" || sequence == ENTER || sequence == LEAVE {
            *self = Screen::new();
        }
    }

    fn text(&self) -> String {
        let rows = self.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned());
        rows.collect::<Vec<_>>().join("\n")
    }
}

/// A command on a terminal of its own.
struct Session {
    child: Child,
    keyboard: File,
    output: Receiver<Vec<u8>>,
    /// Everything that came, with all escape sequences.
    raw: String,
    screen: Screen,
    terminal: OwnedFd,
    before: Termios,
}

impl Session {
    fn start(args: &[&str], environment: &[(&str, &str)]) -> Session {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("a terminal of ours");
        unlockpt(&master).expect("a terminal to open");
        let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("UTF-8");
        let terminal = File::options().read(true).write(true).open(name).expect("its other side");
        let size = Winsize { ws_row: ROWS as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).expect("a size");
        let before = tcgetattr(&terminal).expect("its mode");
        let side = || Stdio::from(terminal.try_clone().expect("a descriptor"));
        let mut command = command(args);
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(environment.iter().copied());
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().expect("the command");
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone().expect("a descriptor");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n) = reader.read(&mut piece) {
                if n == 0 || sender.send(piece[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        let (raw, screen) = (String::new(), Screen::new());
        Session { child, keyboard, output, raw, screen, terminal: terminal.into(), before }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a key");
    }

    /// Waits until the screen shows `text`.
    #[track_caller]
    fn await_text(&mut self, text: &str) {
        self.await_that(text, |session| session.screen.text().contains(text));
    }

    /// Waits until `sequence` has come.
    #[track_caller]
    fn await_raw(&mut self, sequence: &str) {
        self.await_that(sequence, |session| session.raw.contains(sequence));
    }

    #[track_caller]
    fn await_that(&mut self, what: &str, is_there: impl Fn(&Session) -> bool) {
        let start = Instant::now();
        // Characters may come in halves; what the command draws is UTF-8 as a whole.
        let mut half = Vec::new();
        while !is_there(self) {
            match self.output.recv_timeout(HANG.saturating_sub(start.elapsed())) {
                Ok(piece) => half.extend(piece),
                Err(error) => panic!("{what:?} did not come ({error}):\n{}", self.screen.text()),
            }
            let end = std::str::from_utf8(&half).map_or_else(|error| error.valid_up_to(), str::len);
            let text = String::from_utf8(half.drain(..end).collect()).expect("UTF-8");
            text.chars().for_each(|c| self.screen.put(c));
            self.raw.push_str(&text);
        }
    }

    /// Waits for the end and says its code; the terminal must be as it was.
    #[track_caller]
    fn end(mut self) -> Option<i32> {
        self.await_raw(LEAVE);
        let code = self.child.wait().expect("its end").code();
        let after = tcgetattr(&self.terminal).expect("its mode");
        assert_eq!(after.local_modes, self.before.local_modes, "echo and lines are back");
        assert_eq!(after.input_modes, self.before.input_modes);
        code
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_live_view_draws_and_hears_keys() {
    let service = Service::busy();
    let mut session = Session::start(&["top", &service.target(), "--interval", "100ms"], &[]);
    session.await_raw(ENTER);
    session.await_text("GROUP");
    session.await_text("GET /menu");
    session.await_text("(unattributed)");
    session.await_text("THREAD");
    session.press("?");
    session.await_text("turn the order round");
    session.press("x");
    session.press("\r");
    session.await_text("so far");
    session.await_text("FUNCTION");
    session.press("q");
    session.await_text("THREAD");
    session.press("u");
    session.await_text("(unattributed) of ");
    session.await_text("so far");
    session.press("q");
    session.await_text("THREAD");
    session.press("/steep\r");
    session.await_text("/steep");
    session.press(" ");
    session.await_text("paused");
    session.press("q");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_watch_is_a_page_until_left() {
    let service = Service::busy();
    let mut session = Session::start(&["watch", &service.target(), "TALLY:8"], &[]);
    session.await_raw(ENTER);
    session.await_text("TALLY:8 of ");
    session.await_text("HITS");
    session.await_text("hits\narmed on ");
    session.press(" ");
    session.await_text("paused");
    session.press("q");
    session.await_raw(LEAVE);
    // The last report stays in the terminal.
    session.await_that("the report", |session| {
        session.raw.rsplit(LEAVE).next().is_some_and(|after| after.contains("never seen"))
    });
    assert_eq!(session.end(), Some(0));
}

#[test]
fn the_live_view_restores_the_terminal() {
    for end in ["\x03", "q"] {
        let service = Service::idle();
        let mut session = Session::start(&["top", &service.target()], &[]);
        session.await_text("GROUP");
        session.press(end);
        assert_eq!(session.end(), Some(0), "{end:?}");
    }
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let service = Service::idle();
        let mut session = Session::start(&["top", &service.target()], &[]);
        session.await_text("GROUP");
        signal_to(session.child.id(), signal);
        assert_eq!(session.end(), Some(0), "{signal:?}");
    }
}

#[test]
fn the_live_view_ends_with_its_service() {
    let mut service = Service::idle();
    let mut session = Session::start(&["top", &service.target(), "--interval", "100ms"], &[]);
    session.await_text("(process)");
    service.kill();
    session.await_raw(LEAVE);
    session.await_text("has ended");
    assert_eq!(session.child.wait().expect("its end").code(), Some(1));
}

#[test]
fn pages_of_functions_end_with_their_service() {
    let mut service = Service::busy();
    let open = || {
        let mut session = Session::start(&["top", &service.target(), "--interval", "100ms"], &[]);
        session.await_text("GET /blend");
        session.press("/blend\r\r");
        session.await_text("GET /blend of ");
        session.await_text("FUNCTION");
        session
    };
    let both = [open(), open()];
    service.kill();
    for mut session in both {
        session.await_text("has ended");
        assert_eq!(session.child.wait().expect("its end").code(), Some(1));
    }
}

#[test]
fn threads_have_pages_of_functions_from_outside() {
    let Some(program) = profile::spinning() else { return };
    let pid = program.0.id().to_string();
    let mut session = Session::start(&["top", &pid, "--interval", "100ms"], &[]);
    // The row of the table.
    session.await_text("\nspins  ");
    session.press("\r");
    session.await_text("thread spins of ");
    session.await_text("so far");
    session.await_text("FUNCTION");
    session.await_text("hot");
    session.press("q");
    session.await_text("THREAD");
    session.press("q");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_stopped_service_does_not_block_the_keyboard() {
    let service = Service::idle();
    let mut session = Session::start(&["top", &service.target(), "--interval", "100ms"], &[]);
    session.await_text("(process)");
    service.signal(Signal::STOP);
    session.press("?");
    session.await_text("this help");
    session.press("qu");
    session.await_text("(unattributed) of ");
    session.press("q");
    session.await_text("GROUP");
    session.press("q");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn the_live_demo_ends_with_a_summary() {
    let mut session = Session::start(&["demo"], &[]);
    session.await_raw(ENTER);
    session.await_text("POST /orders");
    session.press("q");
    session.await_raw(LEAVE);
    session.await_text("requests served");
    session.await_text("CPU us/REQUEST");
    assert_eq!(session.child.wait().expect("its end").code(), Some(0));
}

#[test]
fn a_dumb_terminal_gets_plain_text() {
    let service = Service::idle();
    let mut dumb =
        Session::start(&["top", &service.target(), "-n", "1", "--interval", "50ms"], &[("TERM", "dumb")]);
    dumb.await_text("THREAD");
    assert!(!dumb.raw.contains('\x1b'), "{:?}", dumb.raw);
    let mut colour = Session::start(&["doctor"], &[]);
    colour.await_raw("\x1b[");
    let mut plain = Session::start(&["doctor"], &[("NO_COLOR", "1")]);
    plain.await_text("STATE");
    plain.await_text("records.rings");
    assert!(!plain.raw.contains('\x1b'), "{:?}", plain.raw);
    for mut session in [dumb, colour, plain] {
        assert_eq!(session.child.wait().expect("its end").code(), Some(0));
    }
}

#[test]
fn lists_of_tasks_fit_a_narrow_terminal() {
    let service = TaskService::start(1, false);
    let mut session = Session::start(&["tasks", &service.target(), "--for", "0s"], &[("NO_COLOR", "1")]);
    session.await_text(&LONG[..50]);
    session.await_text("…");
    assert!(!session.screen.text().contains(LONG), "{}", session.screen.text());
    session.child.wait().expect("its end");
    for line in session.raw.lines() {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
}
