//! The protocol between a service and the `dormouse` command: versioned JSON lines, and after an
//! accepted `trace` a stream of frames.
//!
//! A request is one line `{"v":1,"id":N,"op":"…",…}`; its answer is one line with the same `id` and either
//! `ok` or `error`. The first request of a connection is `hello`. Fields are only ever added; unknown
//! ones are ignored, so either side may be the newer one.
//!
//! A frame is `u32` length (of what follows), `u8` [`FrameKind`], payload; integers are little-endian.

use dormouse_events::{Availability, Unit};
use serde::{Deserialize, Serialize};

/// The protocol version that this build speaks.
pub const PROTOCOL: u32 = 1;

/// The longest request line, in bytes; a longer one is an error and closes the connection.
pub const MAX_LINE: usize = 16 * 1024;

/// The longest frame, in bytes after the length word.
pub const MAX_FRAME: usize = 1024 * 1024;

/// The longest `for_ms` and `dwell_ms`.
pub const LONGEST_MS: u64 = dormouse_keys::LONGEST_HOLD.as_millis() as u64;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Protocol version.
    pub v: u32,
    /// Echoed in the answer.
    pub id: u64,
    /// The operation and its arguments.
    #[serde(flatten)]
    pub op: Op,
}

/// One operation of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Op {
    /// Opens the conversation; answered by [`Hello`].
    Hello {
        /// Name and version of the client, for people.
        client: String,
        /// Whether the client takes [`Notice`]s between answers.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        notices: bool,
    },
    /// Lists keys; answered by [`Keys`].
    Keys {
        /// A glob list; everything when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob: Option<String>,
    },
    /// Switches keys on; answered by [`Changed`]. Without `for_ms` and `keep` the connection holds the
    /// lease: the keys go off when it closes.
    On {
        /// A glob list.
        glob: String,
        /// A timed lease that the agent holds, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
        /// How long the keys stay on after the connection's lease has ended, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dwell_ms: Option<u64>,
        /// Sets the baseline instead of taking a lease.
        #[serde(default)]
        keep: bool,
    },
    /// Clears the baseline and the caller's own leases; answered by [`Changed`].
    Off {
        /// A glob list.
        glob: String,
        /// How long what this switches off stays on, in milliseconds; switched on again meanwhile, it is not
        /// patched at all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dwell_ms: Option<u64>,
        /// Also ends the leases of others.
        #[serde(default)]
        force: bool,
    },
    /// Switches probes on and streams their records; answered by [`Tracing`], then by frames until
    /// the client closes the connection.
    Trace {
        /// A glob list; matches keys that are no probes too, which are switched but record nothing here.
        glob: String,
    },
    /// A snapshot of groups and threads; answered by [`Stat`]. A client that has not said what to count has CPU time
    /// counted from its first one on.
    Stat,
    /// Lists what can be counted; answered by [`Events`].
    Events,
    /// Has groups count these events as long as the connection lasts, in place of those that it asked for before;
    /// answered by [`Counted`]. CPU time is counted with them, for [`Stat`] tells it always. No names: nothing more. A name
    /// that is no event refuses all.
    Count {
        /// Names, as [`Events`] has them.
        events: Vec<String>,
    },
    /// What works in this process; answered by [`Doctor`].
    Doctor,
}

/// An answer: exactly one of `ok` and `error` is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Response<T> {
    /// Protocol version.
    pub v: u32,
    /// The request's id, 0 when it could not be read.
    pub id: u64,
    /// What was asked for.
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    pub ok: Option<T>,
    /// Why there is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<WireError>,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireError {
    /// What kind of refusal.
    pub code: Code,
    /// What was wrong, on what, and what to change.
    pub message: String,
    /// Names near the one that matched nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub near: Vec<String>,
}

/// The kinds of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Code {
    /// Not JSON, not a request, an unknown operation, a field out of range.
    BadRequest,
    /// A glob list that does not parse.
    BadGlob,
    /// A glob list that matches no key.
    NoMatch,
    /// A name that is no event.
    NoEvent,
    /// A protocol version that this agent does not speak.
    Version,
    /// A line or a frame over its bound.
    TooLong,
    /// Too many clients at once.
    Busy,
    /// A peer of another user.
    Denied,
    /// The keys could not be switched; the message says why. They are as they were.
    Keys,
    /// Events that cannot be counted together, or not now; the message says why.
    Events,
    /// A code of a newer agent.
    #[serde(other)]
    Unknown,
}

/// Who the agent is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol version of this conversation.
    pub protocol: u32,
    /// Version of the library in the service.
    pub version: String,
    /// Process id, in the service's own namespace.
    pub pid: u32,
    /// Start of the process, clock ticks after boot (field 22 of `/proc/pid/stat`): with `pid` never reused.
    pub start_ticks: u64,
    /// The process's name.
    pub name: String,
    /// Path of its executable.
    pub exe: String,
    /// Its effective user id.
    pub uid: u32,
    /// Keys registered.
    pub keys: usize,
    /// Sites registered.
    pub sites: usize,
    /// The operations that the agent knows; empty from one that knows no more than those up to `doctor`. A client
    /// asks for nothing else: an unknown operation ends the connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
}

/// Answer to `keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    /// By name.
    pub keys: Vec<KeyInfo>,
}

/// One static key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyInfo {
    /// Its name; need not be unique.
    pub name: String,
    /// `key`, `probe` or `tracing`.
    pub kind: String,
    /// Whether code that branches on it takes the branch now.
    pub on: bool,
    /// The baseline, which stays when all leases are gone.
    pub baseline: bool,
    /// Leases held on it.
    pub leases: u32,
    /// By whom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<KeyHolder>,
    /// Milliseconds until it goes off, where nothing but time keeps it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// Places in the code that branch on it.
    pub sites: usize,
    /// Where it is defined.
    pub file: String,
    /// Line in `file`.
    pub line: u32,
    /// File name of the linked object that it lives in.
    pub object: String,
    /// Names of a probe's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// Answer to `on` and `off`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// Names of the keys that the glob list matched.
    pub matched: Vec<String>,
    /// How many of them changed their state.
    pub changed: usize,
    /// Their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// After `on` for a time: milliseconds until the last of the matched keys goes off, as far as this user is
    /// concerned. An earlier lease that ends later holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// The batch that did it.
    pub batch: Batch,
    /// After `off`: leases of others that keep matched keys on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
}

/// What one batch did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// Keys that changed their state.
    pub keys: usize,
    /// Sites written.
    pub sites: usize,
    /// Pages made writable.
    pub pages: usize,
    /// Core synchronisations.
    pub barriers: usize,
    /// Traps taken by threads that ran into a site meanwhile.
    pub traps: u64,
    /// Sites that could not be written, because they lie in no readable code.
    #[serde(default)]
    pub skipped: usize,
    /// Pages of code that could not be made read-only again.
    #[serde(default)]
    pub unsealed: usize,
    /// Wall time, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Who keeps matched keys on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// How many of the matched keys it holds.
    pub keys: usize,
    /// Who.
    #[serde(flatten)]
    pub holder: Holder,
}

/// Who keeps one key on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyHolder {
    /// How many leases on it are held.
    pub leases: u32,
    /// By whom.
    #[serde(flatten)]
    pub holder: Holder,
}

/// Somebody who holds leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// What ends them.
    #[serde(default)]
    pub by: HeldBy,
    /// The user.
    pub uid: u32,
    /// The client process, as long as it is connected; else 0.
    pub pid: u32,
    /// Milliseconds left, of what ends by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// The kinds of [`Holder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeldBy {
    /// A connected client, until it goes.
    Client,
    /// A user, for a time.
    User,
    /// The service's own code.
    Service,
    /// Nobody: given back, and lingering for its dwell time.
    Nobody,
    /// A kind that this side does not know.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Answer to `trace`; frames follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// Names of the keys that the glob list matched.
    pub matched: Vec<String>,
    /// The probes among them.
    pub probes: Vec<ProbeInfo>,
    /// The batch that switched them on.
    pub batch: Batch,
    /// A conversion point for the time stamps.
    pub clock: ClockPoint,
}

/// A probe, as records refer to it.
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
    /// Value of the time stamp counter (nanoseconds where there is none: then `tsc_hz` is 1e9).
    pub tsc: u64,
    /// Frequency of the time stamp counter, in Hz.
    pub tsc_hz: f64,
    /// `CLOCK_MONOTONIC` at `tsc`, in nanoseconds.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME` at `tsc`, in nanoseconds since 1970.
    pub real_ns: u64,
}

/// The kinds of frame of a trace stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A JSON [`Note`].
    Note = 1,
    /// `u32` tid, `u64` start number of the thread, then whole records (see [`crate::record`]).
    Records = 2,
}

/// What a trace stream says beside records.
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
    /// Somebody has ended leases of this trace by force.
    Ended(Ended),
}

/// What a client has lost, and to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Keys that it held and holds no more.
    pub keys: usize,
    /// Keys that it still holds.
    pub left: usize,
    /// The user who ended it.
    pub uid: u32,
    /// The client process that ended it; 0 where it is not visible.
    pub pid: u32,
}

/// A line that no request asked for, to a client that said it takes them: it has neither `ok` nor `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Protocol version.
    pub v: u32,
    /// What there is to say; a note of a newer agent is one that does not parse.
    pub note: Note,
}

/// Answer to `stat`. CPU times are totals since the start, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// `CLOCK_MONOTONIC` of the snapshot, in nanoseconds.
    pub mono_ns: u64,
    /// How long it took, in nanoseconds: groups are older by up to as much than threads and the process.
    #[serde(default)]
    pub took_ns: u64,
    /// CPU time of the whole process.
    pub process_cpu_ns: u64,
    /// CPU time that is charged to no group; also what groups have used while nobody counted it.
    pub unattributed_cpu_ns: u64,
    /// All groups, in order of creation.
    pub groups: Vec<GroupStat>,
    /// All threads.
    pub threads: Vec<ThreadStat>,
    /// How many keys are on.
    pub keys_on: usize,
    /// Records lost in rings since the start.
    pub dropped: u64,
    /// What the CPU time of groups is read by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

/// The clock that groups are charged by. (CPU time of the process and of threads is the kernel's own.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The tier that threads begin with, as `rseq`.
    pub tier: String,
    /// A running thread's clock is at most so far from the kernel's, in nanoseconds: it is the bound of a group's
    /// CPU time for each thread that has run the group.
    pub error_bound_ns: u64,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupStat {
    /// Number in records.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// CPU time while it was counted, exclusive of groups nested in it.
    pub cpu_ns: u64,
    /// Polls of its futures and entries of its scopes, while anything was counted.
    pub entries: u64,
    /// Tasks that are.
    pub alive: u64,
    /// Tasks that began.
    pub started: u64,
    /// Tasks that ended, were dropped or panicked.
    pub finished: u64,
    /// Of the events that this client has had counted, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
}

/// How often an event happened, as long as somebody had it counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The event's name.
    pub event: String,
    /// How often, in the event's unit; scaled up where the counter had to share its unit.
    pub value: u64,
    /// For how long it was to count, in nanoseconds.
    pub enabled_ns: u64,
    /// For how long of that it did: less means that `value` is an estimate.
    pub running_ns: u64,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadStat {
    /// Thread id, in the service's own namespace.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// CPU time.
    pub cpu_ns: u64,
}

/// Answer to `events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Events {
    /// Everything that has a name, also what is not to be had.
    pub events: Vec<EventInfo>,
}

/// Something that can be counted for groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventInfo {
    /// Its name, as `page-faults`.
    pub name: String,
    /// What one is: `ns`, `bytes`, or `1` where they are counted.
    pub unit: String,
    /// The unit that counts it: `clock`, `software`, `hardware`, `user`, `alloc`.
    pub pmu: String,
    /// What it sees or leaves out, where that is not plain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Why it is not to be had here; absent: it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

impl From<Availability> for EventInfo {
    fn from(of: Availability) -> Self {
        let unit = match of.unit {
            Unit::Times => "1",
            unit => unit.suffix(),
        };
        Self {
            name: of.name.to_owned(),
            unit: unit.to_owned(),
            pmu: of.pmu.to_owned(),
            note: of.note.unwrap_or_default().to_owned(),
            unavailable: of.why_not,
        }
    }
}

/// Answer to `count`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// What is counted from now on, in the order of the request.
    pub counted: Vec<EventInfo>,
    /// What is not, though it has a name, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<EventInfo>,
}

/// Answer to `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Doctor {
    /// What was looked at.
    pub checks: Vec<Check>,
}

/// One thing that works, works with a limit, or does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What it is, as `keys.write`.
    pub name: String,
    /// The verdict.
    pub state: CheckState,
    /// What was seen.
    pub detail: String,
    /// The one setting to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Verdict of a [`Check`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Works, with a limit that the detail names.
    Limited,
    /// Does not work here.
    Unavailable,
}
