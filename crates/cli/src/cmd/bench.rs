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
use crate::verb::Subcommand;

const PROGRAM: &str = "dormouse-bench";

/// The variable by which that program finds the command that has run it.
const COMMAND: &str = "DORMOUSE_COMMAND";

/// Run a benchmark: dormouse's rows and those of peers, by the program dormouse-bench
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[command(flatten)]
    rest: Rest,
}

/// Compare runs of the bench: what got worse, what got better, and what is uncertain
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Compare {
    #[command(flatten)]
    rest: Rest,
}

// Everything behind the verb is that program's. (A doc comment here would replace those above.)
#[derive(Debug, clap::Args)]
struct Rest {
    /// Arguments of dormouse-bench; --help lists them
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        become_bench(None, &self.rest, context)
    }
}

impl Subcommand for Compare {
    fn run(&self, context: &mut Context) -> Outcome {
        become_bench(Some("compare"), &self.rest, context)
    }
}

/// Runs the program's `verb`, or the workload that the arguments name.
fn become_bench(verb: Option<&str>, rest: &Rest, context: &mut Context) -> Outcome {
    // Behind the verb it is the program's, and tells how a failure to run it is printed.
    let is_behind = rest.arguments.iter().any(|argument| argument == "--json");
    context.json |= is_behind;
    let own = env::current_exe().ok();
    let beside = own.as_ref().map(|own| own.with_file_name(PROGRAM)).filter(|program| program.is_file());
    // Else the kernel's search of `PATH` finds it.
    let mut command = Command::new(beside.unwrap_or_else(|| PathBuf::from(PROGRAM)));
    if let Some(own) = own {
        command.env(COMMAND, own);
    }
    let json = (context.json && !is_behind).then_some("--json");
    let error = command.args(verb).args(json).args(&rest.arguments).exec();
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
