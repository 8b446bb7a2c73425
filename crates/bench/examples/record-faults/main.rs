//! Records a trace of page faults: `record-faults -o FILE [--most N] -- COMMAND…`.
//!
//! Runs the command, takes every page fault and every new mapping of it and of all that it starts, and
//! writes them as `dormouse_bench::trace` describes. Needs the right to use `perf_event_open` with a buffer
//! (root, or `perf_event_paranoid` low enough and enough locked memory). What comes out for the
//! traces of the benchmark stands in `traces/README.md`.

mod replay;

use std::fs::File;
use std::io::BufWriter;
use std::num::NonZero;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use dormouse_bench::trace::{self, Op};
use dormouse_sys::perf::{Attr, Buffer, Counted, Record, Sampling, Subject, What};
use rustix::thread::gettid;

/// Bytes of a processor's buffer.
const BUFFER: usize = 64 << 20;

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("record-faults: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: Vec<String>) -> anyhow::Result<()> {
    let (mut output, mut most, mut command) = (None, usize::MAX, Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-o" => output = words.next(),
            "--most" => most = words.next().context("--most needs a number")?.parse()?,
            "--" => command = words.by_ref().collect(),
            _ => bail!("usage: record-faults -o FILE [--most FAULTS] -- COMMAND…"),
        }
    }
    let output = output.context("say with -o where to write")?;
    let [program, arguments @ ..] = command.as_slice() else { bail!("say after -- what to run") };

    let records = record(program, arguments)?;
    let lost: u64 = records.iter().map(|r| if let What::Lost(n) = r.what { n } else { 0 }).sum();
    if lost > 0 {
        bail!("{lost} records were lost: the buffers are too small for this program");
    }
    let replayed = replay::ops(&records, most);
    let out = File::create(&output).with_context(|| format!("cannot create {output}"))?;
    trace::write(&replayed.ops, BufWriter::new(out)).with_context(|| format!("cannot write {output}"))?;
    let count = |what: fn(&Op) -> bool| replayed.ops.iter().filter(|op| what(op)).count();
    println!(
        "{output}: {} faults, {} outside of known mappings left out; {} processes, {} threads, {} mappings, {} grown",
        count(|op| matches!(op, Op::Fault { .. })),
        replayed.unknown,
        count(|op| matches!(op, Op::Process { .. })),
        count(|op| matches!(op, Op::Thread { .. })),
        count(|op| matches!(op, Op::Map { .. })),
        count(|op| matches!(op, Op::Grow { .. })),
    );
    Ok(())
}

/// Runs the command to its end; what it did, in the order of time.
fn record(program: &str, arguments: &[String]) -> anyhow::Result<Vec<Record>> {
    let tid = gettid().as_raw_pid().cast_unsigned();
    let cpus = thread::available_parallelism()?.get() as u32;
    // Opened on this process and enabled at exec: the child inherits the events and executes, this process
    // does not. One for each processor, because an inherited event has a buffer only there.
    let attr = Attr::count(Counted::PageFaults).inherited().from_exec();
    let sampling = Sampling { every: NonZero::<u64>::MIN, life: true };
    let mut buffers = (0..cpus)
        .map(|cpu| Buffer::open(&attr, sampling, Subject::ThreadOnCpu { tid, cpu }, BUFFER))
        .collect::<Result<Vec<_>, _>>()?;
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: does nothing. It is there because the standard library then forks and does not use vfork,
    // whose child would be one with the parent until it executes.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| Ok(()))
    };
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let mut records = Vec::new();
    loop {
        let ended = child.try_wait()?;
        for buffer in &mut buffers {
            buffer.drain(|record| records.push(record));
        }
        if let Some(status) = ended {
            if !status.success() {
                eprintln!("record-faults: {program} ended with {status}");
            }
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
    // Stable: records of one moment and one processor stay in order.
    records.sort_by_key(|record| record.time);
    Ok(records)
}
