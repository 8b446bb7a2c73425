//! `trace`, and its stream: records, and notes between them.

use serde::{Deserialize, Serialize};

use super::switch::BatchStat;
use crate::verb::{Each, Memory, Verb};

/// Whether a task, by its number, serves a connection, or goes on with one of its streams. Odd
/// numbers are those of requests, multiples of 4 those of parts of a task.
pub fn is_connection(task: u64) -> bool {
    task % 4 == 2
}

/// Switches probes on and streams their records: the answer is [`Tracing`], then frames follow
/// until the client closes the connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TraceRequest {
    /// A glob list. Of the keys that match only probes are switched.
    pub glob: String,
}

impl Verb for TraceRequest {
    const NAME: &'static str = "trace";
    const LACKS: &'static str = "traces nothing";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = Tracing;
}

/// Answer to `trace`; frames follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Tracing {
    /// Names of the keys that were switched on, which are probes. (An older agent switches all keys
    /// that match.)
    pub matched: Vec<String>,
    /// The number of those keys; several may have the same name.
    #[serde(default)]
    pub keys: usize,
    /// The probes among those keys.
    pub probes: Vec<ProbeInfo>,
    /// The batch that switched the keys on.
    pub batch: BatchStat,
    /// A conversion point for the time stamps.
    pub clock: ClockPoint,
}

/// A probe, by the number in its records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProbeInfo {
    /// The probe's number in records; never reused in a process.
    pub id: u32,
    /// The probe's name.
    pub name: String,
    /// The source file that contains the probe.
    pub file: String,
    /// Line in `file`.
    pub line: u32,
    /// File name of the linked object that contains the probe.
    #[serde(default)]
    pub object: String,
    /// Names of the probe's fields, in the order of the values in a record.
    pub fields: Vec<String>,
}

/// Converts a record's TSC value to time: `mono_ns + (tsc - self.tsc) * 1e9 / tsc_hz`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClockPoint {
    /// Value of the time stamp counter. (On a machine without one it is nanoseconds, and `tsc_hz`
    /// is 1e9.)
    pub tsc: u64,
    /// Frequency of the time stamp counter, in Hz.
    pub tsc_hz: f64,
    /// `CLOCK_MONOTONIC` at `tsc`, in nanoseconds.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME` at `tsc`, in nanoseconds since 1970.
    pub real_ns: u64,
}

/// The kinds of frame of a trace stream, and of a recorder's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A JSON [`Note`].
    Note = 1,
    /// `u32` thread id, `u64` start number of the thread, then whole records (`dormouse::record`
    /// reads them).
    Records = 2,
    /// An answer of the agent; only in a recorder's file (see [`FileReader`](crate::FileReader)).
    Answer = 3,
}

/// A message between the records of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Note {
    /// A new conversion point; about one each second.
    Clock(ClockPoint),
    /// A thread's name, before its first records.
    Thread {
        /// Thread id.
        tid: u32,
        /// Start number of the thread: with `tid` never reused in a process.
        start: u64,
        /// Its name.
        name: String,
    },
    /// A group's name, before the first record that is charged to it.
    Group {
        /// Number in records.
        id: u32,
        /// Its name.
        name: String,
    },
    /// Records lost since the last such note.
    Dropped {
        /// In full or missing rings of the service's threads.
        rings: u64,
        /// Because this client reads too slowly.
        client: u64,
    },
    /// Another client has ended leases of this trace by force.
    Ended(Ended),
}

/// The keys that a client has lost to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ended {
    /// How many keys the client has lost.
    pub keys: usize,
    /// How many keys the client still holds.
    pub left: usize,
    /// The user id of the client that ended them.
    pub uid: u32,
    /// The process id of the client that ended them; 0 if the service cannot see that process.
    pub pid: u32,
    /// Whether that client has put all of dormouse in the process to sleep.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
}

/// A line without a request. It has neither `ok` nor `error`, and is sent only to clients whose
/// `hello` accepts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Notice {
    /// Protocol version.
    pub v: u32,
    /// The message. (A note of a newer agent does not parse.)
    pub note: Note,
}
