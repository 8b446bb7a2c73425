//! The command line: the subcommands, one file each, and the flags of all.

mod bench;
mod clients;
#[cfg(feature = "demo")]
mod demo;
mod doctor;
mod experiment;
mod generate;
mod keys;
mod list;
mod maps;
mod profile;
mod ps;
mod record;
#[cfg(feature = "serve")]
mod serve;
mod slots;
mod stat;
mod switch;
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
#[cfg(feature = "serve")]
use crate::serve::Verbs;
use crate::verb::Line;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use switch::{off, on, reset};

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
  dormouse clients teaparty              who is connected to it, and what it does for each
  dormouse trace teaparty 'db.*,!db.row' switch probes on and watch what they record
  dormouse trace teaparty 'dormouse.poll,dormouse.task,db.*' -o tea.json.gz
                                         a timeline of threads and requests, for viewers
  dormouse on teaparty 'menu.*' --for 30s
  dormouse reset teaparty '*'            every key as the service started with it
  dormouse record teaparty 'db.*'        keep their last records in the service, for when they count
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
  1  a negative finding, or a failure   4  the target belongs to another user
  2  the command line is wrong          5  not possible here, or with that version
  130  ended by Ctrl-C before the end; `on`, `trace`, `top`, `stat` and `profile` end by it with 0
`stat -- COMMAND` and `profile -- COMMAND` end as the command does, `bench` and
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
    Keys(Line<keys::Request>),
    Clients(Line<clients::Request>),
    On(Line<on::Request>),
    Off(Line<off::Request>),
    Reset(Line<reset::Request>),
    Trace(Line<trace::Request>),
    Top(Line<top::Request>),
    Stat(stat::Args),
    List(list::Args),
    Record(record::Args),
    Profile(profile::Args),
    Tasks(Line<tasks::Request>),
    Triggers(Line<triggers::Request>),
    Watch(Line<watch::Request>),
    Experiment(experiment::Args),
    Slots(Line<slots::Request>),
    Maps(Line<maps::Request>),
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

/// The verbs that HTTP may ask for.
#[cfg(feature = "serve")]
const SERVED: Verbs = Verbs {
    offers: &[
        Offer::reading::<clients::Request>(),
        Offer::reading::<doctor::Request>(),
        Offer::reading::<keys::Request>(),
        Offer::changing::<switch::Request>(),
        Offer::reading::<list::Request>(),
        Offer::reading::<maps::Request>(),
        Offer::reading::<profile::Request>(),
        Offer::reading::<slots::Request>(),
        Offer::reading::<stat::Request>(),
        Offer::reading::<tasks::Request>(),
        Offer::reading::<top::Request>(),
        Offer::changing::<trace::Request>(),
        Offer::reading::<triggers::Request>(),
        Offer::changing::<watch::Request>(),
    ],
    profile: profile::encoded,
};

/// Runs a subcommand.
pub(crate) fn run(command: Command, context: &mut Context) -> Outcome {
    match command {
        Command::Ps(args) => ps::run(&args, context),
        Command::Keys(line) => line.run(context),
        Command::Clients(line) => line.run(context),
        Command::On(line) => line.run(context),
        Command::Off(line) => line.run(context),
        Command::Reset(line) => line.run(context),
        Command::Trace(line) => line.run(context),
        Command::Top(line) => line.run(context),
        Command::Stat(args) => stat::run(&args, context),
        Command::List(args) => list::run(&args, context),
        Command::Record(args) => record::run(&args, context),
        Command::Profile(args) => profile::run(&args, context),
        Command::Tasks(line) => line.run(context),
        Command::Triggers(line) => line.run(context),
        Command::Watch(line) => line.run(context),
        Command::Experiment(args) => experiment::run(&args, context),
        Command::Slots(line) => line.run(context),
        Command::Maps(line) => line.run(context),
        Command::Doctor(args) => doctor::run(&args, context),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args, SERVED, context),
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

    /// The flags and operands of a verb that HTTP may not set.
    #[cfg(feature = "serve")]
    fn for_the_terminal<R: crate::verb::Asked + clap::Args>() -> Vec<String> {
        let known = crate::verb::words::names::<R>();
        let command = R::augment_args(clap::Command::new(R::NAME));
        let name = |argument: &clap::Arg| {
            argument.get_long().map_or_else(|| argument.get_id().to_string(), str::to_owned)
        };
        let names: Vec<String> = command.get_arguments().map(name).collect();
        let is_named = |known: &String| names.contains(known) || ["what", "addr"].contains(&known.as_str());
        assert!(known.iter().all(is_named), "{known:?} of {names:?}");
        let left = |name: &String| !known.contains(name) && name != "wanted";
        names.into_iter().filter(left).collect()
    }

    #[cfg(feature = "serve")]
    #[test]
    fn flags_that_do_more_than_read_are_refused() {
        const NONE: [&str; 0] = [];
        assert_eq!(for_the_terminal::<keys::Request>(), NONE);
        assert_eq!(for_the_terminal::<list::Request>(), NONE);
        assert_eq!(for_the_terminal::<maps::Request>(), NONE);
        assert_eq!(for_the_terminal::<profile::Request>(), NONE);
        assert_eq!(for_the_terminal::<stat::Request>(), NONE);
        assert_eq!(for_the_terminal::<tasks::Request>(), ["wake"]);
        assert_eq!(for_the_terminal::<top::Request>(), ["once", "plain"]);
        assert_eq!(for_the_terminal::<trace::Request>(), ["output"]);
        assert_eq!(for_the_terminal::<triggers::Request>(), ["add", "remove"]);
        assert_eq!(for_the_terminal::<watch::Request>(), ["stream", "stacks", "plain"]);
        for (verb, name) in [
            ("profile", "output"),
            ("profile", "diff"),
            ("profile", "command"),
            ("stat", "output"),
            ("stat", "pid"),
            ("stat", "repeat"),
            ("tasks", "wake"),
            ("triggers", "add"),
            ("keys", "target"),
            ("keys", "json=0 --timeout"),
            ("keys", ""),
        ] {
            for offer in SERVED.offers.iter().filter(|offer| offer.name == verb) {
                assert!((offer.read)(&[(name.into(), "/tmp/x".into())]).is_err(), "{verb} {name}");
            }
        }
        let is_stdin_read = (SERVED.offers[5].read)(&[("addr".into(), "-".into())]).is_ok();
        assert!(!is_stdin_read, "the server's own input is nobody's");
        for changes in ["on", "off", "reset", "record", "serve", "demo", "generate", "experiment"] {
            assert!(SERVED.offers.iter().all(|offer| offer.name != changes), "{changes}");
        }
    }

    /// Words put together by chance.
    #[cfg(feature = "serve")]
    #[test]
    fn any_query_is_read_or_refused() {
        let words = ["--output=/tmp/x", "--", "-", "", "=", "keep", " ", "\0", "1", "*", "\n--wake", "ö"];
        let names = ["for", "glob", "waits", "interval", "event", "limit", "state", "kind", "hz", "addr"];
        let mut state = 1_u64;
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound as u64) as usize
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let offer = &SERVED.offers[below(SERVED.offers.len())];
            let mut query = Vec::new();
            for _ in 0..below(3) {
                let name = if below(8) > 0 { names[below(names.len())] } else { words[below(words.len())] };
                query.push((name.to_owned(), [(); 2].map(|()| words[below(words.len())]).concat()));
            }
            match (offer.read)(&query) {
                Ok(_) => read += 1,
                Err(failure) => {
                    assert!(!failure.to_string().is_empty());
                    refused += 1;
                }
            }
        }
        assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
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
