//! The readings that all conditions share, and the finding of one condition.

use std::fmt;
use std::time::Duration;

use dormouse_keys::Selector;
use dormouse_locks::LongWait;
use dormouse_protocol::Stat;
use dormouse_waits::{SlowRequest, TraceContext, living};

use crate::core::clock_fault::clock_fault;
use crate::core::group::Group;

/// An event that a trigger waits for, as its condition has found it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) words: String,
    pub(crate) task: Option<u64>,
    pub(crate) group: Option<u32>,
    /// The trace of the task.
    pub(crate) trace: Option<TraceContext>,
    /// How many such events were found at once; this is the worst, or the last.
    pub(crate) times: u64,
}

impl Finding {
    /// Adds the trace of the task, if it is known.
    pub(crate) fn add_trace(&mut self) {
        let of = |task| living().find(|it| it.task == task).and_then(|it| it.trace);
        self.trace = self.trace.or_else(|| self.task.and_then(of));
        if let Some(trace) = self.trace {
            self.words = format!("{}, trace {}", self.words, trace.trace_digits());
        }
    }
}

/// How many names of groups a sentence has.
const NAMED: usize = 5;

/// The groups that a rule watches.
#[derive(Debug)]
pub(crate) struct Groups(pub(crate) Option<Selector>);

impl Groups {
    pub(super) fn has(&self, group: u32) -> bool {
        let Some(globs) = &self.0 else { return true };
        Group::by_id(group).is_some_and(|group| globs.matches_at(group.name(), "", 0))
    }

    /// A sentence if no group matches.
    pub(crate) fn warning(&self) -> Option<String> {
        let globs = self.0.as_ref()?;
        let all = Group::all();
        if all.iter().any(|group| self.has(group.id())) {
            return None;
        }
        let names: Vec<_> = all.iter().take(NAMED).map(|group| group.name()).collect();
        let there = match all.len() {
            0 => "there is none yet".to_owned(),
            n if n > NAMED => format!("there are {} and {} more", names.join(", "), n - NAMED),
            _ => format!("there are {}", names.join(", ")),
        };
        Some(format!("no group matches `{}`: {there}", globs.as_str()))
    }
}

/// The readings of one step, which all conditions share.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    /// Requests that have ended, and took long.
    pub(crate) slow: Vec<SlowRequest>,
    /// How many more there were, of any group.
    pub(crate) missed: u64,
    /// Requests that are still running, and have taken long already; `None` if they were not
    /// scanned. This is scanned before those that have ended, so none is missed.
    pub(crate) living: Option<Vec<SlowRequest>>,
    /// Waits for locks that have taken long.
    pub(crate) lock_waits: Vec<LongWait>,
    /// CPU time since the reading before, once a second.
    pub(crate) cpu: Option<CpuReading>,
}

/// The readings that a condition needs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ReadingNeed<'a> {
    /// None: it reads for itself.
    Nothing,
    /// Requests of these groups that take longer.
    Requests { longer_than_ns: u64, groups: &'a Groups },
    /// Waits for locks that take longer.
    LockWaits { longer_than_ns: u64 },
    /// CPU time.
    Cpu,
}

impl ReadingNeed<'_> {
    /// Whether this step has them. They are not read again for a condition that passes them by.
    pub(super) fn is_in(self, readings: &Readings) -> bool {
        match self {
            Self::Nothing => false,
            Self::Requests { .. } => {
                !readings.slow.is_empty() || readings.missed > 0 || readings.living.is_some()
            }
            Self::LockWaits { .. } => !readings.lock_waits.is_empty(),
            Self::Cpu => readings.cpu.is_some(),
        }
    }
}

/// CPU time of groups and the process: so far, or of a while.
#[derive(Debug, Default)]
pub(crate) struct CpuReading {
    pub(crate) length: Duration,
    /// CPU time of the process so far, before groups were read.
    pub(crate) begun_ns: u64,
    pub(crate) used: Stat,
    /// Why the CPU time of groups is refused.
    pub(crate) refused: Option<&'static str>,
}

impl CpuReading {
    /// CPU time so far.
    pub(super) fn now() -> Self {
        let begun_ns = dormouse_clock::process_cpu_ns();
        let groups = Group::read_all(false).into_iter().map(|(row, _)| row).collect();
        let process_cpu_ns = dormouse_clock::process_cpu_ns();
        let used = Stat { process_cpu_ns, groups, ..Stat::default() };
        Self { begun_ns, used, ..Self::default() }
    }

    /// The CPU time between two readings of it so far. `None`: there was none before, or so long
    /// ago that nobody knows when in between the time was used.
    pub(crate) fn since(&self, before: &Self, length: Duration) -> Option<Self> {
        if before.used.process_cpu_ns == 0 || length > LONGEST {
            return None;
        }
        let used = self.used.since(&before.used);
        let of_process = self.used.process_cpu_ns.saturating_sub(before.begun_ns);
        let refused = clock_fault(used.groups_cpu_ns().unwrap_or(0), of_process);
        Some(Self { length, begun_ns: self.begun_ns, used, refused })
    }
}

/// The name of a group, for a sentence.
pub(super) fn of(group: u32) -> String {
    Group::by_id(group).map_or(String::new(), |group| format!(" of {}", group.name()))
}

/// A length of time, for people.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(length) = self;
        match length.as_secs() {
            0 if length.as_millis() < 10 => write!(f, "{:.1} ms", length.as_secs_f64() * 1e3),
            0..10 => write!(f, "{} ms", length.as_millis()),
            s @ 10..600 => write!(f, "{s} s"),
            s => write!(f, "{} min", s / 60),
        }
    }
}

/// How often conditions that read for themselves are evaluated.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// How often CPU time is read.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The longest time between two readings that give an average. A reading that is five
/// seconds late begins anew.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_reading_gives_no_average() {
        let of = |process_cpu_ns| CpuReading {
            used: Stat { process_cpu_ns, ..Stat::default() },
            ..CpuReading::default()
        };
        let lengths = |before: u64| {
            [1, 5, 60]
                .map(|s| of(900).since(&of(before), Duration::from_secs(s)).map(|it| it.used.process_cpu_ns))
        };
        assert_eq!(lengths(100), [Some(800), Some(800), None]);
        assert_eq!(lengths(0), [None; 3], "there was none");
    }
}
