//! The `dormouse` command: looks into services that embed dormouse, while they run.
//!
//! Each subcommand is one file in [`cmd`]. It gets the shared [`output::Context`], finds its
//! process through [`target`], talks to it through [`client`] and returns how the run ends
//! ([`exit`]). Data goes to standard output, messages to standard error; nothing here panics
//! because of a service, a file or a closed pipe.

#![deny(unsafe_code)]

mod args;
mod bytes;
mod child;
mod client;
mod cmd;
mod debug_files;
mod duration;
mod exit;
mod length;
mod live;
mod new_file;
mod output;
mod prologues;
mod render;
mod sample;
#[cfg(feature = "serve")]
mod serve;
mod signals;
mod stream;
mod target;
mod text;
mod user;
mod verb;
mod waiting;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::cmd::Cli;
use crate::exit::Exit;
use crate::output::Context;

/// The tea house of `demo` runs in this program, too.
#[cfg(feature = "demo")]
#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

fn main() -> ExitCode {
    let read = Cli::command().try_get_matches().and_then(|matches| {
        client::set_command(matches.subcommand_name());
        Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
    });
    let cli = match read {
        Ok(cli) => cli,
        Err(error) => return not_understood(&visible(error)).into(),
    };
    // If it is refused, files are copied before they are read.
    let _ = dormouse_maps::symbols::survive_cut_files();
    dormouse_maps::symbols::search_also(debug_files::caches(|name| std::env::var_os(name)));
    let mut context = Context::new(cli.common.json, cli.common.color, cli.common.timeout);
    let result = cmd::run(cli.command, &mut context).and_then(|exit| context.flush().map(|()| exit));
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => context.fail(failure).into(),
    }
}

/// The error without suggestions that the help does not show.
fn visible(mut error: clap::Error) -> clap::Error {
    let command = Cli::command();
    let is_shown = |name: &String| command.find_subcommand(name).is_none_or(|found| !found.is_hide_set());
    let suggested = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().filter(|name| is_shown(name)).cloned().collect(),
        Some(ContextValue::String(name)) if !is_shown(name) => Vec::new(),
        _ => return error,
    };
    error.remove(ContextKind::SuggestedSubcommand);
    if !suggested.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested));
    }
    error
}

/// Help and version, which were requested, or an error in the command line.
fn not_understood(error: &clap::Error) -> Exit {
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A reader that leaves early is no error.
            let _ = error.print();
            Exit::Ok
        }
        _ if json => {
            output::tell(&cmd::misread(error), true);
            Exit::Usage
        }
        _ => {
            let _ = error.print();
            Exit::Usage
        }
    }
}
