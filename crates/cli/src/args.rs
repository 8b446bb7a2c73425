//! Arguments that several subcommands take.

use std::time::Duration;

use clap::{Args, ColorChoice};

use crate::duration;

/// Flags of every subcommand.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Print JSON: one document, or one on each line for a stream
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Use colour: auto, always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: ColorChoice,

    /// How long a service may take to answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = duration::parse_positive)]
    pub(crate) timeout: Duration,
}

/// Help texts of arguments that several subcommands take.
pub(crate) mod help {
    pub(crate) const TARGET: &str = "Process id or name";
    pub(crate) const TARGET_OR_FILE: &str = "Process id or name, or a file of the recorder";
    pub(crate) const GLOB: &str = "Names of keys, as in 'db.*,!db.noisy', or places, as in 'src/db.rs:77'; \
                                    those of dormouse itself only by 'dormouse.*'";
}
