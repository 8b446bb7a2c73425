//! A timeline as data.

use std::collections::{BTreeMap, HashMap};

use dormouse::record::{Field, Reader};

/// The probe of dormouse's own whose spans are the times for which a thread is in a task.
pub const POLL: &str = "dormouse.poll";
/// The one whose spans are tasks, from begin to end.
pub const TASK: &str = "dormouse.task";
/// The one whose points tell to which trace a task belongs.
pub const TRACE_CONTEXT: &str = "dormouse.trace_context";

/// No record is kept for an event: it has no values.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// The events of a process, from its first record to its last.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Timeline {
    /// The name of the process.
    pub program: String,
    /// Its number.
    pub pid: u32,
    /// The first record's moment by `CLOCK_REALTIME`, in nanoseconds since 1970. All other moments
    /// count from here.
    pub unix_ns: u64,
    /// The same by `CLOCK_MONOTONIC`.
    pub mono_ns: u64,
    /// From the first record to the last.
    pub duration_ns: u64,
    /// Names of groups, by the numbers in events.
    pub groups: BTreeMap<u32, String>,
    /// Probes, by the numbers in events.
    pub probes: BTreeMap<u32, TimelineProbe>,
    /// Threads with events, in the order of their first ones.
    pub threads: Vec<TimelineThread>,
    /// Tasks whose begin or end was recorded, in the order of their begins.
    pub tasks: Vec<TimelineTask>,
    /// Records that the service or the reader has lost.
    pub lost: u64,
    /// For tasks that are parts of another, the outermost.
    pub(crate) roots: HashMap<u64, u64>,
    /// Records with values, one behind the other.
    pub(crate) records: Vec<u8>,
}

/// A probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineProbe {
    /// Its name.
    pub name: String,
    /// Names of its fields.
    pub fields: Vec<String>,
    /// `file:line`.
    pub place: String,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineThread {
    /// Its number.
    pub tid: u32,
    /// With `tid` never reused in a process.
    pub start: u64,
    /// Its name.
    pub name: String,
    /// In the order of their begins, of equal ones the longer first.
    pub events: Vec<TimelineEvent>,
}

/// A moment or a time on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineEvent {
    /// Its begin.
    pub begin_ns: u64,
    /// Its end; that of the timeline, if no end was seen.
    pub end_ns: u64,
    /// The task, 0 outside any.
    pub task: u64,
    /// The group, 0 outside any.
    pub group: u32,
    /// The probe.
    pub probe: u32,
    /// Which of its ends were seen.
    pub edges: Edges,
    pub(crate) record: u32,
}

const _: () = assert!(size_of::<TimelineEvent>() == 40);

/// The ends of an event that were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edges {
    /// It is a moment, and has no ends.
    Point,
    /// Begin and end.
    Both,
    /// The begin alone: it goes on after the timeline, or the record of its end was lost.
    Begin,
    /// The end alone: it began before the timeline, or the record of its begin was lost.
    End,
}

impl Edges {
    /// A word about what was not seen.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Point | Self::Both => None,
            Self::Begin => Some("end not seen"),
            Self::End => Some("begin not seen"),
        }
    }
}

/// A task, from its begin to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineTask {
    /// Its number.
    pub task: u64,
    /// Its group.
    pub group: u32,
    /// The task that it began in, 0 if in none or if its begin was not seen.
    pub parent: u64,
    /// Whether it came from outside of its group. False if its begin was not seen.
    pub is_request: bool,
    /// The thread that it began on, or ended on if its begin was not seen: an index.
    pub thread: u32,
    /// Its begin; that of the timeline, if none was seen.
    pub begin_ns: u64,
    /// Its end; that of the timeline, if none was seen.
    pub end_ns: u64,
    /// Which of them were seen.
    pub edges: Edges,
    /// The id of the trace to which it belongs, if that was recorded.
    pub trace_id: Option<u128>,
}

impl TimelineTask {
    /// The 32 digits of the trace's id, as backends and logs show them.
    pub fn trace_digits(&self) -> Option<String> {
        self.trace_id.map(|id| format!("{id:032x}"))
    }
}

impl Timeline {
    /// The task that connects a request: the outermost one that the task is a part of, of those
    /// that began within the timeline. A task that nobody knows anything of is its own.
    pub fn request_of(&self, task: u64) -> u64 {
        self.roots.get(&task).copied().unwrap_or(task)
    }

    /// The name of a group.
    pub fn group(&self, group: u32) -> &str {
        match self.groups.get(&group) {
            Some(name) => name,
            None if group == 0 => "(no group)",
            None => "(group unknown)",
        }
    }

    /// The probe of an event.
    pub fn probe(&self, event: &TimelineEvent) -> Option<&TimelineProbe> {
        self.probes.get(&event.probe)
    }

    /// The values of an event, in the order of its probe's fields.
    pub fn values(&self, event: &TimelineEvent) -> Vec<Field<'_>> {
        let bytes = self.records.get(event.record as usize..).filter(|_| event.record != NO_RECORD);
        let record = bytes.and_then(|bytes| Reader::new(bytes).next());
        record.and_then(Result::ok).map(|record| record.values).unwrap_or_default()
    }

    /// How many events and tasks there are.
    pub fn events(&self) -> usize {
        self.threads.iter().map(|thread| thread.events.len()).sum::<usize>() + self.tasks.len()
    }
}
