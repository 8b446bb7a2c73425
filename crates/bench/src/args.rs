//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as _, Command, FromArgMatches as _, Subcommand, ValueEnum};

use crate::bench::Settings;
use crate::compare::CompareArgs;
use crate::recording::RecordFaultsArgs;
use crate::workloads::breakpoint::BreakpointArgs;

/// A command line.
#[derive(Debug)]
pub(crate) enum Line {
    /// A benchmark.
    Bench(BenchArgs),
    /// Another verb.
    Verb(Verb),
}

impl Line {
    /// Reads a command line, the program's name included.
    pub(crate) fn read<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let command = Command::new("dormouse-bench").version(env!("CARGO_PKG_VERSION"));
        let command = Verb::augment_subcommands(BenchArgs::augment_args(command))
            .about("Run a benchmark: our rows and those of peers, interleaved in one run")
            .args_conflicts_with_subcommands(true)
            .subcommand_negates_reqs(true)
            .subcommand_required(false)
            .arg_required_else_help(true)
            .disable_help_subcommand(true)
            .max_term_width(100);
        let matches = command.try_get_matches_from(words)?;
        if matches.subcommand().is_some() {
            Verb::from_arg_matches(&matches).map(Line::Verb)
        } else {
            BenchArgs::from_arg_matches(&matches).map(Line::Bench)
        }
    }
}

/// The verbs beside the workloads.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Compare(CompareArgs),
    RecordFaults(RecordFaultsArgs),
}

/// A workload, and how it runs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BenchArgs {
    /// The workload.
    #[arg(value_name = "NAME")]
    pub(crate) workload: Workload,

    /// Print one JSON object for each workload instead of text.
    #[arg(long)]
    pub(crate) json: bool,

    /// Also write the JSON there: a file `….json`, or a directory that gets one `NAME.json` a
    /// workload.
    #[arg(short, long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,

    /// Take shorter samples and fewer rounds: shows that it works, not how fast.
    #[arg(long)]
    pub(crate) quick: bool,

    /// Number of rounds (for teaparty: the maximum).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub(crate) reps: Option<u32>,

    /// Run this many times, in turns, each time in a separate process; a JSON file has a line for
    /// each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,

    /// Seed of the order in which rows are sampled.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// The load average before the run of which this process is a part.
    #[arg(long, value_name = "LOAD", hide = true)]
    pub(crate) load_before: Option<f64>,

    /// Replay this trace of page faults (`dormouse-bench record-faults`) instead of those that come
    /// with the bench.
    #[arg(long, value_name = "FILE", help_heading = "Options of maps")]
    pub(crate) trace: Option<PathBuf>,

    /// The size of the breakpoint workload.
    #[command(flatten)]
    pub(crate) breakpoint: BreakpointArgs,
}

/// The workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub(crate) enum Workload {
    /// The price that counting allocations adds to them.
    Alloc,
    /// The price of charging each poll of a future to a group, and whether the charge is right.
    Poll,
    /// Static keys: the price of a sleeping site, of an update, and its interrupts.
    Keys,
    /// CPU time of a thread: the price of a read in each tier, its error, and the price that a tier
    /// adds to a switch of the kernel.
    Clock,
    /// How long a service waits for a group while clients read counts.
    Groups,
    /// Accounting of inherited breakpoints: by a list of all tasks' breakpoints or by a hash.
    Breakpoint,
    /// A cache for address look-ups, on page faults recorded from real programs.
    Maps,
    /// CPU time of many threads, read by all of them at once.
    Pound,
    /// Switching from task to task while events are counted: contexts read, or exchanged.
    Switch,
    /// The price of a profile: for a sample, a thread, a service; and its error.
    Profile,
    /// The price of finding callers in code without frame pointers, and the size of the tables for
    /// it.
    Stacks,
    /// The price of an awake probe, and of the flight recorder that keeps its records.
    Record,
    /// The price of taking times of tasks: for a poll with its wake, and for reading them.
    Waits,
    /// The price of locks that show who holds them, beside the locks underneath.
    Locks,
    /// The price of metrics: for an exposition, and for a scrape through `dormouse serve`.
    Metrics,
    /// The latency of a route as it is shown, beside that which its clients measure.
    Latency,
    /// The demo service under load, built with and without dormouse.
    Teaparty,
    /// The cost that dormouse reports of itself, beside the difference to a service without.
    #[value(name = "self")]
    Own,
    /// Time of a build and size of a program, with dormouse and with peers.
    Embed,
    /// All of them, one after the other, each in a separate process.
    All,
}

impl BenchArgs {
    pub(crate) fn settings(&self) -> Settings {
        Settings { quick: self.quick, reps: self.reps.map(|reps| reps as usize), seed: self.seed }
    }

    /// The words of a command line for one such run of one workload, as JSON.
    pub(crate) fn words(&self, workload: &str, load: Option<f64>) -> Vec<String> {
        let BreakpointArgs { repeat, breakpoints, parallelism, threads, cpus } = self.breakpoint;
        let mut words = vec![workload.to_owned(), "--json".to_owned()];
        words.extend(self.quick.then(|| "--quick".to_owned()));
        let numbers = [
            ("seed", Some(self.seed)),
            ("reps", self.reps.map(u64::from)),
            ("repeat", Some(repeat.into())),
            ("breakpoints", Some(breakpoints.into())),
            ("parallelism", Some(parallelism.into())),
            ("threads", Some(threads.into())),
            ("cpus", Some(cpus.into())),
        ];
        words.extend(numbers.iter().filter_map(|(name, number)| Some(format!("--{name}={}", (*number)?))));
        words.extend(load.map(|load| format!("--load-before={load}")));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        Line::read(["bench"].iter().chain(words)).map(|line| match line {
            Line::Bench(args) => args,
            Line::Verb(verb) => panic!("{verb:?}"),
        })
    }

    #[test]
    fn a_verb_needs_no_workload() {
        let line = Line::read(["bench", "compare", "a", "b"]).unwrap();
        assert!(matches!(line, Line::Verb(Verb::Compare(_))));
        assert!(Line::read(["bench", "--quick", "compare", "a", "b"]).is_err());
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
        let args = parse(&["keys", "--quick", "--reps", "3", "-o", "x.json"]).unwrap();
        assert_eq!((args.workload, args.reps, args.seed), (Workload::Keys, Some(3), 1));
        assert!(parse(&["nothing"]).is_err());
        assert!(parse(&["keys", "--reps", "1"]).is_err());
    }

    #[test]
    fn words_ask_for_the_same_run() {
        let all =
            parse(&["all", "--quick", "--reps=3", "--seed=9", "--threads=5", "--runs=2", "-o", "x"]).unwrap();
        let words = all.words("maps", Some(0.25));
        let one = parse(&words.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        let expected = BenchArgs {
            workload: Workload::Maps,
            json: true,
            output: None,
            runs: 1,
            load_before: Some(0.25),
            ..all.clone()
        };
        assert_eq!(format!("{one:?}"), format!("{expected:?}"));
    }
}
