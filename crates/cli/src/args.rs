//! The command line as typed. What a subcommand makes of its flags stands with the subcommand.

use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser};

use crate::cmd::Command;
use crate::duration;
use crate::output::Color;
use crate::target::Target;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// What stands below the list of subcommands.
const AFTER: &str = "\
Examples:
  dormouse ps                            processes with dormouse in them
  dormouse top teaparty                  CPU time of its groups and threads, live
  dormouse stat teaparty --for 10s       the same, counted; of any other process, its threads
  dormouse stat -r 5 -- make             what a command uses, and how it varies
  dormouse list teaparty                 the events that its groups can count
  dormouse keys teaparty 'db.*'          keys and whether they are on
  dormouse trace teaparty 'db.*,!db.row' switch probes on and watch what they record
  dormouse on teaparty 'menu.*' --for 30s
  dormouse record --faults teaparty -o tea.faults.gz
  dormouse maps 1234 55d0c0a01234        function, line and mapping of an address of any process
  dormouse demo                          all of it, on a service of its own

A TARGET is a process id or a process name. A GLOB is a list as in 'db.*,!db.noisy'.

Exit codes:
  0  done                               3  no such process, or no dormouse in it
  1  a negative finding, or a failure   4  the target is somebody else's
  2  the command line is wrong          5  not possible here, or with that version
  130  ended by Ctrl-C before the end; `on`, `trace`, `top` and `stat` end by it with 0
`stat -- COMMAND` and `record -- COMMAND` end as the command does.";

/// Look into a running service: its probes, what they see, and where its CPU time goes.
#[derive(Debug, Parser)]
#[command(name = "dormouse", version, after_help = AFTER, styles = STYLES)]
#[command(arg_required_else_help = true, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every subcommand.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Print JSON: one document, or one a line for a stream
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Use colour: auto, always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", hide_possible_values = true)]
    pub(crate) color: Color,

    /// How long a service may take to answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "5s", value_parser = duration::parse_positive)]
    pub(crate) timeout: Duration,
}

/// Keys of a process.
#[derive(Debug, Clone, Args)]
pub(crate) struct Selection {
    #[arg(help = help::TARGET)]
    pub(crate) target: Target,
    #[arg(help = help::GLOB)]
    pub(crate) glob: String,
}

/// Help texts of arguments that several subcommands take.
pub(crate) mod help {
    pub(crate) const TARGET: &str = "Process id or name";
    pub(crate) const GLOB: &str = "Names of keys, as in 'db.*,!db.noisy'";
}
