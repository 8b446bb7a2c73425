//! The arguments of `dormouse bench`, and the way from them to printed and written reports.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::bench::{Bench, Settings};
use crate::machine::Machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{BenchReport, SCHEMA};
use crate::row::Params;
use crate::table::Table;
use crate::workloads::breakpoint::BreakpointArgs;
use crate::workloads::maps::Recorded;
use crate::workloads::{
    alloc, breakpoint, clock, groups, keys, maps, metrics, poll, pound, profile, record, switch, teaparty,
    waits,
};

/// Run a benchmark: our rows and those of peers, interleaved in one run.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// The workload.
    #[arg(value_name = "NAME")]
    pub workload: Workload,

    /// Print one JSON object a workload instead of text.
    #[arg(long)]
    pub json: bool,

    /// Also write the JSON there: a file `….json`, or a directory that gets one `NAME.json` a
    /// workload.
    #[arg(short, long, value_name = "PATH")]
    pub output: Option<PathBuf>,

    /// Shorter samples and fewer rounds: shows that it works, not how fast.
    #[arg(long)]
    pub quick: bool,

    /// Rounds (for teaparty: the most rounds).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub reps: Option<u32>,

    /// Seed of the order in which rows are sampled.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Replay this trace of page faults (`dormouse record --faults`) instead of those that come
    /// with the bench.
    #[arg(long, value_name = "FILE", help_heading = "Options of maps")]
    pub trace: Option<PathBuf>,

    /// How large the breakpoint workload is.
    #[command(flatten)]
    pub breakpoint: BreakpointArgs,
}

/// The workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Workload {
    /// Static keys: the price of a site asleep, of an update, and its interrupts.
    Keys,
    /// The price of charging each poll of a future to a group, and whether the charge is right.
    Poll,
    /// CPU time of a thread: the price of a read in each tier, its error, and the price of a switch
    /// of the kernel.
    Clock,
    /// The price that counting allocations adds to them.
    Alloc,
    /// How long a service waits for a group while others look at counts.
    Groups,
    /// Accounting of inherited breakpoints: a list of all tasks' or a hash.
    Breakpoint,
    /// A cache for address look-ups, on page faults recorded from real programs.
    Maps,
    /// CPU time of many threads, asked for by all of them at once.
    Pound,
    /// Going from task to task while events are counted: contexts read out and in, or exchanged.
    Switch,
    /// The price of a profile: of a sample, of a thread, of a service; and its error.
    Profile,
    /// The price of an awake probe, and of the flight recorder that keeps its records.
    Record,
    /// The price of taking times of tasks: of a poll with its wake, and of reading them.
    Waits,
    /// The price of metrics: of an exposition, and of a scrape through `dormouse serve`.
    Metrics,
    /// The demo service under load, built with and without dormouse.
    Teaparty,
    /// All of them, one after the other.
    All,
}

/// A workload, its name, and the function that runs it.
type Entry = (Workload, &'static str, fn(&mut Bench, &BenchArgs, Option<&Recorded>));

/// In the order of `all`. Keys are first: a peer's rows need a process that has started no thread
/// yet.
const ENTRIES: [Entry; 14] = [
    (Workload::Keys, "keys", |bench, _, _| keys::run(bench)),
    (Workload::Poll, "poll", |bench, _, _| poll::run(bench)),
    (Workload::Clock, "clock", |bench, _, _| clock::run(bench)),
    (Workload::Alloc, "alloc", |bench, _, _| alloc::run(bench)),
    (Workload::Breakpoint, "breakpoint", |bench, args, _| breakpoint::run(bench, &args.breakpoint)),
    (Workload::Maps, "maps", |bench, _, trace| maps::run(bench, trace)),
    (Workload::Pound, "pound", |bench, _, _| pound::run(bench)),
    (Workload::Switch, "switch", |bench, _, _| switch::run(bench)),
    (Workload::Groups, "groups", |bench, _, _| groups::run(bench)),
    (Workload::Profile, "profile", |bench, _, _| profile::run(bench)),
    (Workload::Record, "record", |bench, _, _| record::run(bench)),
    (Workload::Waits, "waits", |bench, _, _| waits::run(bench)),
    (Workload::Metrics, "metrics", |bench, _, _| metrics::run(bench)),
    (Workload::Teaparty, "teaparty", |bench, _, _| teaparty::run(bench)),
];

/// A workload that has run.
#[derive(Debug)]
struct Measured {
    report: BenchReport,
    tables: Vec<Table>,
    wrong: Vec<String>,
}

/// Runs the workloads that `args` name, and prints the report of each as soon as it is done.
///
/// # Errors
///
/// At once, when a report cannot be printed, or when none can be written to the place that `args`
/// name. After all workloads have run, when one failed: because of a wrong answer, because no row
/// could be measured, or because its report could not be written; the error has the names and
/// reasons. A missed goal is a note, because numbers are noisy and exit codes are not.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    run_to(args, &mut io::stdout())
}

/// [`run`], printing to `out`.
///
/// # Errors
///
/// As [`run`].
pub fn run_to(args: &BenchArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    run_each(args, out, measure)
}

fn run_each(
    args: &BenchArgs,
    out: &mut dyn Write,
    measure: impl Fn(&Entry, &BenchArgs, Option<&Recorded>, &Machine) -> Measured,
) -> anyhow::Result<()> {
    if args.trace.is_some() && args.workload != Workload::Maps {
        bail!("--trace is of the workload maps; say dormouse bench maps --trace FILE");
    }
    let entries =
        || ENTRIES.iter().filter(|entry| args.workload == Workload::All || args.workload == entry.0);
    let names: Vec<_> = entries().map(|entry| entry.1).collect();
    let trace = args.trace.as_deref().map(Recorded::read).transpose()?;
    let mut output = args.output.as_deref().map(|path| Output::new(path, &names));
    if let Some(output) = &output {
        output.prepare()?;
    }
    // Before the first workload: the load average should be that of the machine, not ours.
    let machine = Machine::here();
    let mut failed = Vec::new();
    for entry in entries() {
        let measured = measure(entry, args, trace.as_ref(), &machine);
        // Written first: a reader that ends the run at the first line of a report has it in a file.
        let written = output.as_mut().map_or(Ok(()), |output| output.write(&measured.report));
        print(&measured, args.json, out).context("cannot print the report")?;
        let reason = failure(&measured).or_else(|| written.err().map(|error| format!("{error:#}")));
        failed.extend(reason.map(|reason| format!("{}: {reason}", entry.1)));
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

/// Why a workload that has run failed.
fn failure(measured: &Measured) -> Option<String> {
    if let Some(first) = measured.wrong.first() {
        return Some(format!("wrong answer: {first}"));
    }
    let rows = &measured.report.rows;
    if rows.iter().any(|row| row.n > 0) {
        return None;
    }
    let reason = rows.iter().find_map(|row| row.unavailable.as_deref());
    Some(format!("no row could be measured: {}", reason.unwrap_or("there is none")))
}

fn measure(entry: &Entry, args: &BenchArgs, trace: Option<&Recorded>, machine: &Machine) -> Measured {
    let &(_, name, run) = entry;
    let settings = Settings { quick: args.quick, reps: args.reps.map(|reps| reps as usize), seed: args.seed };
    let mut bench = Bench::new(settings, Progress::on_terminal());
    run(&mut bench, args, trace);
    let mut notes: Vec<_> = bench.wrong.iter().map(|what| format!("WRONG ANSWER: {what}")).collect();
    notes.append(&mut bench.notes);
    notes.extend(machine.warnings());
    let mut params = Params::new();
    params.insert("quick".to_owned(), args.quick.into());
    params.insert("seed".to_owned(), args.seed.into());
    params.append(&mut bench.params);
    let (machine, bench_name) = (machine.clone(), name.to_owned());
    let report = BenchReport { schema: SCHEMA, bench: bench_name, machine, params, rows: bench.rows, notes };
    Measured { report, tables: bench.tables, wrong: bench.wrong }
}

fn print(Measured { report, tables, .. }: &Measured, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, report)?;
    } else {
        report.write_text(out, tables)?;
    }
    writeln!(out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use clap::Parser;

    use super::*;
    use crate::row::{Row, Spec};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<BenchArgs, clap::Error> {
        Command::try_parse_from(["bench"].iter().chain(words)).map(|command| command.args)
    }

    /// A run of one row that gave a wrong answer, or no value for a reason.
    fn measured(entry: &Entry, wrong: Option<&str>, reason: Option<&str>) -> Measured {
        let values = reason.map_or(Ok(vec![1.0]), |why| Err(why.to_owned()));
        let report = BenchReport {
            schema: SCHEMA,
            bench: entry.1.to_owned(),
            machine: Machine::here(),
            params: Params::new(),
            rows: vec![Row::new(&Spec::new("x", "ns"), values)],
            notes: Vec::new(),
        };
        Measured { report, tables: Vec::new(), wrong: wrong.into_iter().map(str::to_owned).collect() }
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
        let args = parse(&["keys", "--quick", "--reps", "3", "-o", "x.json"]).unwrap();
        assert_eq!((args.workload, args.reps, args.seed), (Workload::Keys, Some(3), 1));
        assert!(parse(&["nothing"]).is_err());
        assert!(parse(&["keys", "--reps", "1"]).is_err());
    }

    #[test]
    fn a_trace_is_for_maps_and_must_exist() {
        for words in [&["keys", "--trace", "Cargo.toml"], &["maps", "--trace", "Cargo.toml"]] {
            assert!(run_to(&parse(words).unwrap(), &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn all_run_and_failures_are_named_last() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let args = parse(&["all", "--json", "-o", path]).unwrap();
        let mut out = Vec::new();
        let result = run_each(&args, &mut out, |entry, _, _, _| match entry.0 {
            Workload::Keys => measured(entry, Some("x: 55 of 56 sites on"), None),
            Workload::Maps => measured(entry, None, Some("no trace")),
            Workload::Pound => {
                // A directory gets in the way of its report while it runs.
                std::fs::create_dir(directory.path().join("pound.json")).unwrap();
                measured(entry, None, None)
            }
            _ => measured(entry, None, None),
        });
        let said = format!("{:#}", result.unwrap_err());
        let parts: Vec<&str> = said.split("; ").collect();
        assert_eq!(
            parts[..2],
            ["keys: wrong answer: x: 55 of 56 sites on", "maps: no row could be measured: no trace"]
        );
        assert!(parts.len() == 3 && parts[2].starts_with("pound: cannot write "), "{said}");
        assert_eq!(out.split(|&byte| byte == b'\n').count(), ENTRIES.len() + 1, "all are printed");
        assert!(directory.path().join("teaparty.json").is_file(), "the last one's report");
    }

    #[test]
    fn nothing_runs_without_a_place_to_write() {
        let args = parse(&["keys", "-o", "/proc/nowhere/x.json"]).unwrap();
        let result = run_each(&args, &mut Vec::new(), |_, _, _, _| panic!("it ran"));
        let said = format!("{:#}", result.unwrap_err());
        assert!(said.contains("/proc/nowhere/x.json"), "{said}");
    }

    #[test]
    fn a_reader_that_left_ends_the_run() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let ran = Cell::new(0);
        let result = run_each(&parse(&["all"]).unwrap(), &mut Closed, |entry, _, _, _| {
            ran.set(ran.get() + 1);
            measured(entry, None, None)
        });
        let closed = |error: &anyhow::Error| {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        assert!(result.is_err_and(|error| closed(&error)));
        assert_eq!(ran.get(), 1);
    }
}
