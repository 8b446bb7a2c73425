//! Commands that this one runs.
//!
//! The terminal sends Ctrl-C and Ctrl-\ to a command as well; this process lives on to report the
//! result. SIGTERM and SIGHUP come to this process alone, and are passed on.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::exit::{Exit, Failure, Outcome};
use crate::signals::{Signals, wait};
use crate::text::clean;

/// Runs a command, whose first word is the program. A failure ends with the code that a shell would
/// end with.
pub(crate) fn spawn(command: &[OsString]) -> Outcome<Child> {
    let [program, arguments @ ..] = command else {
        return Err(Failure::new(Exit::Usage, "there is no command behind `--`"));
    };
    Command::new(program).args(arguments).spawn().map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let message = format!("cannot run {}: {error}", clean(&program.to_string_lossy()));
        Failure::new(Exit::Child(code), message)
    })
}

/// The exit code that a shell gives to the end of a command.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Signals while a command runs.
pub(crate) struct Caught {
    /// The terminal sends these to the command as well.
    kept: Signals,
    passed_on: [(Signals, Signal); 2],
    /// Whether any was: the command may handle it and end like any other.
    has_passed_on: Cell<bool>,
}

impl Caught {
    /// Catches them from here on.
    pub(crate) fn new() -> Outcome<Caught> {
        let passed_on = [(Signals::all(&[SIGTERM])?, Signal::TERM), (Signals::all(&[SIGHUP])?, Signal::HUP)];
        Ok(Caught { kept: Signals::all(&[SIGINT, SIGQUIT])?, passed_on, has_passed_on: Cell::new(false) })
    }

    /// Whether a signal has asked for the end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.has_passed_on.get() || self.kept.take()
    }

    /// Waits until the command ends or that moment comes, and passes signals on; true: it has
    /// ended.
    pub(crate) fn wait(&self, end: &OwnedFd, child: Pid, until: Option<Instant>) -> Outcome<bool> {
        let [term, hangup] = &self.passed_on;
        let [ended, ..] = wait([end.as_fd(), term.0.as_fd(), hangup.0.as_fd()], until)?;
        for (_, signal) in self.passed_on.iter().filter(|(signals, _)| signals.take()) {
            // It may just have ended.
            let _ = kill_process(child, *signal);
            self.has_passed_on.set(true);
        }
        Ok(ended)
    }
}
