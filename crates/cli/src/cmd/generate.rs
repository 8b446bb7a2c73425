//! `dormouse generate`: shell completions and man pages, from the command line's own definition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{CommandFactory as _, Subcommand};
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, say};

/// Generate shell completions or man pages
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Write a man page for the command and each subcommand
    Man {
        /// Directory to write to; made if it is not there
        dir: PathBuf,
    },
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    match &args.what {
        What::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "dormouse", &mut script);
            context.text(String::from_utf8_lossy(&script))?;
        }
        What::Man { dir } => {
            write_pages(dir).map_err(|error| {
                let exit = match error.kind() {
                    io::ErrorKind::PermissionDenied => Exit::Denied,
                    _ => Exit::Failed,
                };
                Failure::new(exit, format!("cannot write man pages to {}: {error}", dir.display()))
            })?;
            say(format_args!("man pages are in {}", dir.display()));
        }
    }
    Ok(Exit::Ok)
}

fn write_pages(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(Cli::command(), dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_visible_subcommand_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(&dir.path().join("new")).unwrap();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = dir.path().join("new").join(format!("dormouse-{}.1", command.get_name()));
            let text = fs::read_to_string(&page).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{}", page.display());
        }
        assert!(!dir.path().join("new/dormouse-teaparty.1").exists());
    }

    #[test]
    fn completions_name_the_subcommands() {
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Cli::command(), "dormouse", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(["trace", "doctor", "--timeout"].iter().all(|word| script.contains(word)));
    }
}
