//! `dormouse bench` and `dormouse compare`: this process becomes the program `dormouse-bench`,
//! which is installed by itself.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;

const PROGRAM: &str = "dormouse-bench";

/// The variable by which that program finds the command that has run it.
const COMMAND: &str = "DORMOUSE_COMMAND";

/// Everything behind the verb is that program's.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// Arguments of dormouse-bench; --help lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Runs the program's `verb`, or the workload that `args` name.
pub(crate) fn run(verb: Option<&str>, args: &Args, context: &Context) -> Outcome {
    let own = env::current_exe().ok();
    let beside = own.as_ref().map(|own| own.with_file_name(PROGRAM)).filter(|program| program.is_file());
    // Else the kernel's search of `PATH` finds it.
    let mut command = Command::new(beside.unwrap_or_else(|| PathBuf::from(PROGRAM)));
    if let Some(own) = own {
        command.env(COMMAND, own);
    }
    let json = context.json.then_some("--json");
    let error = command.args(verb).args(json).args(&args.arguments).exec();
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    let failure = Failure::new(
        Exit::Child(if is_missing { 127 } else { 126 }),
        format!("cannot run {PROGRAM}: {error}"),
    );
    if !is_missing {
        return Err(failure);
    }
    Err(failure.hint(
        "the bench is a program of its own: install it by `cargo install --path crates/bench` in dormouse's \
         sources, or run it there by `cargo run --release -p dormouse-bench -- NAME`",
    ))
}
