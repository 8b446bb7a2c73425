//! The arguments of `dormouse bench`, and the way from them to printed and written reports.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;

use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Params, Report, SCHEMA};
use crate::workloads::breakpoint::BreakpointArgs;
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

    /// Also write the JSON there: a file, or a directory that gets one `NAME.json` a workload.
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
    fn each(self) -> &'static [Self] {
        match self {
            Self::Keys => &[Self::Keys],
            Self::Poll => &[Self::Poll],
            Self::Breakpoint => &[Self::Breakpoint],
            Self::Maps => &[Self::Maps],
            Self::Pound => &[Self::Pound],
            Self::Switch => &[Self::Switch],
            Self::Teaparty => &[Self::Teaparty],
            Self::All => &[
                Self::Keys,
                Self::Poll,
                Self::Breakpoint,
                Self::Maps,
                Self::Pound,
                Self::Switch,
                Self::Teaparty,
            ],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Keys => "keys",
            Self::Poll => "poll",
            Self::Breakpoint => "breakpoint",
            Self::Maps => "maps",
            Self::Pound => "pound",
            Self::Switch => "switch",
            Self::Teaparty => "teaparty",
            Self::All => "all",
        }
    }
}

/// Runs what `args` ask for and prints it. False when a measured thing gave a wrong answer or when no row
/// of a workload could be measured; a missed goal is a note, because numbers are noisy and exit codes are
/// not.
///
/// # Errors
///
/// When the report cannot be printed or written.
pub fn run(args: &Args) -> anyhow::Result<bool> {
    run_to(args, &mut io::stdout())
}

/// [`run`], printing to `out`.
///
/// # Errors
///
/// When the report cannot be printed or written.
pub fn run_to(args: &Args, out: &mut dyn Write) -> anyhow::Result<bool> {
    let mut output = args.output.as_deref().map(|path| Output::new(path, args.workload));
    if let Some(output) = &mut output {
        output.prepare()?;
    }
    let mut ok = true;
    for &workload in args.workload.each() {
        let (report, measured) = measure(workload, args);
        ok &= measured.wrong.is_empty() && report.rows.iter().any(|row| row.n > 0);
        print(&report, &measured, args.json, out).context("cannot print the report")?;
        if let Some(output) = &mut output {
            output.write(&report)?;
        }
    }
    Ok(ok)
}

fn measure(workload: Workload, args: &Args) -> (Report, Measured) {
    // Before the run: the load average should be that of the machine, not ours.
    let machine = Machine::here();
    let settings = Settings { quick: args.quick, reps: args.reps.map(|reps| reps as usize), seed: args.seed };
    let mut progress = Progress::on_terminal();
    let mut measured = match workload {
        Workload::Keys => workloads::keys::run(&settings, &mut progress),
        Workload::Poll => workloads::poll::run(&settings, &mut progress),
        Workload::Breakpoint => workloads::breakpoint::run(&settings, &args.breakpoint, &mut progress),
        Workload::Maps => workloads::maps::run(&settings, &mut progress),
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
        machine,
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

/// Where the JSON goes beside standard output.
#[derive(Debug)]
struct Output<'a> {
    path: &'a Path,
    directory: bool,
    /// Reports of this run so far; a single file holds one a line.
    lines: String,
}

impl<'a> Output<'a> {
    fn new(path: &'a Path, workload: Workload) -> Self {
        let directory = path.is_dir()
            || path.as_os_str().to_string_lossy().ends_with('/')
            || (workload == Workload::All && path.extension().is_none());
        Self { path, directory, lines: String::new() }
    }

    /// Finds out before the measuring, not after, that nothing can be written there.
    fn prepare(&self) -> anyhow::Result<()> {
        if self.directory {
            fs::create_dir_all(self.path)
                .with_context(|| format!("cannot create the directory {}", self.path.display()))
        } else {
            fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(self.path)
                .map(drop)
                .with_context(|| format!("cannot write to {}", self.path.display()))
        }
    }

    fn write(&mut self, report: &Report) -> anyhow::Result<()> {
        let json = serde_json::to_string(report).context("cannot turn the report into JSON")?;
        let path = if self.directory {
            self.lines = json + "\n";
            self.path.join(format!("{}.json", report.bench))
        } else {
            self.lines.push_str(&json);
            self.lines.push('\n');
            self.path.to_owned()
        };
        fs::write(&path, &self.lines).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Command::try_parse_from(["bench"].iter().chain(words)).map(|command| command.args)
    }

    fn report(name: &str) -> Report {
        Report {
            schema: SCHEMA,
            bench: name.to_owned(),
            machine: Machine::here(),
            params: Params::new(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn arguments_are_read_and_wrong_ones_refused() {
        let args = parse(&["keys", "--quick", "--reps", "3", "-o", "x.json"]).unwrap();
        assert_eq!((args.workload, args.reps, args.seed), (Workload::Keys, Some(3), 1));
        assert!(parse(&["nothing"]).is_err());
        assert!(parse(&["keys", "--reps", "1"]).is_err());
    }

    #[test]
    fn a_directory_gets_one_file_a_workload_and_a_file_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("reports");
        let mut many = Output::new(&base, Workload::All);
        many.prepare().unwrap();
        many.write(&report("keys")).unwrap();
        many.write(&report("poll")).unwrap();
        let one = base.join("all.json");
        let mut single = Output::new(&one, Workload::All);
        single.prepare().unwrap();
        single.write(&report("keys")).unwrap();
        single.write(&report("poll")).unwrap();
        let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
        assert_eq!(lines(&base.join("keys.json")), 1);
        assert_eq!(lines(&base.join("poll.json")), 1);
        assert_eq!(lines(&one), 2);
    }

    #[test]
    fn an_unwritable_output_is_an_error_before_anything_runs() {
        let path = Path::new("/proc/nowhere/x.json");
        let error = Output::new(path, Workload::Keys).prepare().unwrap_err();
        assert!(format!("{error:#}").contains("/proc/nowhere/x.json"), "{error:#}");
    }
}
