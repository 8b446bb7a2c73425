//! `dormouse record --faults`: the page faults of a process, with the mappings as they change, into
//! a trace that `dormouse bench maps --trace` replays.
//!
//! The kernel records; there need be no dormouse in the process, and it is not stopped. Processes
//! that it starts from then on are recorded with it; processes that it had started before are not.
//! The file is written as the records come and gets its name at the end, whatever that is: the
//! target's, Ctrl-C, the time, a full trace.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use dormouse_sys::perf::Error;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;

use crate::child::{code_of, spawn};
use crate::duration::short;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Context, say};
use crate::signals::{Signals, wait};
use crate::target::{Finder, Proc, Target, describe};
use crate::text::{Clean, count};

use super::Args;
use super::feed::{self, Feed};
use super::file::TraceFile;
use super::story::{Counts, Story};

/// How often the buffers are read. A fault takes half a microsecond or more and 48 bytes: what
/// comes in that time fits.
const TICK: Duration = Duration::from_millis(20);

/// Why a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Ended {
    /// There is nothing left to record.
    Target,
    Signal,
    Time,
    /// As many faults as were asked for, or as a trace can hold.
    Full,
}

#[derive(Serialize)]
struct Summary<'a> {
    file: &'a str,
    pid: u32,
    #[serde(flatten)]
    recorded: &'a Recorded,
    /// The exit code of the command that was run; 128 plus the signal's number if a signal ended
    /// it.
    exit_code: Option<u8>,
}

/// The result of a recording.
#[derive(Serialize)]
struct Recorded {
    ended: Ended,
    elapsed_ns: u64,
    /// Whether faults that the kernel takes on a process's behalf are in it.
    kernel_faults: bool,
    #[serde(flatten)]
    counts: Counts,
}

/// A recording under way.
struct Recording<'a> {
    feed: Feed,
    story: Story,
    file: TraceFile,
    signals: &'a Signals,
    /// When to end.
    length: Option<Duration>,
}

pub(super) fn run(args: &Args, output: &Path, context: &mut Context) -> Outcome {
    // A file that was begun is put in its place, or removed.
    let signals = Signals::to_leave()?;
    // Before anything is recorded: where nothing can be written, nothing is run.
    let file = TraceFile::create(output)?;
    let story = Story::up_to(args.most.unwrap_or(u64::MAX));
    match (&args.target, args.command.as_slice()) {
        (Some(target), _) => {
            let (recording, pid, end) = attach(target, story, file, &signals, args.length)?;
            let recorded = recording.run(&end)?;
            tell(output, pid, &recorded, None, context)?;
            Ok(Exit::Ok)
        }
        (None, command) => {
            let feed = Feed::of_children().map_err(|error| refused(&error))?;
            let mut child = spawn(command)?;
            let pid = child.id();
            let end = pidfd(Pid::from_child(&child))?;
            let recording = Recording { feed, story, file, signals: &signals, length: args.length };
            let recorded = recording.run(&end);
            // Nobody else waits for the command, also where the trace failed.
            let asked = matches!(&recorded, Ok(Recorded { ended: Ended::Signal, .. }));
            let code = code_of(see_off(&mut child, &end, &signals, asked)?);
            tell(output, pid, &recorded?, Some(code), context)?;
            Ok(Exit::Child(code))
        }
    }
}

/// Begins to record a process that runs; also its id, and what can be read when it ends.
fn attach<'a>(
    target: &Target,
    mut story: Story,
    file: TraceFile,
    signals: &'a Signals,
    length: Option<Duration>,
) -> Outcome<(Recording<'a>, u32, OwnedFd)> {
    let proc = Proc::system();
    let process = Finder::new().process(target)?;
    let pid = process.pid;
    let gone = || Failure::new(Exit::NoTarget, format!("{} has ended", describe(&process)));
    let end = pidfd(i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?)?;
    // The descriptor is of this process, or of another one that came to have its number.
    if proc.process(pid).is_none_or(|now| now.start_ticks != process.start_ticks) {
        return Err(gone());
    }
    // Mappings are read after the events are there, so that none is missed; what is told twice
    // changes nothing.
    let (feed, tids) = Feed::of_process(pid, &proc).map_err(|error| refused(&error))?;
    let mappings = feed::mappings_of(pid, &proc).map_err(|error| {
        let message = format!("cannot read the mappings of {}: {error}", describe(&process));
        Failure::new(Exit::Denied, message).hint("be its user or root")
    })?;
    story.begin(pid, tids, &mappings);
    say(format_args!("recording the page faults of {}; Ctrl-C ends it", describe(&process)));
    Ok((Recording { feed, story, file, signals, length }, pid, end))
}

impl Recording<'_> {
    /// Records until it is to end, and puts the file into its place.
    fn run(mut self, end: &OwnedFd) -> Outcome<Recorded> {
        let start = Instant::now();
        let until = self.length.and_then(|length| start.checked_add(length));
        let mut ended = loop {
            let tick = Instant::now() + TICK;
            let next = until.map_or(tick, |until| until.min(tick));
            let [signalled, gone] = wait([self.signals.as_fd(), end.as_fd()], Some(next))?;
            self.feed.pass(|what| self.story.tell(what));
            if !self.write()? || self.story.is_full() {
                break Ended::Full;
            } else if signalled && self.signals.take() {
                break Ended::Signal;
            } else if gone {
                break Ended::Target;
            } else if until.is_some_and(|until| until <= Instant::now()) {
                break Ended::Time;
            }
        };
        let elapsed_ns = start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX);
        let kernel_faults = !self.feed.user_only;
        if ended != Ended::Full {
            self.feed.finish(|what| self.story.tell(what));
            if !self.write()? || self.story.is_full() {
                ended = Ended::Full;
            }
        }
        self.file.finish()?;
        Ok(Recorded { ended, elapsed_ns, kernel_faults, counts: self.story.counts })
    }

    /// Writes what has been told; whether there is room for more.
    fn write(&mut self) -> Outcome<bool> {
        for op in self.story.take() {
            if !self.file.put(&op)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Waits for the end of the command; asks for it where somebody has, and a second time with force.
fn see_off(child: &mut Child, end: &OwnedFd, signals: &Signals, mut asked: bool) -> Outcome<ExitStatus> {
    let mut signal = Signal::TERM;
    loop {
        if std::mem::take(&mut asked) {
            // It may have ended; it is not waited for yet, so its number is its own.
            let _ = kill_process(Pid::from_child(child), signal);
            signal = Signal::KILL;
        }
        let [signalled, gone] = wait([signals.as_fd(), end.as_fd()], None)?;
        if gone {
            return child.wait().map_err(|error| Failure::failed(format!("cannot wait: {error}")));
        }
        asked = signalled && signals.take();
    }
}

fn pidfd(pid: Pid) -> Outcome<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| {
        let exit = if errno == rustix::io::Errno::SRCH { Exit::NoTarget } else { Exit::Failed };
        Failure::new(exit, format!("cannot watch for the end of process {pid}: {errno}"))
    })
}

/// Why the kernel does not record.
fn refused(error: &Error) -> Failure {
    let exit = match error {
        Error::Denied { .. } | Error::LockedMemory { .. } => Exit::Denied,
        Error::NoSuchThread { .. } => Exit::NoTarget,
        Error::NoEvents { .. } => Exit::Unsupported,
        _ => Exit::Failed,
    };
    Failure::new(exit, format!("cannot record page faults: {error}"))
}

fn tell(
    output: &Path,
    pid: u32,
    recorded: &Recorded,
    exit_code: Option<u8>,
    context: &mut Context,
) -> Outcome<()> {
    let Recorded { elapsed_ns, counts, kernel_faults, .. } = recorded;
    let file = output.to_string_lossy();
    if counts.lost > 0 {
        say(format_args!(
            "{} lost: the buffers were full, and mappings may be missing too",
            count(counts.lost, "record")
        ));
    }
    if counts.faults_outside > 0 {
        say(format_args!("{} in no known mapping left out", count(counts.faults_outside, "fault")));
    }
    if !kernel_faults {
        say(
            "faults that the kernel takes for the process are missing: set kernel.perf_event_paranoid to 1, or grant CAP_PERFMON",
        );
    }
    if context.json {
        return context.document(&Summary { file: &file, pid, recorded, exit_code });
    }
    let text = format!(
        "{}: {} of {} and {} in {}; {}, {} grown",
        Clean(&file),
        count(counts.faults, "fault"),
        count(counts.processes.into(), "program"),
        count(counts.threads.into(), "thread"),
        short(*elapsed_ns),
        count(counts.mapped, "mapping"),
        counts.grown,
    );
    if exit_code.is_some() {
        // Standard output is the command's.
        say(text);
        return Ok(());
    }
    context.line(text)
}
