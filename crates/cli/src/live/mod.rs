//! The live view of `top` and `demo`: one thread talks to the agent, this one draws and reads the
//! keyboard.
//!
//! So a service that is slow to answer never delays `q`. Everything to wait for (keys, signals, the
//! terminal's size, a new snapshot) is one `poll`. The terminal is restored however this ends: by
//! return, by a panic ([`ratatui`]'s hook) or by a signal.

mod draw;
mod fit;
mod functions;
pub(crate) mod page;
mod screen;

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm;
use ratatui::crossterm::event::{Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags};
use signal_hook::consts::SIGWINCH;

use draw::draw;
use screen::{Flow, Screen};

use crate::exit::{Exit, Failure, Outcome};
use crate::render::profile::uses::UNATTRIBUTED;
use crate::render::view::View;
use crate::render::watch::Watch;
use crate::sample::source::Source;
use crate::signals::{Signals, poll_until};

/// A first view comes soon, so that there is something to see.
const FIRST: Duration = Duration::from_millis(500);

/// Shows the process of `source` until the person leaves, or until `end`; with `shows_waits` at
/// first where tasks spend their time.
pub(crate) fn run(source: Source, interval: Duration, end: Option<Instant>, shows_waits: bool) -> Outcome {
    let mut screen = Screen::new(source.who.clone());
    screen.shows_waits = shows_waits;
    let signals = Signals::to_leave()?;
    let size = Signals::all(&[SIGWINCH])?;
    let pid = source.pid;
    let wants_waits = Arc::clone(&screen.wants_waits);
    let (views, wake) = start(source, interval, wants_waits).map_err(|error| failed(&error))?;
    if anstream::ColorChoice::global() == anstream::ColorChoice::Never {
        crossterm::style::force_color_output(false);
    }
    loop {
        let mut terminal = Tui::enter().map_err(|error| failed(&error))?;
        let opened = watch(&mut terminal, &mut screen, &views, &wake, end, [&signals, &size])?;
        drop(terminal);
        let Some(name) = opened else { return Ok(Exit::Ok) };
        functions::run(pid, &screen.who, name, end, &signals)?;
    }
}

/// Shows the table until the person leaves it, or opens a group: its name.
fn watch(
    terminal: &mut Tui,
    screen: &mut Screen,
    views: &Latest,
    wake: &UnixStream,
    end: Option<Instant>,
    [signals, size]: [&Signals; 2],
) -> Outcome<Option<String>> {
    let stdin = io::stdin();
    loop {
        terminal.0.draw(|frame| draw(frame, screen)).map_err(|error| failed(&error))?;
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(size, PollFlags::IN),
            PollFd::new(wake, PollFlags::IN),
        ];
        poll_until(&mut fds, end).map_err(|error| failed(&error))?;
        let is_gone = fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if is_gone || signals.take() || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(None);
        }
        size.take();
        while matches!({ wake }.read(&mut [0; 64]), Ok(1..)) {}
        if let Some(view) = views.take() {
            screen.update(view?);
        }
        while crossterm::event::poll(Duration::ZERO).map_err(|error| failed(&error))? {
            if let Event::Key(key) = crossterm::event::read().map_err(|error| failed(&error))?
                && key.kind != KeyEventKind::Release
            {
                match screen.key(key) {
                    Flow::Stay => {}
                    Flow::Leave => return Ok(None),
                    Flow::Open => return Ok(screen.opened()),
                    Flow::OpenUnattributed => return Ok(Some(UNATTRIBUTED.to_owned())),
                }
            }
        }
    }
}

/// The terminal while it is ours.
struct Tui(DefaultTerminal);

impl Tui {
    fn enter() -> io::Result<Tui> {
        ratatui::try_init().map(Tui).inspect_err(|_| ratatui::restore())
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The latest view that nobody has taken. Older ones make way for it while nobody looks at the
/// table; a failure is the last.
#[derive(Default)]
struct Latest(Mutex<Option<Outcome<View>>>);

impl Latest {
    fn put(&self, view: Outcome<View>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(view);
    }

    fn take(&self) -> Option<Outcome<View>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Starts the thread that talks to the agent. Returns its views, and a socket that is readable when
/// there is one.
fn start(
    source: Source,
    interval: Duration,
    wants_waits: Arc<AtomicBool>,
) -> io::Result<(Arc<Latest>, UnixStream)> {
    let (latest, (wake, waker)) = (Arc::new(Latest::default()), UnixStream::pair()?);
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let views = Arc::clone(&latest);
    let send = move |view| {
        latest.put(view);
        // A full socket wakes as well.
        let sent = (&waker).write(&[0]);
        sent.is_ok() || sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    };
    // Not joined: it may be waiting for an agent that does not answer, and it holds nothing of the
    // terminal.
    thread::Builder::new().name("sampler".into()).spawn(move || {
        if let Err(failure) = sample(source, interval, &wants_waits, &send) {
            send(Err(failure));
        }
    })?;
    Ok((views, wake))
}

/// Takes samples until nobody can be woken any more.
fn sample(
    source: Source,
    interval: Duration,
    wants_waits: &AtomicBool,
    send: &impl Fn(Outcome<View>) -> bool,
) -> Outcome<()> {
    let mut no_waits = None;
    let mut watch = Watch::start(source, interval.min(FIRST), interval)?;
    loop {
        thread::sleep(watch.due.saturating_duration_since(Instant::now()));
        if wants_waits.swap(false, Ordering::Relaxed) {
            no_waits = watch.source.begin_waits().err().map(|failure| failure.to_string());
        }
        let mut view = watch.view()?;
        view.no_waits.clone_from(&no_waits);
        if !send(Ok(view)) {
            return Ok(());
        }
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot use the terminal: {error}")).hint("--plain prints text instead")
}
