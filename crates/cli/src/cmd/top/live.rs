//! The live view: one thread asks the agent, this one draws and listens to the keyboard.
//!
//! A service that is slow to answer therefore never makes `q` wait. Everything there is to wait for (keys, signals,
//! the terminal's size, a new snapshot) is one `poll`. The terminal is put back however this ends: by return, by a
//! panic ([`ratatui`]'s hook) or by a signal.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm;
use ratatui::crossterm::event::{Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags};

use super::draw::draw;
use super::model::View;
use super::screen::{Flow, Screen};
use crate::exit::{Exit, Failure, Outcome};
use crate::sample::Source;
use crate::signals::{Signals, poll_until, wait};

/// A first view comes soon, so that there is something to see.
const FIRST: Duration = Duration::from_millis(500);

/// Shows the process of `source` until the person leaves, or until `end`.
pub(crate) fn run(source: Source, interval: Duration, end: Option<Instant>) -> Outcome {
    let mut screen = Screen::new(source.who().to_owned());
    let signals = Signals::to_leave()?;
    let size = Signals::of_size()?;
    let sampler = Sampler::start(source, interval).map_err(|error| failed(&error))?;
    if anstream::ColorChoice::global() == anstream::ColorChoice::Never {
        crossterm::style::force_color_output(false);
    }
    let mut terminal = Tui::enter().map_err(|error| failed(&error))?;
    watch(&mut terminal, &mut screen, &sampler, end, [&signals, &size])
}

fn watch(
    terminal: &mut Tui,
    screen: &mut Screen,
    sampler: &Sampler,
    end: Option<Instant>,
    [signals, size]: [&Signals; 2],
) -> Outcome {
    let stdin = io::stdin();
    loop {
        terminal.0.draw(|frame| draw(frame, screen)).map_err(|error| failed(&error))?;
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(size, PollFlags::IN),
            PollFd::new(&sampler.wake, PollFlags::IN),
        ];
        poll_until(&mut fds, end).map_err(|error| failed(&error))?;
        let is_gone = fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if is_gone || signals.take() || end.is_some_and(|end| Instant::now() >= end) {
            return Ok(Exit::Ok);
        }
        size.take();
        for view in sampler.taken() {
            screen.update(view?);
        }
        while crossterm::event::poll(Duration::ZERO).map_err(|error| failed(&error))? {
            if let Event::Key(key) = crossterm::event::read().map_err(|error| failed(&error))?
                && key.kind != KeyEventKind::Release
                && screen.key(key) == Flow::Leave
            {
                return Ok(Exit::Ok);
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

/// The thread that asks.
struct Sampler {
    views: Receiver<Outcome<View>>,
    /// Readable when there is a view.
    wake: UnixStream,
    /// Closed when nobody wants views any more.
    _stop: UnixStream,
}

impl Sampler {
    fn start(source: Source, interval: Duration) -> io::Result<Sampler> {
        let (views, wake) = (channel(), UnixStream::pair()?);
        let (stop, stopped) = UnixStream::pair()?;
        wake.0.set_nonblocking(true)?;
        wake.1.set_nonblocking(true)?;
        let sender = views.0;
        let waker = wake.1;
        // Not joined: it may be waiting for an agent that does not answer, and it holds nothing of the terminal.
        thread::Builder::new().name("sampler".into()).spawn(move || {
            if let Err(failure) = sample(source, interval, &sender, &waker, &stopped) {
                let _ = sender.send(Err(failure));
                let _ = (&waker).write_all(&[0]);
            }
        })?;
        Ok(Sampler { views: views.1, wake: wake.0, _stop: stop })
    }

    /// What has come since.
    fn taken(&self) -> impl Iterator<Item = Outcome<View>> {
        let mut bytes = [0; 64];
        while matches!(io::Read::read(&mut &self.wake, &mut bytes), Ok(n) if n > 0) {}
        self.views.try_iter()
    }
}

/// Asks until nobody wants to know.
fn sample(
    mut source: Source,
    interval: Duration,
    views: &Sender<Outcome<View>>,
    waker: &UnixStream,
    stopped: &UnixStream,
) -> Outcome<()> {
    let mut before = super::next(&mut source)?;
    let mut due = Instant::now() + interval.min(FIRST);
    let events = source.columns();
    loop {
        let [is_over] = wait([stopped.as_fd()], Some(due)).map_err(|error| failed(&error))?;
        if is_over {
            return Ok(());
        }
        let after = super::next(&mut source)?;
        if views.send(Ok(View::between(&before, &after, &events))).is_err() {
            return Ok(());
        }
        // A full pipe wakes as well.
        let _ = { waker }.write(&[0]);
        before = after;
        due = (due + interval).max(Instant::now());
    }
}

fn failed(error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot use the terminal: {error}"))
        .hint("--plain prints text instead")
}
