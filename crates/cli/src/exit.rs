//! How a run ends: the exit codes, and the failure behind each.
//!
//! Scripts branch on the code, users read the message, so a [`Failure`] contains both, and further
//! help: names similar to the one that was not found, and the one thing to change.

use std::fmt;
use std::process::ExitCode;

use dormouse_maps::SpaceError;
use dormouse_protocol::Code;
use serde::Serialize;

/// The exit codes; they are part of the interface and stand in `dormouse --help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Success.
    Ok,
    /// A negative finding, or a failure without a code of its own.
    Failed,
    /// The command line is invalid.
    Usage,
    /// There is no such process, or no dormouse in it.
    NoTarget,
    /// This user may not do that: the target mostly belongs to another one.
    Denied,
    /// This machine, or the version of the service, does not support it.
    Unsupported,
    /// Ended by Ctrl-C before the end.
    #[cfg_attr(
        not(feature = "demo"),
        expect(dead_code, reason = "elsewhere the signal itself ends the process")
    )]
    Interrupted,
    /// The exit code of the command that this one has run.
    Child(u8),
}

impl Exit {
    /// The number that the process ends with, and the word for it in JSON.
    fn names(self) -> (u8, &'static str) {
        match self {
            Exit::Ok => (0, "ok"),
            Exit::Failed => (1, "failed"),
            Exit::Usage => (2, "usage"),
            Exit::NoTarget => (3, "no-target"),
            Exit::Denied => (4, "denied"),
            Exit::Unsupported => (5, "unsupported"),
            Exit::Interrupted => (130, "interrupted"),
            Exit::Child(code) => (code, "child"),
        }
    }

    pub(crate) fn code(self) -> u8 {
        self.names().0
    }

    pub(crate) fn word(self) -> &'static str {
        self.names().1
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
    /// The reader of standard output is gone: nothing can be written, and that is no error.
    StdoutClosed,
    /// A message, and the exit code.
    Said(Box<Report>),
}

/// The words of a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    #[serde(skip)]
    pub(crate) exit: Exit,
    /// The operation that failed, and its object.
    pub(crate) message: String,
    /// Names near one that was not found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) near: Vec<String>,
    /// The thing to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
    /// Whether the other side of a conversation has closed it.
    #[serde(skip)]
    pub(crate) has_hung_up: bool,
    /// The code of an agent that has refused it.
    #[serde(skip)]
    pub(crate) code: Option<Code>,
}

/// The result of a command.
pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    /// A failure that ends with `exit`.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        let (message, near) = (message.into(), Vec::new());
        Failure::Said(Box::new(Report { exit, message, near, hint: None, has_hung_up: false, code: None }))
    }

    /// A failure that no other code names.
    pub(crate) fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    /// The same failure, marked as returned by an agent.
    pub(crate) fn by_agent(mut self, code: Code) -> Failure {
        if let Failure::Said(report) = &mut self {
            report.code = Some(code);
        }
        self
    }

    /// The same failure, with a hint on what to change.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        if let Failure::Said(report) = &mut self {
            report.hint = Some(hint.into());
        }
        self
    }

    /// This failure of a request, if the connection cannot be used after it: it is neither an
    /// agent's refusal nor one of this command.
    pub(crate) fn breaks(&self) -> Option<Failure> {
        let Failure::Said(report) = self else { return None };
        let is_refusal = report.code.is_some() || matches!(report.exit, Exit::Usage | Exit::Unsupported);
        (!is_refusal).then(|| Failure::Said(report.clone()))
    }

    /// The failure of a second attempt, together with that of the first.
    pub(crate) fn after(mut self, first: &str) -> Failure {
        if let Failure::Said(report) = &mut self {
            report.message = format!("{} (from outside, since {first})", report.message);
        }
        self
    }

    /// The same failure, with names similar to the one that was not found.
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

/// For reading the mappings of a process.
impl From<&SpaceError> for Failure {
    fn from(error: &SpaceError) -> Failure {
        let exit = match error {
            SpaceError::Gone { .. } | SpaceError::Replaced { .. } => Exit::NoTarget,
            SpaceError::Denied { .. } => Exit::Denied,
            _ => Exit::Failed,
        };
        Failure::new(exit, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_miss_mappings_has_its_code() {
        let exit = |error: &SpaceError| match Failure::from(error) {
            Failure::Said(report) => report.exit,
            Failure::StdoutClosed => panic!("it has something to say"),
        };
        assert_eq!(exit(&SpaceError::Gone { pid: 1 }), Exit::NoTarget);
        assert_eq!(exit(&SpaceError::Replaced { pid: 1 }), Exit::NoTarget);
        assert_eq!(exit(&SpaceError::Denied { pid: 1 }), Exit::Denied);
        assert_eq!(exit(&SpaceError::NoMemory { pid: 1 }), Exit::Failed);
    }
}
