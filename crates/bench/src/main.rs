//! `dormouse-bench`: the benchmarks of dormouse, and the comparison of their reports.
//! `dormouse bench` and `dormouse compare` run it.
//!
//! A workload is a list of cases; the runner samples them interleaved, and [`report`] prints the
//! rows, as text and as JSON of a fixed schema. Peers and baselines are cases of the same run,
//! never numbers from earlier runs; the figures of an origin are printed beside ours and marked as
//! the origin's. A row that cannot be measured on a machine reads `unavailable` with the reason.
//!
//! The modules, each of which uses only those above it:
//!
//! - `table`, `row`: numbers and text; `figures`: tables beside an origin's; `clocks`,
//!   `progress`;
//! - `runner`: cases, interleaved rounds; `affinity`, `neighbour`: processors and the thread
//!   beside; `apart`: forked children;
//! - `injected`: work added on purpose;
//! - `bench`: the run of one workload, from its cases to comparisons, goals and notes;
//! - `yardsticks`: rows with which several workloads compare their own;
//! - `workloads`: a folder each, whose `mod.rs` names the question, the peers and the origin;
//! - `machine`, `report`, `output`: the parts of a report, and where it goes;
//! - `compare`: reports side by side; `recording`: page faults into a file;
//! - `args`, `entry`: the command line, and the list of workloads, one of which is measured;
//! - `child`, `run`: a workload in a process of its own, and the run.
//!
//! A new workload is one folder in `workloads/`, one line in its `mod.rs`, one in `args.rs` and one
//! in `entry.rs`.

mod affinity;
mod apart;
mod args;
mod bench;
mod child;
mod clocks;
mod compare;
mod eh_frame;
mod entry;
mod figures;
mod injected;
mod machine;
mod neighbour;
mod output;
mod pace;
mod progress;
mod recording;
mod report;
mod row;
mod run;
mod runner;
mod table;
mod workloads;
mod yardsticks;

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use serde_json::json;

use crate::args::{Line, Verb};
use crate::compare::compare;
use crate::recording::record_faults;
use crate::report::SCHEMA;
use crate::run::run;

/// The same allocator as in the service of `dormouse demo`.
#[global_allocator]
static ALLOC: dormouse::Alloc = dormouse::Alloc::new();

fn main() -> ExitCode {
    let line = match Line::read(std::env::args_os()) {
        Ok(line) => line,
        Err(error) => {
            let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
            return refuse(&error, json);
        }
    };
    let out = &mut io::stdout();
    let (json, result) = match line {
        // This program again, wherever it lies by now.
        Line::Bench(args) => (args.json, run(&args, &|| Command::new("/proc/self/exe"), out)),
        Line::Verb(Verb::Compare(args)) => (args.json, compare(&args, out)),
        Line::Verb(Verb::RecordFaults(args)) => match record_faults(&args) {
            Ok(code) => return ExitCode::from(code),
            Err(error) => (false, Err(error)),
        },
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    let is_closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_closed) {
        // The reader has what it wanted.
        return ExitCode::SUCCESS;
    }
    match error.downcast_ref::<clap::Error>() {
        Some(error) => refuse(error, json),
        None => fail("failed", 1, &format!("{error:#}"), json),
    }
}

/// Help and version, which are asked for, or a command line that is wrong.
fn refuse(error: &clap::Error, json: bool) -> ExitCode {
    if json && error.use_stderr() {
        let text = error.render().to_string();
        let message = text.strip_prefix("error: ").unwrap_or(&text);
        return fail("usage", 2, message.split("\n\nUsage:").next().unwrap_or(message).trim_end(), true);
    }
    // A reader that leaves early is no error.
    let _ = error.print();
    ExitCode::from(error.exit_code() as u8)
}

/// Writes why the run fails to standard error, where nobody may be there to read it.
fn fail(kind: &str, exit: u8, message: &str, json: bool) -> ExitCode {
    let mut text = String::new();
    for letter in message.chars() {
        // A terminal obeys these, and a path may have them.
        if letter.is_control() && letter != '\n' {
            text.extend(letter.escape_default());
        } else {
            text.push(letter);
        }
    }
    let text = if json {
        json!({ "schema": SCHEMA, "error": { "kind": kind, "exit": exit, "message": text } }).to_string()
    } else {
        format!("error: {text}")
    };
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(exit)
}
