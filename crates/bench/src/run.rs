//! A run: from arguments to printed and written reports.
//!
//! One run of one workload is measured in this process. Several are measured each in a separate
//! process ([`child`]): none is affected by the threads, keys, memory or signal handlers that
//! another has left, and the run goes on if one crashes. The peer `static-keys` even needs a
//! process that has not started a thread.

use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::args::{BenchArgs, Workload};
use crate::child::{self, Ended};
use crate::entry::{ENTRIES, Entry, measure};
use crate::figures;
use crate::machine::Machine;
use crate::output::Output;
use crate::progress::Stages;
use crate::report::BenchReport;
use crate::workloads::maps::Recorded;

/// Runs the workloads that `args` name, and prints the report of each to `out` as soon as it is
/// done. `again` is this program without arguments: several workloads or runs are made by it.
///
/// # Errors
///
/// Immediately, if a report cannot be printed, or if none can be written to the place in `args`.
/// After all workloads have run, if one failed: because of a wrong answer, because no row could be
/// measured, because its process crashed, or because its report could not be written; the error has
/// the names and reasons. A missed goal is only a note, because numbers are noisy and exit codes
/// are not.
pub(crate) fn run(args: &BenchArgs, again: &dyn Fn() -> Command, out: &mut dyn Write) -> anyhow::Result<()> {
    if args.trace.is_some() && args.workload != Workload::Maps {
        bail!("--trace is of the workload maps; say dormouse-bench maps --trace FILE");
    }
    let entries: Vec<&Entry> = ENTRIES
        .iter()
        .filter(|entry| args.workload == Workload::All || args.workload == entry.workload)
        .collect();
    let trace = args.trace.as_deref().map(Recorded::read).transpose()?;
    let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
    let output = args.output.as_deref().map(|path| Output::new(path, &names));
    if let Some(output) = &output {
        output.prepare()?;
    }
    let mut results = Results { out, json: args.json, output, failures: Vec::new() };
    if args.workload == Workload::All || args.runs > 1 {
        apart(args, &entries, again, &mut results)?;
    } else {
        for entry in entries {
            let report = measure(entry, args, trace.as_ref());
            let json = serde_json::to_string(&report).context("cannot turn the report into JSON")?;
            let failure = report.failure();
            results.take(entry.name, tables_of(entry, args), Some(&(report, json)), failure)?;
        }
    }
    let failures = results.failures;
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("; ")) }
}

/// The tables of a workload's origin; empty for a trace of the user's own.
fn tables_of(entry: &Entry, args: &BenchArgs) -> &'static str {
    if args.trace.is_some() { "" } else { entry.origin }
}

/// Runs each workload in a process of its own, and all of them as often as asked for, in turns, so
/// that a machine's drift falls on all alike.
fn apart(
    args: &BenchArgs,
    entries: &[&Entry],
    again: &dyn Fn() -> Command,
    results: &mut Results<'_>,
) -> anyhow::Result<()> {
    // Before the first one: the load of the machine, not ours.
    let load = Machine::load();
    let turns = || (0..args.runs).flat_map(|_| entries);
    let seconds = turns().map(|entry| entry.seconds[usize::from(args.quick)]).collect();
    let mut stages = Stages::new(seconds, !args.json);
    for (stage, entry) in turns().enumerate() {
        stages.begin(stage, entry.name);
        let mut command = again();
        command.args(args.words(entry.name, load));
        if let Some(trace) = &args.trace {
            command.arg("--trace").arg(trace);
        }
        let limit = limit(args, entry);
        let Ended { report, failure, said } = child::run(command, limit, || stages.tick(entry.name));
        stages.aside(|| {
            // In JSON, a message beside reports is one document, and comes last.
            if report.is_none() || !args.json {
                // Nobody may be there to read it.
                let _ = io::stderr().write_all(said.as_bytes());
            }
            results.take(entry.name, tables_of(entry, args), report.as_ref(), failure)
        })?;
    }
    Ok(())
}

/// How long a workload may take: many times as long as it should, on a machine that does much else.
fn limit(args: &BenchArgs, entry: &Entry) -> Duration {
    // With a requested number of rounds there is no time limit.
    if args.reps.is_some() {
        return Duration::MAX;
    }
    Duration::from_secs(60 + 10 * u64::from(entry.seconds[usize::from(args.quick)]))
}

/// Where reports go, and what failed.
struct Results<'a> {
    out: &'a mut dyn Write,
    json: bool,
    output: Option<Output<'a>>,
    failures: Vec<String>,
}

impl Results<'_> {
    /// Writes and prints a report, and keeps the reason of a failure.
    fn take(
        &mut self,
        name: &str,
        origin: &str,
        report: Option<&(BenchReport, String)>,
        mut failure: Option<String>,
    ) -> anyhow::Result<()> {
        if let Some((report, json)) = report {
            // Written first: a reader that ends the run at the first line of a report has it in a
            // file.
            let written = self.output.as_mut().map_or(Ok(()), |output| output.write(name, json));
            failure = failure.or_else(|| written.err().map(|error| format!("{error:#}")));
            self.print(origin, report, json).context("cannot print the report")?;
        } else if let Some(output) = &self.output {
            output.forget(name);
        }
        self.failures.extend(failure.map(|reason| format!("{name}: {reason}")));
        Ok(())
    }

    fn print(&mut self, origin: &str, report: &BenchReport, json: &str) -> io::Result<()> {
        if self.json {
            self.out.write_all(json.as_bytes())?;
        } else {
            let tables = if origin.is_empty() {
                Vec::new()
            } else {
                figures::tables(origin, &report.rows, &report.params)
            };
            report.write_text(self.out, &tables)?;
        }
        writeln!(self.out)?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::args::Line;
    use crate::report::SCHEMA;
    use crate::row::{Params, Row, Spec};

    fn args(words: &[&str]) -> BenchArgs {
        match Line::read(["bench"].iter().chain(words)).unwrap() {
            Line::Bench(args) => args,
            Line::Verb(verb) => panic!("{verb:?}"),
        }
    }

    /// A command that does `script` instead of measuring the workload `$1`.
    fn shell(script: &str) -> impl Fn() -> Command {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]);
            command
        }
    }

    /// Puts a report of one row for each workload into a directory.
    fn reports(directory: &Path, wrong: &str, absent: &str) {
        for entry in &ENTRIES {
            let values = if entry.name == absent { Err("no trace".to_owned()) } else { Ok(vec![1.5]) };
            let notes = (entry.name == wrong).then(|| "WRONG ANSWER: x: 55 of 56 sites on".to_owned());
            let report = BenchReport {
                schema: SCHEMA,
                bench: entry.name.to_owned(),
                machine: Machine::here(),
                params: Params::new(),
                rows: vec![Row::new(&Spec::new("x", "ns"), values)],
                notes: notes.into_iter().collect(),
            };
            fs::write(directory.join(entry.name), serde_json::to_string(&report).unwrap()).unwrap();
        }
    }

    #[test]
    fn all_run_and_failures_are_named_last() {
        let (made, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        reports(made.path(), "keys", "maps");
        let path = directory.path().to_str().unwrap();
        // Of an earlier run.
        for name in ["switch", "maps"] {
            fs::write(directory.path().join(format!("{name}.json")), "{\"schema\":1}\n").unwrap();
        }
        // The kernel kills one; a directory gets in the way of the report of another.
        let script = format!(
            "case $1 in switch) head -c 20 {made}/$1; kill -KILL $$;; pound) mkdir {path}/pound.json;; esac; \
             cat {made}/$1; [ $1 != keys ]",
            made = made.path().display()
        );
        let mut out = Vec::new();
        let result = run(&args(&["all", "--json", "-o", path]), &shell(&script), &mut out);
        let said = format!("{:#}", result.unwrap_err());
        let parts: Vec<&str> = said.split("; ").collect();
        assert_eq!(
            parts[..2],
            ["keys: wrong answer: x: 55 of 56 sites on", "maps: no row could be measured: no trace"]
        );
        assert!(parts[2].starts_with("pound: cannot write "), "{said}");
        assert!(parts.len() == 4 && parts[3].starts_with("switch: signal: 9"), "{said}");
        let lines = || out.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        assert_eq!(lines().count(), ENTRIES.len() - 1, "all that there are, are printed");
        assert!(lines().all(|line| serde_json::from_slice::<BenchReport>(line).is_ok()));
        let there = |name: &str| directory.path().join(name).is_file();
        assert!(there("teaparty.json") && !there("switch.json"));
        assert!(fs::read_dir(directory.path()).unwrap().count() == ENTRIES.len() - 1, "no half of a file");
    }

    #[test]
    fn workloads_are_asked_for_one_by_one() {
        let directory = tempfile::tempdir().unwrap();
        let heard = directory.path().join("heard");
        let script = format!("echo \"$@\" >> {}", heard.display());
        let words = ["all", "--quick", "--seed", "7"];
        assert!(run(&args(&words), &shell(&script), &mut Vec::new()).is_err());
        let heard = fs::read_to_string(heard).unwrap();
        assert_eq!(heard.lines().count(), ENTRIES.len());
        for (line, entry) in heard.lines().zip(&ENTRIES) {
            assert!(line.starts_with(&format!("{} --json --quick --seed=7 ", entry.name)), "{line}");
        }
    }

    #[test]
    fn a_failed_run_among_several_is_kept() {
        let (made, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        reports(made.path(), "", "");
        // The second run of one crashes, the first of another.
        let script = format!(
            "made={made}; echo >> $made/ran-$1; runs=$(wc -l < $made/ran-$1); \
             case $1$runs in keys2|poll1) kill -SEGV $$;; esac; cat $made/$1",
            made = made.path().display()
        );
        let words = ["all", "--runs", "2", "-o", directory.path().to_str().unwrap()];
        let said = format!("{:#}", run(&args(&words), &shell(&script), &mut Vec::new()).unwrap_err());
        assert!(said.starts_with("poll: signal: 11") && said.contains("; keys: signal: 11"), "{said}");
        for name in ["keys", "poll"] {
            let lines = fs::read_to_string(directory.path().join(format!("{name}.json"))).unwrap();
            assert_eq!(lines.lines().count(), 1, "{name}");
        }
    }

    #[test]
    fn several_runs_come_in_turns() {
        let (made, directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        reports(made.path(), "", "");
        let script = format!("echo $1 >> {made}/ran; cat {made}/$1", made = made.path().display());
        let words = ["all", "--runs", "2", "-o", directory.path().to_str().unwrap()];
        run(&args(&words), &shell(&script), &mut Vec::new()).unwrap();
        let ran = fs::read_to_string(made.path().join("ran")).unwrap();
        let names: Vec<_> = ENTRIES.iter().chain(&ENTRIES).map(|entry| entry.name).collect();
        assert_eq!(ran.lines().collect::<Vec<_>>(), names);
        let keys = fs::read_to_string(directory.path().join("keys.json")).unwrap();
        assert_eq!(keys.lines().count(), 2);
    }

    #[test]
    fn a_trace_is_for_maps_and_must_exist() {
        for words in [&["keys", "--trace", "Cargo.toml"], &["maps", "--trace", "Cargo.toml"]] {
            assert!(run(&args(words), &shell("exit 3"), &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn nothing_runs_without_a_place_to_write() {
        let directory = tempfile::tempdir().unwrap();
        let ran = directory.path().join("ran");
        let script = format!("touch {}", ran.display());
        let words = ["all", "-o", "/proc/nowhere/x.json"];
        let said = format!("{:#}", run(&args(&words), &shell(&script), &mut Vec::new()).unwrap_err());
        assert!(said.contains("/proc/nowhere/x.json") && !ran.exists(), "{said}");
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
        let made = tempfile::tempdir().unwrap();
        reports(made.path(), "", "");
        let script = format!("echo . >> {made}/ran; cat {made}/$1", made = made.path().display());
        let result = run(&args(&["all", "--json"]), &shell(&script), &mut Closed);
        let closed = |error: &anyhow::Error| {
            error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
        };
        assert!(result.is_err_and(|error| closed(&error)));
        assert_eq!(fs::read_to_string(made.path().join("ran")).unwrap().lines().count(), 1);
    }
}
