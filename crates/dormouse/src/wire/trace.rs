//! The stream of a trace: records, and notes between them.

use dormouse_keys::KeyUse;
use serde::{Deserialize, Serialize};

use super::keys::BatchStat;
use crate::probe::Probe;

/// Answer to `trace`; frames follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// Names of the keys that are switched on: probes. An earlier agent switches all keys that the
    /// glob list matches.
    pub matched: Vec<String>,
    /// The number of those keys, of which several may have the same name.
    #[serde(default)]
    pub keys: usize,
    /// The probes among them.
    pub probes: Vec<ProbeInfo>,
    /// The batch that switched them on.
    pub batch: BatchStat,
    /// A conversion point for the time stamps.
    pub clock: ClockPoint,
}

/// A probe, by the number that its records carry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeInfo {
    /// Number in records; never reused in a process.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Source file.
    pub file: String,
    /// Line in `file`.
    pub line: u32,
    /// File name of the linked object that it lives in.
    #[serde(default)]
    pub object: String,
    /// Names of its fields, in the order of the values in a record.
    pub fields: Vec<String>,
}

/// How to turn a record's TSC value into time: `mono_ns + (tsc - self.tsc) * 1e9 / tsc_hz`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClockPoint {
    /// Value of the time stamp counter. (A machine without one gives nanoseconds, and `tsc_hz` is
    /// 1e9.)
    pub tsc: u64,
    /// Frequency of the time stamp counter, in Hz.
    pub tsc_hz: f64,
    /// `CLOCK_MONOTONIC` at `tsc`, in nanoseconds.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME` at `tsc`, in nanoseconds since 1970.
    pub real_ns: u64,
}

impl ProbeInfo {
    /// Of a key that is a probe's.
    pub(crate) fn of(used: &KeyUse) -> Option<Self> {
        let probe = used.key.attached::<Probe>()?;
        Some(Self {
            id: probe.id(),
            name: used.key.name().to_owned(),
            file: used.key.file().to_owned(),
            line: used.key.line(),
            object: used.object.to_string(),
            fields: probe.fields().map(str::to_owned).collect(),
        })
    }
}

impl ClockPoint {
    /// At this moment.
    pub(crate) fn now() -> Self {
        let point = dormouse_clock::point();
        Self { tsc: point.tsc, tsc_hz: point.hz, mono_ns: point.monotonic_ns, real_ns: point.realtime_ns }
    }
}

/// The kinds of frame of a trace stream, and of a recorder's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A JSON [`Note`].
    Note = 1,
    /// `u32` tid, `u64` start number of the thread, then whole records (see [`crate::record`]).
    Records = 2,
    /// An answer of the agent, in a recorder's file alone (see [`FileReader`](super::FileReader)).
    Answer = 3,
}

/// A message between the records of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Note {
    /// A new conversion point; about one a second.
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
    /// Somebody ended leases of this trace by force.
    Ended(Ended),
}

/// The keys that a client has lost to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How many keys it lost.
    pub keys: usize,
    /// How many keys it still holds.
    pub left: usize,
    /// The user who ended it.
    pub uid: u32,
    /// The client process that ended it; 0 if the service cannot see that process.
    pub pid: u32,
}

/// A line that no request asked for. It has neither `ok` nor `error`, and goes to clients whose
/// `hello` said that they take it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Protocol version.
    pub v: u32,
    /// The message. (A note of a newer agent does not parse.)
    pub note: Note,
}
