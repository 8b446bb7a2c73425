//! `dormouse record`: the flight recorder of a service.
//!
//! | module | is |
//! |---|---|
//! | `save` | `record --save` |
//! | `flight` | the flight recorder: it stays in the service, and outlives this command |

mod flight;
mod save;

use std::time::Duration;

use crate::args::help;
use crate::bytes;
use crate::duration::parse_positive;
use crate::exit::Outcome;
use crate::output::Context;
use crate::target::Target;

/// Keep the last records of probes in the service
///
/// With a GLOB: starts the flight recorder of the service, which keeps its probes awake and the
/// newest of their records in bounded memory, and goes on when this command has ended. Without a
/// GLOB: shows its state.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(help = help::TARGET)]
    target: Target,
    #[arg(help = help::GLOB)]
    glob: Option<String>,
    /// Memory for the newest records: 256KiB to 1GiB
    #[arg(long, value_name = "BYTES", value_parser = bytes::parse, requires = "glob")]
    memory: Option<u64>,
    /// End by itself after this time
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_positive, requires = "glob")]
    length: Option<Duration>,
    /// End the recorder, no matter which client started it
    #[arg(long, conflicts_with_all = ["glob", "length"])]
    off: bool,
    /// Have the service write its present state to a file now, which dormouse tasks, profile and
    /// trace read; prints its path
    #[arg(long, conflicts_with_all = ["glob", "length", "off"])]
    save: bool,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    if args.save { save::run(&args.target, context) } else { flight::run(args, context) }
}
