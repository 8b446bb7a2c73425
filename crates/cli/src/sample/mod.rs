//! One process, looked at again and again: what `stat` and `top` show.
//!
//! A service with an agent tells of its groups, and of its threads to the nanosecond; what the kernel tells of any
//! process ([`tasks`]) stands beside it, and alone where there is no agent. As long as a [`Source`] with an agent lives,
//! the service's groups count the events that were asked for.

pub(crate) mod events;
pub(crate) mod spent;
pub(crate) mod tasks;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use dormouse::wire::{Clock, Counted, EventInfo, GroupStat, Op, Stat};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::client::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::signals::wait;
use crate::target::{Finder, Found, Target, describe};
use events::{TASK_CLOCK, Wish};
use tasks::{Tasks, Thread, Usage};

/// How long a process whose agent has hung up may take to be gone.
const ENDING: Duration = Duration::from_millis(500);

/// A process at one moment; totals since its start, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample {
    /// `CLOCK_MONOTONIC`.
    pub(crate) mono_ns: u64,
    pub(crate) cpu_ns: u64,
    /// Absent where `/proc` does not show it; its switches are those of `threads`.
    pub(crate) usage: Option<Usage>,
    pub(crate) max_rss_bytes: Option<u64>,
    pub(crate) threads: Vec<Thread>,
    /// What only an agent knows.
    pub(crate) inside: Option<Inside>,
}

/// What an agent tells of its process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Inside {
    /// How much older groups may be than threads and the process.
    pub(crate) took_ns: u64,
    /// CPU time that is charged to no group.
    pub(crate) unattributed_ns: u64,
    pub(crate) groups: Vec<GroupStat>,
    pub(crate) keys_on: usize,
    pub(crate) dropped: u64,
}

impl Sample {
    /// What an agent told, as far as it goes.
    pub(crate) fn of_agent(stat: Stat) -> Sample {
        let thread = |t: dormouse::wire::ThreadStat| Thread {
            tid: t.tid,
            start_ticks: 0,
            name: t.name,
            cpu_ns: t.cpu_ns,
            usage: None,
        };
        Sample {
            mono_ns: stat.mono_ns,
            cpu_ns: stat.process_cpu_ns,
            usage: None,
            max_rss_bytes: None,
            threads: stat.threads.into_iter().map(thread).collect(),
            inside: Some(Inside {
                took_ns: stat.took_ns,
                unattributed_ns: stat.unattributed_cpu_ns,
                groups: stat.groups,
                keys_on: stat.keys_on,
                dropped: stat.dropped,
            }),
        }
    }

    /// A process that has just started.
    fn nothing(mono_ns: u64) -> Sample {
        Sample { mono_ns, cpu_ns: 0, usage: None, max_rss_bytes: None, threads: Vec::new(), inside: None }
    }

    /// What everybody can see, now.
    fn of_kernel(seen: tasks::Seen) -> Sample {
        Sample {
            mono_ns: mono_ns(),
            cpu_ns: seen.cpu_ns,
            usage: Some(seen.usage),
            max_rss_bytes: seen.max_rss_bytes,
            threads: seen.threads,
            inside: None,
        }
    }

    /// Adds what the kernel tells of the same threads. The agent's CPU times are the better ones; a thread that it saw
    /// and the kernel does not has ended in between.
    fn join(&mut self, seen: tasks::Seen) {
        self.usage = Some(seen.usage);
        self.max_rss_bytes = seen.max_rss_bytes;
        let told: HashMap<u32, u64> = self.threads.iter().map(|thread| (thread.tid, thread.cpu_ns)).collect();
        let best = |thread: Thread| Thread {
            cpu_ns: told.get(&thread.tid).copied().unwrap_or(thread.cpu_ns),
            ..thread
        };
        self.threads = seen.threads.into_iter().map(best).collect();
    }
}

/// A process to take samples of.
#[derive(Debug)]
pub(crate) struct Source {
    pid: u32,
    name: String,
    who: String,
    tasks: Tasks,
    /// Readable when the process has ended; absent where the kernel has none to give.
    end: Option<OwnedFd>,
    agent: Option<Client>,
    counted: Counted,
    clock: Option<Clock>,
}

impl Source {
    /// The process that `target` means, through its agent if it has one. Groups count what `wish` says from now on.
    pub(crate) fn open(target: &Target, wish: &Wish, patience: Duration) -> Outcome<Source> {
        let finder = Finder::new();
        let found = finder.look(target)?;
        Source::reach(&finder, &found, wish, patience)
    }

    /// As [`Source::open`], of a process that was found.
    pub(crate) fn reach(finder: &Finder, found: &Found, wish: &Wish, patience: Duration) -> Outcome<Source> {
        let process = &found.process;
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let mut source = Source {
            pid: process.pid,
            name: process.name().to_owned(),
            who: describe(process),
            tasks: Tasks::of(process),
            end: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            agent: None,
            counted: Counted { counted: Vec::new(), refused: Vec::new() },
            clock: None,
        };
        if found.has_agent() {
            let (mut client, hello) = Client::reach(finder, found, patience)?;
            source.counted = wish.ask(&mut client, &hello)?;
            source.name = hello.name;
            source.agent = Some(client);
        } else {
            source.counted = wish.of_any_process()?;
        }
        Ok(source)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// `teaparty (process 12)`, for messages.
    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// Whether the process has dormouse in it.
    pub(crate) fn has_agent(&self) -> bool {
        self.agent.is_some()
    }

    /// What its groups are charged by, as its last sample has it.
    pub(crate) fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// The events that are counted, and those that are not, with their reasons.
    pub(crate) fn counted(&self) -> &Counted {
        &self.counted
    }

    /// The events that have a column of their own: the CPU time has one anyway.
    pub(crate) fn columns(&self) -> Vec<String> {
        let all = self.counted.counted.iter().chain(&self.counted.refused);
        all.filter(|event| event.name != TASK_CLOCK).map(|event| event.name.clone()).collect()
    }

    /// Tells the person what is not counted, and why.
    pub(crate) fn warn(&self) {
        events::warn(&self.counted);
    }

    /// To wait for the end of the process.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|fd| fd.as_fd())
    }

    /// How it stands now; `None` when it has ended.
    pub(crate) fn sample(&mut self) -> Outcome<Option<Sample>> {
        let told: Option<Outcome<Stat>> = self.agent.as_mut().map(|client| client.call(Op::Stat));
        let seen = self.tasks.look();
        match (told, seen) {
            (Some(Ok(stat)), seen) => {
                self.clock.clone_from(&stat.clock);
                let mut sample = Sample::of_agent(stat);
                // Where the kernel shows it to nobody else, the agent's word is enough.
                if let Ok(Some(seen)) = seen {
                    sample.join(seen);
                }
                Ok(Some(sample))
            }
            (Some(Err(failure)), _) => {
                if self.has_ended() {
                    Ok(None)
                } else {
                    Err(failure)
                }
            }
            (None, Ok(seen)) => Ok(seen.map(Sample::of_kernel)),
            (None, Err(error)) => Err(self.hidden(&error)),
        }
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

/// `CLOCK_MONOTONIC`, now.
pub(crate) fn mono_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// What nobody counts, and why.
pub(crate) fn refused(event: &EventInfo) -> &str {
    event.unavailable.as_deref().unwrap_or("the service does not say why")
}
