//! `dormouse record`: the flight recorder of a service.
//!
//! | module | is |
//! |---|---|
//! | `save` | `record --save` |
//! | `flight` | the flight recorder: it stays in the service, and outlives this command |

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "HTTP alone asks for a part"))]

mod flight;
mod save;

pub(super) use flight::RecorderDocument;
pub(super) use save::SavedDocument;

use std::ffi::OsString;
use std::time::Duration;

use dormouse_protocol::RecordRequest;
use serde::Deserialize;

use crate::args::help;
use crate::bytes;
use crate::client::session::Subject;
use crate::duration::parse_positive;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::target::Target;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Asked, Subcommand};

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
    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    faults: Option<OsString>,
    /// Have the service write its present state to a file now, which dormouse tasks, profile and
    /// trace read; prints its path
    #[arg(long, conflicts_with_all = ["glob", "length", "off"])]
    save: bool,
}

impl Subcommand for Args {
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Request::OFFER;

    fn run(&self, context: &mut Context) -> Outcome {
        if self.faults.is_some() {
            let moved = Failure::new(Exit::Usage, "faults are recorded by the bench");
            return Err(moved.hint("dormouse-bench record-faults --help"));
        }
        if self.save { save::run(&self.target, context) } else { flight::run(self, context) }
    }
}

/// The state of the recorder.
#[derive(Debug, Deserialize)]
struct Request {}

impl Asked for Request {
    const NAME: &'static str = "record";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        flight::ask(subject, RecordRequest::default(), context)
    }
}
