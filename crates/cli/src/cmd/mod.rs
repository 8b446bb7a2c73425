//! The subcommands, one file each.

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod generate;
mod keys;
mod list;
mod maps;
mod off;
mod on;
mod ps;
mod record;
mod stat;
mod top;
mod trace;

use clap::Subcommand;

use crate::exit::Outcome;
use crate::output::Context;

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ps(ps::Args),
    Keys(keys::Args),
    On(on::Args),
    Off(off::Args),
    Trace(trace::Args),
    Top(top::Args),
    Stat(stat::Args),
    List(list::Args),
    Record(record::Args),
    Maps(maps::Args),
    Doctor(doctor::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    #[cfg(feature = "bench")]
    Bench(dormouse_bench::Args),
    Generate(generate::Args),
    /// Run the demo's service
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    Teaparty(dormouse_teaparty::Args),
}

/// Does it.
pub(crate) fn run(command: Command, context: &mut Context) -> Outcome {
    match command {
        Command::Ps(args) => ps::run(&args, context),
        Command::Keys(args) => keys::run(&args, context),
        Command::On(args) => on::run(&args, context),
        Command::Off(args) => off::run(&args, context),
        Command::Trace(args) => trace::run(&args, context),
        Command::Top(args) => top::run(&args, context),
        Command::Stat(args) => stat::run(&args, context),
        Command::List(args) => list::run(&args, context),
        Command::Record(args) => record::run(&args, context),
        Command::Maps(args) => maps::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(&args, context),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(args, context),
        Command::Generate(args) => generate::run(&args, context),
        #[cfg(feature = "demo")]
        Command::Teaparty(args) => demo::teaparty(args, context),
    }
}
