//! The arguments of `dormouse bench`, and the way from them to printed and written reports.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::ValueEnum;

use crate::machine::Machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{Params, Report, SCHEMA};
use crate::workloads::breakpoint::BreakpointArgs;
use crate::workloads::maps::Recorded;
use crate::workloads::{self, Measured, Settings};

/// Run a benchmark: our rows and those of peers, interleaved in one run.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// What to run.
    #[arg(value_name = "NAME")]
    pub workload: Workload,

    /// Print one JSON object a workload instead of text.
    #[arg(long)]
    pub json: bool,

    /// Also write the JSON there: a file `….json`, or a directory that gets one `NAME.json` a workload.
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

    /// Replay this trace of page faults (`dormouse record --faults`) instead of those that come with the bench.
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
    /// CPU time of a thread: what a read costs in each tier, how right it is, and what a switch of the kernel costs.
    Clock,
    /// What counting allocations adds to them.
    Alloc,
    /// Accounting of inherited breakpoints: a list of all tasks' or a hash.
    Breakpoint,
    /// A cache for address look-ups, on page faults recorded from real programs.
    Maps,
    /// CPU time of many threads, asked for by all of them at once.
    Pound,
    /// Going from task to task while events are counted: contexts read out and in, or exchanged.
    Switch,
    /// The demo service under load, built with and without dormouse.
    Teaparty,
    /// All of them, one after the other.
    All,
}

impl Workload {
    pub(crate) fn each(self) -> &'static [Self] {
        match self {
            Self::Keys => &[Self::Keys],
            Self::Poll => &[Self::Poll],
            Self::Clock => &[Self::Clock],
            Self::Alloc => &[Self::Alloc],
            Self::Breakpoint => &[Self::Breakpoint],
            Self::Maps => &[Self::Maps],
            Self::Pound => &[Self::Pound],
            Self::Switch => &[Self::Switch],
            Self::Teaparty => &[Self::Teaparty],
            Self::All => &[
                Self::Keys,
                Self::Poll,
                Self::Clock,
                Self::Alloc,
                Self::Breakpoint,
                Self::Maps,
                Self::Pound,
                Self::Switch,
                Self::Teaparty,
            ],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Poll => "poll",
            Self::Clock => "clock",
            Self::Alloc => "alloc",
            Self::Breakpoint => "breakpoint",
            Self::Maps => "maps",
            Self::Pound => "pound",
            Self::Switch => "switch",
            Self::Teaparty => "teaparty",
            Self::All => "all",
        }
    }
}

/// Runs what `args` ask for and prints it, each workload as soon as it is done.
///
/// # Errors
///
/// When a report cannot be printed, or nothing can be written where it should be: at once. When a workload
/// failed, because something gave a wrong answer, no row could be measured or its report could not be written:
/// after all others have run, with the names and reasons. A missed goal is a note, because numbers are
/// noisy and exit codes are not.
pub fn run(args: &Args) -> anyhow::Result<()> {
    run_to(args, &mut io::stdout())
}

/// [`run`], printing to `out`.
///
/// # Errors
///
/// As [`run`].
pub fn run_to(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    run_each(args, out, measure)
}

fn run_each(
    args: &Args,
    out: &mut dyn Write,
    measure: impl Fn(Workload, &Args, Option<&Recorded>, &Machine) -> (Report, Measured),
) -> anyhow::Result<()> {
    if args.trace.is_some() && args.workload != Workload::Maps {
        bail!("--trace is of the workload maps; say dormouse bench maps --trace FILE");
    }
    let trace = args.trace.as_deref().map(Recorded::read).transpose()?;
    let mut output = args.output.as_deref().map(|path| Output::new(path, args.workload));
    if let Some(output) = &output {
        output.prepare()?;
    }
    // Before the first of them: the load average should be that of the machine, not ours.
    let machine = Machine::here();
    let mut failed = Vec::new();
    for &workload in args.workload.each() {
        let (report, measured) = measure(workload, args, trace.as_ref(), &machine);
        print(&report, &measured, args.json, out).context("cannot print the report")?;
        let written = output.as_mut().map_or(Ok(()), |output| output.write(&report));
        let reason = failure(&report, &measured).or_else(|| written.err().map(|error| format!("{error:#}")));
        failed.extend(reason.map(|reason| format!("{}: {reason}", workload.name())));
    }
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

/// Why a workload that has run did not do what it is for.
fn failure(report: &Report, measured: &Measured) -> Option<String> {
    if let Some(first) = measured.wrong.first() {
        return Some(format!("wrong answer: {first}"));
    }
    if report.rows.iter().any(|row| row.n > 0) {
        return None;
    }
    let reason = report.rows.iter().find_map(|row| row.unavailable.as_deref());
    Some(format!("no row could be measured: {}", reason.unwrap_or("there is none")))
}

fn measure(
    workload: Workload,
    args: &Args,
    trace: Option<&Recorded>,
    machine: &Machine,
) -> (Report, Measured) {
    let settings = Settings { quick: args.quick, reps: args.reps.map(|reps| reps as usize), seed: args.seed };
    let mut progress = Progress::on_terminal();
    let mut measured = match workload {
        Workload::Keys => workloads::keys::run(&settings, &mut progress),
        Workload::Poll => workloads::poll::run(&settings, &mut progress),
        Workload::Clock => workloads::clock::run(&settings, &mut progress),
        Workload::Alloc => workloads::alloc::run(&settings, &mut progress),
        Workload::Breakpoint => workloads::breakpoint::run(&settings, &args.breakpoint, &mut progress),
        Workload::Maps => workloads::maps::run(&settings, trace, &mut progress),
        Workload::Pound => workloads::pound::run(&settings, &mut progress),
        Workload::Switch => workloads::switch::run(&settings, &mut progress),
        Workload::Teaparty | Workload::All => workloads::teaparty::run(&settings, &mut progress),
    };
    let mut notes = Vec::new();
    notes.extend(measured.wrong.iter().map(|what| format!("WRONG ANSWER: {what}")));
    notes.append(&mut measured.notes);
    notes.extend(machine.warnings());
    let mut params = Params::new();
    params.insert("quick".to_owned(), args.quick.into());
    params.insert("seed".to_owned(), args.seed.into());
    params.append(&mut measured.params);
    let report = Report {
        schema: SCHEMA,
        bench: workload.name().to_owned(),
        machine: machine.clone(),
        params,
        rows: std::mem::take(&mut measured.rows),
        notes,
    };
    (report, measured)
}

fn print(report: &Report, measured: &Measured, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        serde_json::to_writer(&mut *out, report)?;
        writeln!(out)?;
    } else {
        report.write_text(out, &measured.tables)?;
        writeln!(out)?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use clap::Parser;

    use super::*;
    use crate::report::Row;
    use crate::runner::{Outcome, Plan, Spec};

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from(["bench"].iter().chain(words)).map(|command| command.args)
    }

    /// A run of one row, which gave this.
    fn measured(workload: Workload, wrong: Option<&str>, reason: Option<&str>) -> (Report, Measured) {
        let spec = Spec::new("x", "ns");
        let row = reason.map_or_else(|| Row::new(&spec, vec![1.0]), |why| Row::unavailable(&spec, why));
        let outcome = Outcome { rows: Vec::new(), wrong: wrong.map(str::to_owned).into_iter().collect() };
        let report = Report {
            schema: SCHEMA,
            bench: workload.name().to_owned(),
            machine: Machine::here(),
            params: Params::new(),
            rows: vec![row],
            notes: Vec::new(),
        };
        (report, Measured::of(outcome, &Plan { reps: 1, warmup: 0, seed: 1 }))
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
        let args = parse(&["keys", "--quick", "--reps", "3", "-o", "x.json"]).unwrap();
        assert_eq!((args.workload, args.reps, args.seed), (Workload::Keys, Some(3), 1));
        assert!(parse(&["nothing"]).is_err());
        assert!(parse(&["keys", "--reps", "1"]).is_err());
    }

    #[test]
    fn a_trace_is_refused_where_none_is_replayed_and_when_there_is_none() {
        for words in [&["keys", "--trace", "Cargo.toml"], &["maps", "--trace", "Cargo.toml"]] {
            assert!(run_to(&parse(words).unwrap(), &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn all_workloads_run_and_those_that_failed_are_named_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let args = parse(&["all", "--json", "-o", path]).unwrap();
        let mut out = Vec::new();
        let result = run_each(&args, &mut out, |workload, _, _, _| match workload {
            Workload::Keys => measured(workload, Some("x: 55 of 56 sites on"), None),
            Workload::Maps => measured(workload, None, Some("no trace")),
            Workload::Pound => {
                // What is in the way of its report comes while it runs.
                std::fs::create_dir(directory.path().join("pound.json")).unwrap();
                measured(workload, None, None)
            }
            _ => measured(workload, None, None),
        });
        let said = format!("{:#}", result.unwrap_err());
        let parts: Vec<&str> = said.split("; ").collect();
        assert_eq!(
            parts[..2],
            ["keys: wrong answer: x: 55 of 56 sites on", "maps: no row could be measured: no trace"]
        );
        assert!(parts.len() == 3 && parts[2].starts_with("pound: cannot write "), "{said}");
        assert_eq!(
            out.split(|&byte| byte == b'\n').count(),
            Workload::All.each().len() + 1,
            "all are printed"
        );
        assert!(directory.path().join("teaparty.json").is_file(), "the last one's report");
    }

    #[test]
    fn when_nothing_can_be_written_nothing_runs() {
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
        let result = run_each(&parse(&["all"]).unwrap(), &mut Closed, |workload, _, _, _| {
            ran.set(ran.get() + 1);
            measured(workload, None, None)
        });
        let closed = |error: &anyhow::Error| {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        assert!(result.is_err_and(|error| closed(&error)));
        assert_eq!(ran.get(), 1);
    }
}
