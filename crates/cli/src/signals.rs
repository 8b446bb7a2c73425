//! Ctrl-C and SIGTERM as something that can be waited for.
//!
//! A handler writes a byte into a socket pair, so a wait for the service, for time and for the person at the
//! keyboard is one `poll`. A second signal does not wait for anything: it ends the process at once, which helps
//! when the first came while a write to a full pipe was stuck.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use crate::exit::{Exit, Failure, Outcome};

/// Signals that arrived and were not yet looked at.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
}

impl Signals {
    /// Catches the signals that ask a process to end; a second one of a kind ends it on the spot.
    pub(crate) fn to_end() -> Outcome<Signals> {
        Signals::of(&[SIGINT, SIGTERM], true).map_err(|error| failure(&error))
    }

    /// Catches the same signals, all of them: there is something to put in order before the end.
    pub(crate) fn to_leave() -> Outcome<Signals> {
        Signals::of(&[SIGINT, SIGTERM, SIGHUP], false).map_err(|error| failure(&error))
    }

    /// Catches what a terminal sends to end the commands in it.
    pub(crate) fn of_terminal() -> Outcome<Signals> {
        Signals::of(&[SIGINT, SIGQUIT], false).map_err(|error| failure(&error))
    }

    /// Catches one signal.
    pub(crate) fn of_one(signal: rustix::process::Signal) -> Outcome<Signals> {
        Signals::of(&[signal.as_raw()], false).map_err(|error| failure(&error))
    }

    /// Catches changes of the terminal's size.
    pub(crate) fn of_size() -> Outcome<Signals> {
        Signals::of(&[SIGWINCH], false).map_err(|error| failure(&error))
    }

    fn of(signals: &[i32], ends_at_second: bool) -> io::Result<Signals> {
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        for &signal in signals {
            if ends_at_second {
                // In this order: the first signal arms what ends the process at the second.
                let again = Arc::new(AtomicBool::new(false));
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&again))?;
                signal_hook::flag::register(signal, again)?;
            }
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Signals { pipe })
    }

    /// Forgets what arrived and says whether anything did.
    pub(crate) fn take(&self) -> bool {
        let mut byte = [0; 16];
        let mut any = false;
        while let Ok(n) = (&self.pipe).read(&mut byte) {
            if n == 0 {
                break;
            }
            any = true;
        }
        any
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

fn failure(error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, format!("cannot catch signals: {error}"))
}

/// Waits until one of `fds` can be read or `until` has come, and says which can be read.
pub(crate) fn wait<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    until: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll_until(&mut polled, until)?;
    Ok(polled.each_ref().map(|fd| !fd.revents().is_empty()))
}

/// `poll` up to a moment; nothing is ready when that moment has come. A signal does not end the wait.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        match poll(fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

fn timespec(length: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(length.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(length.subsec_nanos()),
    }
}
