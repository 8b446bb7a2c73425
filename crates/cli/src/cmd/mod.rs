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
mod locks;
mod maps;
mod profile;
mod ps;
mod record;
#[cfg(test)]
mod schema;
#[cfg(feature = "serve")]
mod serve;
mod sleep;
mod slots;
mod stat;
mod switch;
mod tasks;
mod top;
mod trace;
mod triggers;
mod wake;
mod watch;

use clap::Parser;
use clap::builder::styling::{AnsiColor, Styles};

use crate::args::Common;
use crate::exit::{Exit, Outcome, Report};
use crate::output::{Context, JsonDocument};
use crate::render::leases::Switched;
use crate::render::processes::Listing;
use crate::render::view::Snapshot;
#[cfg(feature = "serve")]
use crate::serve::Verbs;
use crate::stream::RecordLine;
#[cfg(feature = "serve")]
use crate::verb::Offer;
use crate::verb::{Line, Subcommand};
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
  dormouse sleep teaparty                pause all that dormouse does in it, until `wake`
  dormouse record teaparty 'db.*'        keep their last records in the service, for when they count
  dormouse profile teaparty --for 10s    functions that use its CPU, by group
  dormouse profile teaparty -o tea.html  the same as a flame graph
  dormouse tasks teaparty --waiting 5s   what hangs for five seconds or more, and where
  dormouse locks teaparty --for 10s      who waits for which lock, and who holds it
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
  1  a negative finding, or a failure   4  not permitted, as for another user's
  2  the command line is wrong          5  not possible here, or with that version
  130  ended by Ctrl-C before there was a result; commands that run for a time, as `top`, `stat`,
       `trace`, `watch` or `experiment`, show what they have, and end as usual
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

/// Everything that is known of the subcommands comes from one list: the command line, the verbs
/// over HTTP, and the documents that `--json` writes. `like` names subcommands that write the same.
macro_rules! subcommands {
    ($(
        $(#[$cfg:meta])?
        $name:ident($args:ty) $(writes [$($document:ty),*])? $(like [$($other:ident),*])?,
    )*) => {
        /// The subcommands.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Command {
            $($(#[$cfg])? $name($args),)*
        }

        /// Runs a subcommand.
        pub(crate) fn run(command: Command, context: &mut Context) -> Outcome {
            match command {
                $($(#[$cfg])? Command::$name(args) => args.run(context),)*
            }
        }

        /// The verbs that HTTP may ask for.
        #[cfg(feature = "serve")]
        fn offers() -> Vec<Offer> {
            let all = [$($(#[$cfg])? <$args as Subcommand>::OFFER),*];
            all.into_iter().flatten().collect()
        }

        $($(#[$cfg])? const _: () = {
            $($(impl JsonDocument for $document {})*)?
        };)*

        /// The schemas of the documents that each subcommand writes, and those that write the same.
        #[cfg(test)]
        fn documents(of: &mut schemars::SchemaGenerator) -> Vec<schema::Documents> {
            vec![$($(#[$cfg])? schema::Documents {
                command: stringify!($name),
                own: vec![$($(schema::of::<$document>(of)),*)?],
                like: &[$($(stringify!($other)),*)?],
            }),*]
        }
    };
}

subcommands! {
    Ps(ps::Args) writes [Listing<'_>],
    Keys(Line<keys::Request>) writes [dormouse_protocol::Keys],
    Clients(Line<clients::Request>) writes [clients::Document<'_>],
    On(Line<on::Request>) writes [Switched<'_>],
    Off(Line<off::Request>) like [On],
    Reset(Line<reset::Request>) like [On],
    Sleep(Line<sleep::Request>) writes [dormouse_protocol::Slept],
    Wake(Line<wake::Request>) writes [dormouse_protocol::Woken],
    Trace(Line<trace::Request>) writes [trace::Document<'_>, RecordLine<'_>],
    Top(Line<top::Request>) writes [Snapshot<'_>],
    Stat(stat::Args) writes [stat::Document<'_>, stat::RunDocument<'_>, stat::RunsDocument],
    List(list::Args) writes [list::Listing<'_>],
    Record(record::Args) writes [record::RecorderDocument<'_>, record::SavedDocument<'_>],
    Profile(profile::Args) writes [profile::ProfileDocument<'_>, profile::DiffDocument],
    Tasks(Line<tasks::Request>)
        writes [
            tasks::TasksDocument<'_>,
            tasks::TreeDocument<'_>,
            tasks::LeaksDocument<'_>,
            tasks::LongPollDocument<'_>
        ],
    Locks(Line<locks::Request>) writes [locks::LocksDocument<'_>],
    Triggers(Line<triggers::Request>) writes [triggers::Document<'_>],
    Watch(Line<watch::Request>) writes [watch::Document<'_>],
    Experiment(experiment::Args) writes [experiment::Document<'_>],
    Slots(Line<slots::Request>) writes [slots::Document<'_>],
    Maps(Line<maps::Request>) writes [maps::Listing<'_>, maps::Answer],
    Doctor(doctor::Args) writes [doctor::Examination<'_>],
    #[cfg(feature = "serve")]
    Serve(serve::Args) writes [crate::serve::Event<'_>],
    #[cfg(feature = "demo")]
    Demo(demo::Args) writes [demo::Begun<'_>, demo::Second, demo::Summary] like [Top, Trace],
    Bench(bench::Args),
    Compare(bench::Compare),
    Generate(generate::Args),
    #[cfg(feature = "demo")]
    Teaparty(demo::Teaparty) writes [demo::Begin, demo::End],
}

/// The verbs of the server.
#[cfg(feature = "serve")]
fn verbs() -> Verbs {
    Verbs { offers: offers(), profile: profile::encoded, leaks: tasks::encoded_leaks }
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
    use clap::CommandFactory as _;

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
        assert_eq!(for_the_terminal::<locks::Request>(), NONE);
        assert_eq!(for_the_terminal::<maps::Request>(), NONE);
        assert_eq!(for_the_terminal::<profile::Request>(), NONE);
        assert_eq!(for_the_terminal::<stat::Request>(), NONE);
        assert_eq!(for_the_terminal::<tasks::Request>(), ["wake"]);
        assert_eq!(for_the_terminal::<top::Request>(), ["once", "plain"]);
        assert_eq!(for_the_terminal::<trace::Request>(), ["output", "places"]);
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
            ("record", "glob"),
            ("record", "save"),
            ("keys", "target"),
            ("keys", "json=0 --timeout"),
            ("keys", ""),
        ] {
            for offer in offers().iter().filter(|offer| offer.name == verb) {
                assert!((offer.read)(&[(name.into(), "/tmp/x".into())]).is_err(), "{verb} {name}");
            }
        }
        let maps = offers().into_iter().find(|offer| offer.name == "maps").unwrap();
        let is_stdin_read = (maps.read)(&[("addr".into(), "-".into())]).is_ok();
        assert!(!is_stdin_read, "the server's own input is nobody's");
        for changes in ["on", "off", "reset", "serve", "demo", "generate", "experiment"] {
            assert!(offers().iter().all(|offer| offer.name != changes), "{changes}");
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
        let (offers, mut read, mut refused) = (offers(), 0, 0);
        for _ in 0..20_000 {
            let offer = &offers[below(offers.len())];
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
