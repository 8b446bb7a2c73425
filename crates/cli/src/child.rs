//! Commands that this one runs.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};

use crate::exit::{Exit, Failure, Outcome};
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
