//! The command line: the subcommands, one file each, and the flags of all.

mod bench;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod experiment;
mod generate;
mod keys;
mod list;
mod maps;
mod off;
mod on;
mod profile;
mod ps;
mod record;
mod reset;
#[cfg(feature = "serve")]
mod serve;
mod slots;
mod stat;
mod tasks;
mod top;
mod trace;
mod triggers;
mod watch;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::args::Common;
use crate::exit::{Exit, Outcome, Report};
use crate::output::Context;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// The text below the list of subcommands.
const AFTER: &str = "\
Examples:
  dormouse ps                            processes with dormouse in them
  dormouse top teaparty                  CPU time of its groups and threads, live
  dormouse stat teaparty --for 10s       the same, counted; of any other process, its threads
  dormouse stat -r 5 -- make             what a command uses, and how it varies
  dormouse list teaparty                 the events that its groups can count
  dormouse keys teaparty 'db.*'          keys and whether they are on
  dormouse trace teaparty 'db.*,!db.row' switch probes on and watch what they record
  dormouse trace teaparty 'dormouse.poll,dormouse.task,db.*' -o tea.json.gz
                                         a timeline of threads and requests, for viewers
  dormouse on teaparty 'menu.*' --for 30s
  dormouse reset teaparty '*'            every key as the service started with it
  dormouse record teaparty 'db.*'        keep their last records in the service, for when they count
  dormouse record --faults teaparty -o tea.faults.gz
  dormouse profile teaparty --for 10s    functions that use its CPU, by group
  dormouse profile teaparty -o tea.html  the same as a flame graph
  dormouse tasks teaparty --waiting 5s   what hangs for five seconds or more, and where
  dormouse triggers teaparty --add 'request>500ms'  a file of what led to it
  dormouse watch teaparty TALLY --for 1m  who writes a variable, from which line and group
  dormouse experiment teaparty menu.fancy  what a key's code costs, in CPU time per request
  dormouse maps 1234 55d0c0a01234        function, line and mapping of an address of any process
  dormouse serve                         all services of this host, over HTTP: metrics, profiles
  dormouse compare old/ new/             runs of the bench side by side
  dormouse demo                          all of it, on a service of its own

A TARGET is a process id or a process name. A GLOB is a list as in 'db.*,!db.noisy'.

Exit codes:
  0  done                               3  no such process, or no dormouse in it
  1  a negative finding, or a failure   4  the target is somebody else's
  2  the command line is wrong          5  not possible here, or with that version
  130  ended by Ctrl-C before the end; `on`, `trace`, `top`, `stat` and `profile` end by it with 0
`stat -- COMMAND`, `record -- COMMAND` and `profile -- COMMAND` end as the command does, `bench` and
`compare` as the program dormouse-bench.";

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

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Ps(ps::Args),
    Keys(keys::Args),
    On(on::Args),
    Off(off::Args),
    Reset(reset::Args),
    Trace(trace::Args),
    Top(top::Args),
    Stat(stat::Args),
    List(list::Args),
    Record(record::Args),
    Profile(profile::Args),
    Tasks(tasks::Args),
    Triggers(triggers::Args),
    Watch(watch::Args),
    Experiment(experiment::Args),
    Slots(slots::Args),
    Maps(maps::Args),
    Doctor(doctor::Args),
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Run a benchmark: dormouse's rows and those of peers, by the program dormouse-bench
    Bench(bench::Args),
    /// Compare runs of the bench: what got worse, what got better, and what is uncertain
    Compare(bench::Args),
    Generate(generate::Args),
    /// Run the demo's service
    #[cfg(feature = "demo")]
    #[command(hide = true)]
    Teaparty(dormouse_teaparty::Args),
}

/// Runs a subcommand.
pub(crate) fn run(command: Command, context: &mut Context) -> Outcome {
    match command {
        Command::Ps(args) => ps::run(&args, context),
        Command::Keys(args) => keys::run(&args, context),
        Command::On(args) => on::run(&args, context),
        Command::Off(args) => off::run(&args, context),
        Command::Reset(args) => reset::run(&args, context),
        Command::Trace(args) => trace::run(&args, context),
        Command::Top(args) => top::run(&args, context),
        Command::Stat(args) => stat::run(&args, context),
        Command::List(args) => list::run(&args, context),
        Command::Record(args) => record::run(&args, context),
        Command::Profile(args) => profile::run(&args, context),
        Command::Tasks(args) => tasks::run(&args, context),
        Command::Triggers(args) => triggers::run(&args, context),
        Command::Watch(args) => watch::run(&args, context),
        Command::Experiment(args) => experiment::run(&args, context),
        Command::Slots(args) => slots::run(&args, context),
        Command::Maps(args) => maps::run(&args, context),
        Command::Doctor(args) => doctor::run(&args, context),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args, profile::encoded, context),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(&args, context),
        Command::Bench(args) => bench::run(None, &args, context),
        Command::Compare(args) => bench::run(Some("compare"), &args, context),
        Command::Generate(args) => generate::run(&args, Cli::command(), context),
        #[cfg(feature = "demo")]
        Command::Teaparty(args) => demo::teaparty(&args, context),
    }
}

/// The error message for an invalid command line.
pub(crate) fn misread(error: &clap::Error) -> Report {
    let text = error.render().to_string();
    let message = text.strip_prefix("error: ").unwrap_or(&text);
    let message = message.split("\n\nUsage:").next().unwrap_or(message).trim_end();
    Report {
        exit: Exit::Usage,
        message: message.to_owned(),
        near: Vec::new(),
        hint: None,
        has_hung_up: false,
        code: None,
    }
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
        generate::write_pages(Cli::command(), &dir.path().join("new")).unwrap();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = dir.path().join("new").join(format!("dormouse-{}.1", command.get_name()));
            let text = std::fs::read_to_string(&page).unwrap();
            assert!(text.contains(".SH SYNOPSIS"), "{}", page.display());
        }
        assert!(!dir.path().join("new/dormouse-teaparty.1").exists());
    }

    #[test]
    fn completions_name_the_subcommands() {
        let mut script = Vec::new();
        clap_complete::generate(clap_complete::Shell::Bash, &mut Cli::command(), "dormouse", &mut script);
        let script = String::from_utf8(script).unwrap();
        assert!(["trace", "doctor", "--timeout"].iter().all(|word| script.contains(word)));
    }
}
