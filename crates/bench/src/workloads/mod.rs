//! The workloads. Each adds its cases, has them measured, and compares, judges and explains the
//! rows.

use std::process::Command;

pub(crate) mod alloc;
pub(crate) mod breakpoint;
pub(crate) mod clock;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod maps;
pub(crate) mod metrics;
pub(crate) mod poll;
pub(crate) mod pound;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod switch;
pub(crate) mod teaparty;
pub(crate) mod waits;

/// This program, if it is the command: some workloads need other verbs of it.
pub(crate) fn command() -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program has no name: {error}"))?;
    if program.file_name().is_none_or(|name| name != "dormouse") {
        return Err("this program has no other verbs: run it as `dormouse bench`".to_owned());
    }
    Ok(Command::new(program))
}
