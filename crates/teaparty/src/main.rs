//! The tea house as a program. `--help` lists its flags.

use std::io::{self, Write as _};

use clap::Parser;
use dormouse_teaparty::{Args, run};
use serde_json::json;

/// Counts and samples allocations on request (`dormouse profile --kind alloc`).
#[cfg(feature = "dormouse")]
#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

/// A tea house behind HTTP that dormouse can look into while it serves.
///
/// Prints the URL it listens on, serves until Ctrl-C, SIGTERM or the end of its load, and then
/// prints a summary.
#[derive(Debug, Parser)]
#[command(name = "dormouse-teaparty", version)]
struct Program {
    #[command(flatten)]
    args: Args,

    /// Print JSON lines: where it listens, then the summary.
    #[arg(long)]
    json: bool,
}

fn main() -> anyhow::Result<()> {
    let Program { args, json } = Program::parse();
    let summary = run(&args, |url| {
        if json {
            say(&json!({ "schema": 1, "listening": url }).to_string());
        } else {
            say(&format!("listening on {url}"));
        }
    })?;
    if json {
        say(&json!({ "schema": 1, "summary": summary }).to_string());
    } else {
        say(&summary.to_string());
    }
    Ok(())
}

/// A line on standard output. A closed output is no failure of the house: its reader wants no more
/// lines.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}
