//! The workloads. Each adds its cases, has them measured, and compares, judges and explains the
//! rows.

use std::env;
use std::path::PathBuf;
use std::process::Command;

pub(crate) mod alloc;
pub(crate) mod breakpoint;
pub(crate) mod clock;
pub(crate) mod embed;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod latency;
pub(crate) mod locks;
pub(crate) mod maps;
pub(crate) mod metrics;
pub(crate) mod poll;
pub(crate) mod pound;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod stacks;
pub(crate) mod switch;
pub(crate) mod teaparty;
pub(crate) mod waits;

/// The variable in which `dormouse bench` leaves its own path.
const COMMAND: &str = "DORMOUSE_COMMAND";

/// The command `dormouse`, whose verbs some workloads need: the one that has run this program, else
/// the one beside it, else the one in `PATH`.
pub(crate) fn command() -> Result<Command, String> {
    let name = "dormouse";
    let mut places: Vec<PathBuf> = env::var_os(COMMAND).map(PathBuf::from).into_iter().collect();
    places.extend(env::current_exe().map(|own| own.with_file_name(name)));
    places.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()).map(|place| place.join(name)));
    let found = places.into_iter().find(|place| place.is_file());
    found
        .map(Command::new)
        .ok_or_else(|| format!("the command `{name}` is neither beside this program nor in PATH"))
}
