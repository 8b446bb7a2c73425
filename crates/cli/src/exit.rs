//! How a run ends: the exit codes and the failure that leads to one.
//!
//! Scripts branch on the code, people read the message, so a [`Failure`] carries both, and beside them what
//! may help: names near the one that was not found and the one thing to change.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::text::clean;

/// The exit codes; they are part of the interface and stand in `dormouse --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok,
    /// A negative finding, or a failure that no other code names.
    Failed,
    /// The command line does not say what to do.
    Usage,
    /// No such process, or no dormouse in it.
    NoTarget,
    /// The target is somebody else's.
    Denied,
    /// This machine, or the version of the service, cannot do it.
    Unsupported,
    /// Ended by Ctrl-C before the end.
    #[cfg_attr(
        not(feature = "demo"),
        expect(dead_code, reason = "elsewhere the signal itself ends the process")
    )]
    Interrupted,
    /// As the command ended that this one has run.
    Child(u8),
}

impl Exit {
    /// The number that the process ends with.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Ok => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::NoTarget => 3,
            Exit::Denied => 4,
            Exit::Unsupported => 5,
            Exit::Interrupted => 130,
            Exit::Child(code) => code,
        }
    }

    /// The word for it in JSON.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NoTarget => "no-target",
            Exit::Denied => "denied",
            Exit::Unsupported => "unsupported",
            Exit::Interrupted => "interrupted",
            Exit::Child(_) => "child",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of standard output is gone: there is nobody to tell, and nothing went wrong.
    StdoutClosed,
    /// Something to say, and a code to end with.
    Said(Box<Report>),
}

/// What a failure says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) exit: Exit,
    /// What failed and on what.
    pub(crate) message: String,
    /// Names near one that was not found.
    pub(crate) near: Vec<String>,
    /// What to change.
    pub(crate) hint: Option<String>,
}

/// What a command returns.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    /// A failure that ends with `exit`.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure::Said(Box::new(Report { exit, message: message.into(), near: Vec::new(), hint: None }))
    }

    /// A command that cannot be run: ends with the code that a shell would end with.
    pub(crate) fn not_run(program: &OsStr, error: &io::Error) -> Failure {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let message = format!("cannot run {}: {error}", clean(&program.to_string_lossy()));
        Failure::new(Exit::Child(code), message)
    }

    /// The same failure, with what to change.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        if let Failure::Said(report) = &mut self {
            report.hint = Some(hint.into());
        }
        self
    }

    /// The same failure, with names near the one that was not found.
    pub(crate) fn near(mut self, near: Vec<String>) -> Failure {
        if let Failure::Said(report) = &mut self {
            report.near = near;
        }
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::StdoutClosed => f.write_str("standard output was closed"),
            Failure::Said(report) => f.write_str(&report.message),
        }
    }
}
