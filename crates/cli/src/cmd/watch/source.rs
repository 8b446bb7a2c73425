//! A variable that is watched: by the agent of its service, or from outside by the kernel.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use dormouse_protocol::{WatchReportRequest, WatchRequest, WatchRow, Watching, WireAccess};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::outside::Watchman;
use super::snapshot::{End, WatchSnapshot};
use super::wanted::{Variable, Wanted};
use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::signals::wait;
use crate::target::{Finder, Found, Process, Target, describe, near};

/// How long a process whose agent has hung up may take to be gone.
const ENDING: Duration = Duration::from_millis(500);

/// A variable that is watched, as long as this lives.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) process: Process,
    /// `teaparty (process 12)`, for messages.
    pub(crate) who: String,
    pub(crate) variable: Variable,
    pub(crate) access: WireAccess,
    /// The reason why the agent does not watch, if it does not.
    pub(crate) outside: Option<String>,
    by: By,
    is_filtered: bool,
    max_hits: Option<u64>,
    /// Readable when the process has ended; absent where the kernel has none to give.
    end: Option<OwnedFd>,
}

#[derive(Debug)]
enum By {
    Agent { client: Client, number: u32 },
    Kernel(Watchman),
}

impl Watched {
    /// Watches `wanted` of the process that `target` means, with the options of `request` except
    /// for the place; from outside with copied stacks if `stacks` says so.
    pub(crate) fn open(
        target: &Target,
        wanted: &Wanted,
        request: WatchRequest,
        stacks: bool,
        patience: Duration,
    ) -> Outcome<Watched> {
        let finder = Finder::new();
        let found = finder.look(target)?;
        let variable = wanted.find(&found.process, request.access)?;
        let Variable { name, addr, len } = variable.clone();
        let request = WatchRequest { addr, len, name, ..request };
        let inside = if found.has_agent() {
            inside(&finder, &found, &request, patience)
        } else {
            Err(Failure::new(Exit::Unsupported, "it has no dormouse in it"))
        };
        let process = found.process;
        let (by, outside) = match inside {
            Err(Failure::Said(report)) if report.exit == Exit::Unsupported => {
                let watchman = Watchman::start(process.pid, request.clone(), stacks);
                let watchman = watchman.map_err(|failure| failure.after(&report.message))?;
                (By::Kernel(watchman), Some(report.message))
            }
            by => (by?, None),
        };
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let end = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let is_exact = len.is_power_of_two() && len <= 8 && addr.is_multiple_of(len);
        let is_filtered = !is_exact
            || request.changed
            || request.equals.is_some()
            || request.mask.is_some()
            || request.group.is_some();
        let (who, access, max_hits) = (describe(&process), request.access, request.max_hits);
        Ok(Watched { process, who, variable, access, outside, by, is_filtered, max_hits, end })
    }

    /// The result so far; `None` if the watch has ended, and the last result was the final one.
    pub(crate) fn snapshot(&mut self) -> Outcome<Option<WatchSnapshot>> {
        let mut snapshot = self.next()?;
        if let (Some(snapshot), Some(most)) = (&mut snapshot, self.max_hits) {
            snapshot.is_at_max = snapshot.row.passed >= most;
        }
        Ok(snapshot)
    }

    fn next(&mut self) -> Outcome<Option<WatchSnapshot>> {
        let row: Outcome<WatchRow> = match &mut self.by {
            By::Agent { client, number } => client.call(WatchReportRequest { number: *number }),
            By::Kernel(watchman) => {
                let gone = || Failure::failed("the thread that watches has ended");
                return watchman.snapshot().map(Some).ok_or_else(gone);
            }
        };
        match row {
            Ok(row) => {
                let is_filtered = self.is_filtered;
                Ok(Some(WatchSnapshot {
                    row,
                    counts_only: None,
                    unprinted: 0,
                    copied: Vec::new(),
                    end: None,
                    is_filtered,
                    is_outside: false,
                    is_at_max: false,
                }))
            }
            Err(Failure::Said(report)) if !report.has_hung_up && self.end() != End::Exit => {
                Err(Failure::Said(report))
            }
            Err(Failure::Said(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Why an agent answers no more: the process is gone, or about to be, for its agent hangs up a
    /// moment before.
    pub(crate) fn end(&self) -> End {
        let is_over =
            |end: &OwnedFd| matches!(wait([end.as_fd()], Some(Instant::now() + ENDING)), Ok([true]));
        if self.end.as_ref().is_some_and(is_over) { End::Exit } else { End::HungUp }
    }
}

fn inside(finder: &Finder, found: &Found, request: &WatchRequest, patience: Duration) -> Outcome<By> {
    let (mut client, _) = Client::reach(finder, found, patience)?;
    let answer: Outcome<Watching> = client.call(request.clone());
    let number = answer.map_err(|failure| ranked(failure, request))?.number;
    Ok(By::Agent { client, number })
}

/// Keeps those groups in a refusal that are similar to the requested one, if any are.
fn ranked(mut failure: Failure, request: &WatchRequest) -> Failure {
    if let (Failure::Said(report), Some(group)) = (&mut failure, &request.group) {
        let ranked = near(group, report.near.iter().map(String::as_str));
        if !ranked.is_empty() {
            report.near = ranked;
        }
    }
    failure
}
