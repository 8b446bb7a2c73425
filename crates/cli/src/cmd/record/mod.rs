//! `dormouse record`: the flight recorder of a service, or the page faults of any process.
//!
//! Each line relies on those above it alone.
//!
//! | module | is |
//! |---|---|
//! | `feed`, `file`, `story` | the kernel's records of page faults, into a file |
//! | `faults` | `record --faults` |
//! | `save` | `record --save` |
//! | `flight` | the flight recorder: it stays in the service, and outlives this command |

mod faults;
mod feed;
mod file;
mod flight;
mod save;
mod story;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::args::help;
use crate::bytes;
use crate::duration::parse_positive;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::target::Target;

/// Keep the last records of probes in the service, or record page faults into a file
///
/// With a GLOB: starts the flight recorder of the service, which keeps its probes awake and the
/// newest of their records in bounded memory, and goes on when this command has ended. Without a
/// GLOB: shows its state. `--faults` records the page faults of any process, for `dormouse bench
/// maps --trace`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("subject").required(true)))]
pub(crate) struct Args {
    #[arg(help = help::TARGET, group = "subject")]
    target: Option<Target>,
    #[arg(help = help::GLOB)]
    glob: Option<String>,
    /// Memory for the newest records: 256KiB to 1GiB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, requires = "glob")]
    memory: Option<u64>,
    /// End by itself after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_positive)]
    length: Option<Duration>,
    /// End the recorder, no matter which client started it
    #[arg(long, conflicts_with_all = ["glob", "length", "faults"])]
    off: bool,
    /// Have the service write its present state to a file now, which dormouse tasks, profile and
    /// trace read; prints its path
    #[arg(long, conflicts_with_all = ["glob", "length", "off", "faults"])]
    save: bool,
    /// Record page faults and mappings into a file instead
    #[arg(long, requires = "output", conflicts_with_all = ["glob", "memory"])]
    faults: bool,
    /// Where to write the faults; an older trace there is replaced, nothing else is
    #[arg(short, long, value_name = "FILE", requires = "faults")]
    output: Option<PathBuf>,
    /// End after this many faults
    #[arg(long, value_name = "FAULTS", value_parser = clap::value_parser!(u64).range(1..), requires = "faults")]
    most: Option<u64>,
    /// Run this, record its faults from its start, and end with its exit code (127 or 126 where it
    /// cannot be run)
    #[arg(last = true, value_name = "COMMAND", group = "subject", requires = "faults")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    match (&args.output, &args.target) {
        (Some(output), _) => faults::run(args, output, context),
        (None, Some(target)) if args.save => save::run(target, context),
        (None, Some(target)) => flight::run(args, target, context),
        (None, None) => Err(Failure::new(Exit::Usage, "name a process, or use --faults")),
    }
}
