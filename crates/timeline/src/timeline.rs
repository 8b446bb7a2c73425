//! A timeline as data.

use std::collections::{BTreeMap, HashMap};

use dormouse::record::{Field, Reader};
use dormouse_protocol::WireWaited;

/// The probe of dormouse whose spans are the intervals for which a thread is in a task.
pub const POLL: &str = "dormouse.poll";
/// The probe of dormouse whose spans are tasks, from begin to end.
pub const TASK: &str = "dormouse.task";
/// The probe of dormouse whose points contain the trace to which a task belongs.
pub const TRACE_CONTEXT: &str = "dormouse.trace_context";

/// No record is kept for an event: it has no values.
pub(crate) const NO_RECORD: u32 = u32::MAX;

/// The events of a process, from the first record to the last.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Timeline {
    /// The name of the process.
    pub program: String,
    /// The process id.
    pub pid: u32,
    /// The time of the first record by `CLOCK_REALTIME`, in nanoseconds since 1970. All other times
    /// count from here.
    pub unix_ns: u64,
    /// The same time by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// The time from the first record to the last, in nanoseconds.
    pub duration_ns: u64,
    /// Names of groups, by the numbers in events.
    pub groups: BTreeMap<u32, String>,
    /// Probes, by the numbers in events.
    pub probes: BTreeMap<u32, TimelineProbe>,
    /// Threads with events, in the order of their first ones.
    pub threads: Vec<TimelineThread>,
    /// Tasks whose begin or end was recorded, in the order of their begins.
    pub tasks: Vec<TimelineTask>,
    /// The words for how requests ended.
    pub outcomes: Vec<String>,
    /// How cancelled requests were dropped, as far as that was recorded.
    pub drops: Vec<TaskDrop>,
    /// The number of records that the service or the reader has lost.
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
    /// The probe's name.
    pub name: String,
    /// Names of the probe's fields.
    pub fields: Vec<String>,
    /// Where the probe is in the source, as `file:line`.
    pub place: String,
}

/// A thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineThread {
    /// The thread id.
    pub tid: u32,
    /// The thread's start number; with `tid` never reused in a process.
    pub start: u64,
    /// The thread's name.
    pub name: String,
    /// The thread's events in order of their begins; of two that begin at once the longer comes
    /// first.
    pub events: Vec<TimelineEvent>,
}

/// A point in time or an interval on a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineEvent {
    /// The event's begin, in nanoseconds.
    pub begin_ns: u64,
    /// The event's end, in nanoseconds; the timeline's end if none was recorded.
    pub end_ns: u64,
    /// The number of the task; 0 outside of tasks.
    pub task: u64,
    /// The number of the group; 0 outside of groups.
    pub group: u32,
    /// The number of the probe.
    pub probe: u32,
    /// Which of the event's begin and end were recorded.
    pub edges: Edges,
    pub(crate) record: u32,
}

const _: () = assert!(size_of::<TimelineEvent>() == 40);

/// Which ends of an event were recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edges {
    /// It is a point in time, and has no ends.
    Point,
    /// Both begin and end.
    Both,
    /// Only the begin: it goes on after the timeline, or the record of its end was lost.
    Begin,
    /// Only the end: it began before the timeline, or the record of its begin was lost.
    End,
}

impl Edges {
    /// A remark on the end that was not recorded.
    pub fn note(self) -> Option<&'static str> {
        match self {
            Self::Point | Self::Both => None,
            Self::Begin => Some("end not seen"),
            Self::End => Some("begin not seen"),
        }
    }
}

/// A task, from begin to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimelineTask {
    /// The task's number.
    pub task: u64,
    /// The number of the task's group.
    pub group: u32,
    /// The number of the task in which it began; 0 if there was none or its begin was not recorded.
    pub parent: u64,
    /// Whether the task is a request: it began outside of its group. False if its begin was not
    /// recorded.
    pub is_request: bool,
    /// The index of the thread on which it began, or, if its begin was not recorded, on which it
    /// ended.
    pub thread: u32,
    /// The task's begin, in nanoseconds; the timeline's begin if none was recorded.
    pub begin_ns: u64,
    /// The task's end, in nanoseconds; the timeline's end if none was recorded.
    pub end_ns: u64,
    /// Which of the task's begin and end were recorded.
    pub edges: Edges,
    /// The id of the trace to which it belongs, if that was recorded.
    pub trace_id: Option<u128>,
    /// How a request ended, if that was recorded: the place of the word in [`Timeline::outcomes`].
    pub outcome: Option<u8>,
    /// How it was dropped, if that was recorded: the place in [`Timeline::drops`].
    pub dropped: Option<u16>,
}

/// How cancelled requests were dropped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskDrop {
    /// The number of the place where they waited; 0 if it is not known.
    pub place: u32,
    /// The number of the stack that dropped them.
    pub stack: u32,
    /// The state in which they were dropped.
    pub waited: WireWaited,
    /// Whether the thread that dropped them unwound by a panic.
    pub is_panicking: bool,
    /// The place in words, and the code that dropped them. Only the service knows what the numbers
    /// stand for: whoever has asked it fills these in, and empty ones are not shown.
    pub waited_at: String,
    /// See [`TaskDrop::waited_at`].
    pub dropped_by: String,
}

impl TimelineTask {
    /// The 32 digits of the trace's id, as backends and logs show them.
    pub fn trace_digits(&self) -> Option<String> {
        self.trace_id.map(|id| format!("{id:032x}"))
    }
}

impl Timeline {
    /// The task that stands for a request: the outermost task, of those that began within the
    /// timeline, of which the task is a part. An unknown task stands for itself.
    pub fn request_of(&self, task: u64) -> u64 {
        self.roots.get(&task).copied().unwrap_or(task)
    }

    /// How a request ended, if that was recorded.
    pub fn outcome(&self, of: &TimelineTask) -> Option<&str> {
        self.outcomes.get(usize::from(of.outcome?)).map(String::as_str)
    }

    /// Where a cancelled request waited, and the code that dropped it, if that is known.
    pub(crate) fn dropped(&self, of: &TimelineTask) -> [Option<&str>; 2] {
        let dropped = of.dropped.and_then(|at| self.drops.get(usize::from(at)));
        let words = dropped.map(|of| [&*of.waited_at, &*of.dropped_by]);
        words.map_or([None; 2], |words| words.map(|word| Some(word).filter(|word| !word.is_empty())))
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

    /// The number of events and tasks.
    pub fn events(&self) -> usize {
        self.threads.iter().map(|thread| thread.events.len()).sum::<usize>() + self.tasks.len()
    }
}
