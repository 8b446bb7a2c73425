//! One process that is sampled repeatedly, for `stat` and `top`.
//!
//! As long as a [`Source`] with an agent exists, the groups of the service count the requested
//! events.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dormouse_protocol::{Clock, CountAnswer, Hello, Stat, StatPart, StatRequest, WaitsRequest};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::events::{EventRequest, TASK_CLOCK, warn};
use super::objectives::ObjectiveList;
use super::tasks::Tasks;
use super::totals::Sample;
use crate::client::{Client, waits};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::Context;
use crate::signals::wait;
use crate::target::{Finder, Found, Target, describe};

/// How long a process whose agent has hung up may take to be gone.
const ENDING: Duration = Duration::from_millis(500);

/// A process to take samples of.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) pid: u32,
    pub(crate) name: String,
    /// `teaparty (process 12)`, for messages.
    pub(crate) who: String,
    tasks: Tasks,
    /// Readable when the process has ended; absent where the kernel has none to give.
    end: Option<OwnedFd>,
    agent: Option<(Client, Hello)>,
    /// The events that are counted, and those that are not, with their reasons.
    pub(crate) counted: CountAnswer,
    /// The clock that groups are charged by, as the last sample has it.
    pub(crate) clock: Option<Clock>,
    /// Whether samples have outgoing calls, and times of tasks.
    pub(crate) has_calls: bool,
    has_waits: bool,
    /// Whether the kernel has shown the process.
    is_shown: bool,
}

impl Source {
    /// The process that `target` means, through its agent if it has one. Groups count the events of
    /// `request` from now on.
    pub(crate) fn open(target: &Target, request: &EventRequest, patience: Duration) -> Outcome<Source> {
        let finder = Finder::new();
        let found = finder.look(target)?;
        Source::reach(&finder, &found, request, patience)
    }

    /// Opens the source of a process that was found already; see [`Source::open`].
    pub(crate) fn reach(
        finder: &Finder,
        found: &Found,
        request: &EventRequest,
        patience: Duration,
    ) -> Outcome<Source> {
        let process = &found.process;
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let mut source = Source {
            pid: process.pid,
            name: process.name().to_owned(),
            who: describe(process),
            tasks: Tasks::of(process),
            end: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            agent: None,
            counted: CountAnswer { counted: Vec::new(), refused: Vec::new() },
            clock: None,
            has_calls: false,
            has_waits: false,
            is_shown: false,
        };
        if found.has_agent() {
            let (mut client, hello) = Client::reach(finder, found, patience)?;
            source.counted = request.ask(&mut client)?;
            source.name.clone_from(&hello.name);
            source.agent = Some((client, hello));
        } else {
            source.counted = request.of_any_process()?;
        }
        Ok(source)
    }

    /// Whether the process has dormouse in it.
    pub(crate) fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// Has the times of tasks taken from now on.
    pub(crate) fn begin_waits(&mut self) -> Outcome<()> {
        self.begin_times(true, false)
    }

    /// Has the times of tasks, or of outgoing calls, or both taken from now on.
    pub(crate) fn begin_times(&mut self, waits: bool, calls: bool) -> Outcome<()> {
        if !waits && !calls {
            return Ok(());
        }
        let client = self.client("take times of tasks")?;
        let request = WaitsRequest { exemplars: true, calls, stalls: waits, ..WaitsRequest::default() };
        waits::begin(client, request)?;
        (self.has_waits, self.has_calls) = (waits, calls);
        Ok(())
    }

    /// Has requests counted by these objectives from now on.
    pub(crate) fn begin_objectives(&mut self, objectives: &ObjectiveList) -> Outcome<()> {
        if objectives.is_empty() {
            return Ok(());
        }
        objectives.ask(self.client("count requests by objectives")?)
    }

    fn client(&mut self, does: &str) -> Outcome<&mut Client> {
        let who = &self.who;
        let (client, _) = self.agent.as_mut().ok_or_else(|| {
            let message = format!("{who} has no dormouse in it, which could {does}");
            Failure::new(Exit::NoTarget, message)
                .hint("call dormouse::init(), in C dormouse_init(), at its start")
        })?;
        Ok(client)
    }

    /// The events that have a column of their own: the CPU time has one anyway.
    pub(crate) fn columns(&self) -> Vec<String> {
        let all = self.counted.counted.iter().chain(&self.counted.refused);
        all.filter(|event| event.name != TASK_CLOCK).map(|event| event.name.clone()).collect()
    }

    /// Notes what is not counted, and why.
    pub(crate) fn warn(&self, context: &Context) {
        warn(&self.counted, context);
    }

    /// To wait for the end of the process.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|fd| fd.as_fd())
    }

    /// How it stands now; `None` when it has ended.
    pub(crate) fn sample(&mut self) -> Outcome<Option<Sample>> {
        let request = StatRequest { part: Some(StatPart::Whole), ..StatRequest::default() };
        let told: Option<Outcome<Stat>> = self.agent.as_mut().map(|(client, _)| client.call(request));
        let seen = self.tasks.look();
        match (told, seen) {
            (Some(Ok(mut stat)), seen) => {
                // An agent may say anything; ours has no more.
                stat.expand(dormouse::MAX_GROUPS);
                if !self.has_waits {
                    stat.groups.iter_mut().for_each(|group| group.waits = None);
                }
                self.clock.clone_from(&stat.clock);
                Ok(self.joined(stat, seen))
            }
            (Some(Err(failure)), _) => {
                if self.has_ended() {
                    Ok(None)
                } else {
                    Err(failure)
                }
            }
            (None, Ok(seen)) => Ok(seen),
            (None, Err(error)) => Err(self.hidden(&error)),
        }
    }

    /// An agent's answer, with the kernel's part. `None` when the process has ended since: without
    /// that part its threads would look like new ones.
    fn joined(&mut self, stat: Stat, seen: io::Result<Option<Sample>>) -> Option<Sample> {
        let mut sample = Sample::of_agent(stat);
        match seen {
            Ok(Some(seen)) => {
                self.is_shown = true;
                sample.join(seen);
            }
            Ok(None) if self.is_shown => return None,
            // Where the kernel shows it to nobody else, the agent's word is enough.
            _ => {}
        }
        Some(sample)
    }

    /// Whether the process is gone, or about to be: its agent hangs up a moment before.
    fn has_ended(&self) -> bool {
        if let Some(end) = self.end() {
            let _ = wait([end], Some(Instant::now() + ENDING));
        }
        matches!(self.tasks.look(), Ok(None))
    }

    fn hidden(&self, error: &io::Error) -> Failure {
        let exit = match error.kind() {
            io::ErrorKind::PermissionDenied => Exit::Denied,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("cannot look at the threads of {} in /proc: {error}", self.who))
            .hint("run this as that user or as root")
    }
}

#[cfg(test)]
impl Source {
    /// A source without a process that counts these events.
    pub(crate) fn fake(events: &[&str], clock: Option<Clock>) -> Source {
        let me = crate::target::Proc::system().process(std::process::id()).unwrap();
        let event = |name: &&str| dormouse_protocol::EventInfo {
            name: (*name).into(),
            unit: if name.starts_with("task") { "ns" } else { "1" }.into(),
            pmu: "software".into(),
            note: String::new(),
            unavailable: None,
        };
        Source {
            pid: 7,
            name: "tea".into(),
            who: "tea (process 7)".into(),
            tasks: Tasks::of(&me),
            end: None,
            agent: None,
            counted: CountAnswer { counted: events.iter().map(event).collect(), refused: Vec::new() },
            clock,
            has_calls: false,
            has_waits: true,
            is_shown: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_after_answering_has_ended() {
        let mut source = Source::fake(&[], None);
        let hidden = || Err(io::ErrorKind::PermissionDenied.into());
        let answer = Stat::default;
        assert!(source.joined(answer(), Ok(None)).is_some(), "`/proc` may hide it");
        assert!(source.joined(answer(), Ok(Some(Sample::default()))).is_some());
        assert!(source.joined(answer(), hidden()).is_some());
        assert_eq!(source.joined(answer(), Ok(None)), None);
    }
}
