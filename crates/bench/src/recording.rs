//! `dormouse-bench record-faults`: a trace of page faults for `maps --trace`.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use dormouse_lab::faults::record;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Run a command, and record its page faults into a file that `maps --trace` replays
#[derive(Debug, clap::Args)]
pub(crate) struct RecordFaultsArgs {
    /// Where to write the trace; an older trace there is replaced, nothing else is
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The most faults that are recorded
    #[arg(long, value_name = "FAULTS", value_parser = clap::value_parser!(u64).range(1..))]
    most: Option<u64>,
    /// The command, with which this one ends
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Records, tells of it on standard error, and gives the exit code of the command.
pub(crate) fn record_faults(args: &RecordFaultsArgs) -> anyhow::Result<u8> {
    let stop = Arc::new(AtomicBool::new(false));
    // The terminal sends Ctrl-C to the command as well; the trace is written when it has ended.
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let [program, words @ ..] = args.command.as_slice() else { anyhow::bail!("there is no command") };
    let recorded =
        record(Command::new(program).args(words), &args.output, args.most.unwrap_or(u64::MAX), &stop)?;
    let counts = recorded.counts;
    eprintln!(
        "{}: {} faults of {} programs and {} threads; {} mappings, {} grown",
        args.output.display(),
        counts.faults,
        counts.processes,
        counts.threads,
        counts.mapped,
        counts.grown
    );
    if counts.lost + counts.faults_outside > 0 {
        let (lost, outside) = (counts.lost, counts.faults_outside);
        eprintln!("{lost} records lost, because the buffers were full; {outside} faults in no known mapping");
    }
    if !recorded.kernel_faults {
        eprintln!(
            "faults that the kernel takes for the command are missing: set kernel.perf_event_paranoid to 1, or grant CAP_PERFMON"
        );
    }
    let status = recorded.status;
    Ok(status
        .code()
        .or_else(|| Some(128 + status.signal()?))
        .and_then(|code| code.try_into().ok())
        .unwrap_or(1))
}
