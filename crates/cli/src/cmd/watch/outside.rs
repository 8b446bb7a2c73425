//! A watch of a process that has no dormouse in it, or cannot watch itself.
//!
//! The kernel records hits into memory of this command, which has room for some thousand. So a
//! thread drains them all the time, whatever else this command does: reading the symbols of a large
//! program takes seconds.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use dormouse_breakpoints::{Error, Outside, OutsideBudget, OutsideReport, TargetEnd, UserStack, WatchHit};
use dormouse_protocol::WatchRequest;
use dormouse_sys::perf;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::snapshot::{End, WatchSnapshot};
use crate::exit::{Exit, Failure, Outcome};

/// Bytes of a stack that the kernel copies at each hit: enough for most, and as far as it is known
/// for a frame or two of the rest.
const STACK: u16 = 8192;

/// How often records are taken out.
const PASS: Duration = Duration::from_millis(20);

/// A thread that watches. It ends, and with it the watch, when this is dropped.
#[derive(Debug)]
pub(super) struct Watchman {
    ask: Sender<()>,
    snapshots: Receiver<WatchSnapshot>,
}

impl Watchman {
    /// Arms the watch of `request` on all threads of a process. With `stacks` the kernel copies
    /// them, for programs that keep no frame pointers.
    pub(super) fn start(pid: u32, request: WatchRequest, stacks: bool) -> Outcome<Watchman> {
        allow_descriptors();
        let (ask, asked) = channel();
        let (answer, snapshots) = channel();
        let (opened, outcome) = channel();
        let run = move || {
            let stack_bytes = if stacks { STACK } else { 0 };
            let budget = OutsideBudget { stack_bytes, ..OutsideBudget::default() };
            // Its number does not matter: a filter by group is refused, not left out.
            let group = request.group.as_ref().map(|_| u32::MAX);
            let outside = Outside::open(pid, &[dormouse::answers::watch_spec(&request, group)], budget);
            let (told, outside) = match outside {
                Ok(outside) => (Ok(()), Some(outside)),
                Err(error) => (Err(error), None),
            };
            if opened.send(told).is_ok()
                && let Some(outside) = outside
            {
                watch(outside, request.stream, &asked, &answer);
            }
        };
        let spawned = thread::Builder::new().name("watchman".into()).spawn(run);
        spawned.map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        let outcome = outcome.recv().map_err(|_| Failure::failed("the thread that watches has ended"))?;
        outcome.map_err(|error| failure(&error))?;
        Ok(Watchman { ask, snapshots })
    }

    /// The result so far; `None` when the thread is gone.
    pub(super) fn snapshot(&self) -> Option<WatchSnapshot> {
        self.ask.send(()).ok()?;
        self.snapshots.recv().ok()
    }
}

fn watch(mut outside: Outside, stream: bool, asked: &Receiver<()>, answer: &Sender<WatchSnapshot>) {
    if stream {
        // The first call has hits kept one by one.
        let _ = outside.take_hits(0);
    }
    loop {
        match asked.recv_timeout(PASS) {
            Ok(()) => {
                let report = outside.reports().into_iter().next();
                let hits = if stream { outside.take_hits(0) } else { Vec::new() };
                let Some(report) = report else { return };
                let copied = outside.take_stacks(0);
                if answer.send(snapshot(report, hits, copied)).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => outside.pass(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Raises the limit of descriptors to the maximum: each watched thread takes some.
fn allow_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // The watch reports it if there are too few.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn snapshot(report: OutsideReport, hits: Vec<WatchHit>, copied: Vec<(usize, UserStack)>) -> WatchSnapshot {
    let row = dormouse::answers::watch_row(report.watch, hits, |_| None);
    WatchSnapshot {
        row,
        counts_only: report.counts_only,
        unprinted: 0,
        copied: copied.into_iter().map(|(ip, stack)| (ip as u64, stack)).collect(),
        end: report.end.map(|end| match end {
            TargetEnd::Exit => End::Exit,
            TargetEnd::Exec => End::Exec,
        }),
        // Each filter is refused.
        is_filtered: false,
        is_outside: true,
        is_at_max: false,
    }
}

fn failure(error: &Error) -> Failure {
    let exit = match error {
        Error::NoProcess { .. } => Exit::NoTarget,
        Error::OnlyInside { .. } => Exit::Unsupported,
        Error::Unwatchable { .. } => Exit::Usage,
        Error::Thread { source: perf::Error::Denied { .. }, .. } => Exit::Denied,
        _ => Exit::Failed,
    };
    let failure = Failure::new(exit, error.to_string());
    match exit {
        Exit::Denied => failure.hint("watch it as root, or with CAP_PERFMON and CAP_SYS_PTRACE"),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_by_group_is_refused() {
        let variable = 0_u64;
        let addr = (&raw const variable).addr() as u64;
        let request =
            WatchRequest { addr, len: 8, group: Some("GET /menu".into()), ..WatchRequest::default() };
        let Err(refusal) = Watchman::start(std::process::id(), request, false) else {
            panic!("it was left out")
        };
        assert!(format!("{refusal:?}").contains("a filter by group"), "{refusal:?}");
    }
}
