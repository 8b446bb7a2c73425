//! Ctrl-C and SIGTERM as events to wait for.
//!
//! A handler writes a byte into a socket pair, so waiting for the service, for time and for the
//! user is one `poll`. A second signal ends the process at once, which helps if the first came
//! while a write to a full pipe was blocked. `timeout` and others send each signal twice, to the
//! process and to its group, so a second one within a tenth of a second is the same.
//!
//! A verb catches signals before its first request to a service, never after: otherwise a signal
//! that comes while the service answers would end the process without a result.
//!
//! A verb that runs for an HTTP client has the client's leaving in their place:
//! [`Signals::remote`].

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::flag;

use crate::exit::{Failure, Outcome};

/// A second signal in this time is the same one, sent twice.
const SAME: Duration = Duration::from_millis(100);

/// Signals that arrived and were not handled yet.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: UnixStream,
    /// Where all of them are ignored, nothing else keeps the other end open, whose close would be a
    /// client's end.
    _writer: Option<UnixStream>,
}

/// The client of [`Signals::remote`]; dropped, it has left.
#[cfg(feature = "serve")]
#[derive(Debug)]
pub(crate) struct Disconnect {
    _end: UnixStream,
}

impl Signals {
    /// Catches the signals that ask a process to end; a second one ends it on the spot.
    pub(crate) fn to_end() -> Outcome<Signals> {
        Signals::of(&[SIGINT, SIGTERM], true)
    }

    /// Does what [`Signals::to_end`] does, and also catches Ctrl-Z: for a state in which the
    /// process must not be stopped.
    pub(crate) fn to_end_or_stop() -> Outcome<Signals> {
        Signals::of(&[SIGINT, SIGTERM, SIGTSTP], true)
    }

    /// Catches the same signals, all of them: there is something to put in order before the end.
    pub(crate) fn to_leave() -> Outcome<Signals> {
        Signals::all(&[SIGINT, SIGTERM, SIGHUP])
    }

    /// Catches these signals, all of them.
    pub(crate) fn all(signals: &[i32]) -> Outcome<Signals> {
        Signals::of(signals, false)
    }

    fn of(signals: &[i32], ends_at_second: bool) -> Outcome<Signals> {
        let catch = || {
            let (pipe, writer) = pair()?;
            for &signal in signals {
                // Of `nohup`, the end of the terminal is not the end, also for a command that this
                // one runs.
                if signal == SIGHUP && is_hangup_ignored() {
                    continue;
                }
                // First: from the first registration on, a signal no longer ends the process. A
                // signal before the pipe exists would be lost.
                signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            }
            if ends_at_second {
                end_at_second(signals)?;
            }
            Ok(Signals { pipe, _writer: Some(writer) })
        };
        catch().map_err(|error: io::Error| Failure::failed(format!("cannot catch signals: {error}")))
    }

    /// In place of the kernel's signals: the end of a client.
    #[cfg(feature = "serve")]
    pub(crate) fn remote() -> io::Result<(Signals, Disconnect)> {
        let (pipe, end) = pair()?;
        Ok((Signals { pipe, _writer: None }, Disconnect { _end: end }))
    }

    /// The signals of the same client, once more.
    #[cfg(feature = "serve")]
    pub(crate) fn again(&self) -> io::Result<Signals> {
        Ok(Signals { pipe: self.pipe.try_clone()?, _writer: None })
    }

    /// Waits until `due`; true when a signal came first.
    pub(crate) fn came_before(&self, due: Instant) -> Outcome<bool> {
        let [signalled] = wait([self.as_fd()], Some(due))?;
        Ok(signalled && self.take())
    }

    /// Clears received signals, and returns whether there were any. The end of a client stays.
    pub(crate) fn take(&self) -> bool {
        let mut any = false;
        loop {
            match (&self.pipe).read(&mut [0; 16]) {
                Ok(0) => return true,
                Ok(_) => any = true,
                Err(_) => return any,
            }
        }
    }
}

/// Whether this process was started so that the end of its terminal does not end it.
pub(crate) fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or(0) & 1 != 0
}

/// Has a second one of these signals end the process.
fn end_at_second(signals: &[i32]) -> io::Result<()> {
    let (mut first, tell_first) = UnixStream::pair()?;
    let ends_now = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&ends_now))?;
        signal_hook::low_level::pipe::register(signal, tell_first.try_clone()?)?;
    }
    // A thread, because the first signal may find the others in a write that blocks.
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        if first.read_exact(&mut [0]).is_ok() {
            std::thread::sleep(SAME);
            ends_now.store(true, Ordering::SeqCst);
        }
    })?;
    Ok(())
}

fn pair() -> io::Result<(UnixStream, UnixStream)> {
    let (pipe, other) = UnixStream::pair()?;
    pipe.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((pipe, other))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Waits until one of `fds` is readable or `until` has come, and returns which are readable.
pub(crate) fn wait<const N: usize>(fds: [BorrowedFd<'_>; N], until: Option<Instant>) -> Outcome<[bool; N]> {
    let mut polled = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    poll_until(&mut polled, until).map_err(|error| Failure::failed(format!("cannot wait: {error}")))?;
    Ok(polled.each_ref().map(|fd| !fd.revents().is_empty()))
}

/// `poll` up to a moment; nothing is ready when that moment has come. A signal does not end the
/// wait.
pub(crate) fn poll_until(fds: &mut [PollFd<'_>], until: Option<Instant>) -> io::Result<usize> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // More than the kernel's type holds is for ever.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.map_err(io::Error::from),
        }
    }
}

#[cfg(all(test, feature = "serve"))]
mod tests {
    use super::*;

    #[test]
    fn hanging_up_is_a_signal_to_end() {
        let (signals, hang_up) = Signals::remote().unwrap();
        assert!(!signals.take());
        drop(hang_up);
        assert!(signals.came_before(Instant::now() + Duration::from_secs(60)).unwrap());
        assert!(signals.again().unwrap().take(), "it has left for good");
    }
}
