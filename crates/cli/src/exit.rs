//! How a run ends: the exit codes and the failure that leads to one.
//!
//! Scripts branch on the code, people read the message, so a [`Failure`] carries both, and beside them what
//! may help: names near the one that was not found and the one thing to change.

use std::fmt;
use std::process::ExitCode;

/// The exit codes; they are part of the interface and stand in `dormouse --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Ok = 0,
    /// A negative finding, or a failure that no other code names.
    Failed = 1,
    /// The command line does not say what to do.
    Usage = 2,
    /// No such process, or no dormouse in it.
    NoTarget = 3,
    /// The target is somebody else's.
    Denied = 4,
    /// This machine, or the version of the service, cannot do it.
    Unsupported = 5,
    /// Ended by Ctrl-C before the end.
    #[cfg_attr(
        not(feature = "demo"),
        expect(dead_code, reason = "elsewhere the signal itself ends the process")
    )]
    Interrupted = 130,
}

impl Exit {
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
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
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
