//! `dormouse generate`: shell completions and man pages, from the command line's own definition.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, say};
use crate::verb::Subcommand;

/// Generate shell completions or man pages
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
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

impl Subcommand for Args {
    fn run(&self, context: &mut Context) -> Outcome {
        let mut cli = Cli::command();
        match &self.what {
            What::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut cli, "dormouse", &mut script);
                context.text(String::from_utf8_lossy(&script))?;
            }
            What::Man { dir } => {
                write_pages(cli, dir).map_err(|error| {
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
}

pub(super) fn write_pages(cli: Command, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    clap_mangen::generate_to(cli, dir)
}
