//! The things that triggers look at together, and those that a look finds.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use dormouse_waits::{SlowRequest, TraceContext, living};

use crate::core::clock_fault::clock_fault;
use crate::core::group::Group;

/// A thing that was seen, and that a trigger waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) words: String,
    pub(crate) task: Option<u64>,
    pub(crate) group: Option<u32>,
    /// Of the task.
    pub(crate) trace: Option<TraceContext>,
    /// How many such things were seen at once; this is the worst, or the last.
    pub(crate) times: u64,
}

impl Sighting {
    /// Adds the trace of the task, if it is known.
    pub(crate) fn add_trace(&mut self) {
        let of = |task| living().find(|it| it.task == task).and_then(|it| it.trace);
        self.trace = self.trace.or_else(|| self.task.and_then(of));
        if let Some(trace) = self.trace {
            self.words = format!("{}, trace {}", self.words, trace.trace_digits());
        }
    }
}

/// The things that all triggers look at together.
#[derive(Debug, Default)]
pub(crate) struct Scene {
    /// Requests that have ended, and took long.
    pub(crate) slow: Vec<SlowRequest>,
    /// Those that go on, and have taken long by now; `None`: nobody has looked. It was before the
    /// look at those that have ended, so none is missed.
    pub(crate) living: Option<Vec<SlowRequest>>,
    /// CPU time since the look before, once a second.
    pub(crate) cpu: Option<CpuLook>,
}

/// CPU time of a while.
#[derive(Debug, Default)]
pub(crate) struct CpuLook {
    pub(crate) length: Duration,
    /// CPU time of the process before the groups were read, and afterwards.
    pub(crate) begun_ns: u64,
    pub(crate) process_ns: u64,
    /// By the number of the group.
    pub(crate) groups: HashMap<u32, u64>,
    /// Why the CPU time of groups is refused.
    pub(crate) refused: Option<&'static str>,
}

impl CpuLook {
    /// The CPU time between two looks at all of it so far.
    pub(crate) fn since(&self, before: &Self, length: Duration) -> Self {
        let of = |(group, ns): (&u32, &u64)| {
            (*group, ns.saturating_sub(before.groups.get(group).copied().unwrap_or(0)))
        };
        let groups: HashMap<u32, u64> = self.groups.iter().map(of).collect();
        let of_groups = groups.values().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
        Self {
            length,
            begun_ns: self.begun_ns,
            process_ns: self.process_ns.saturating_sub(before.process_ns),
            refused: clock_fault(of_groups, self.process_ns.saturating_sub(before.begun_ns)),
            groups,
        }
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

/// The moments at which triggers have to look by themselves.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// How often CPU time is looked at.
pub(crate) const SECOND: Duration = Duration::from_secs(1);
