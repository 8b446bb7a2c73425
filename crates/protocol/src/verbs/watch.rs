//! `watch`, `watch-report` and `slots`: the request for a watch, its report, and the holders of
//! debug registers.
//!
//! A client requests a watch, and then its report as often as it likes. The watch belongs to the
//! connection and ends with it, as a lease of `on` does. Addresses are the service's own; the
//! client, which has the files, resolves the names of variables, functions and lines.

use serde::{Deserialize, Serialize};

use super::keys::HeldBy;
use crate::verb::{Memory, Verb};

/// Watches memory as long as the connection lasts. The answer is [`Watching`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchRequest {
    /// The address of the first byte.
    pub addr: u64,
    /// The number of bytes.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// A name for reports, and for others whose watches it prevents.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whether to report only hits after which the value has changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// Reports only hits after which the value, under `mask`, is this one. The watch is refused if
    /// it is longer than 8 bytes, as with `mask`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<u64>,
    /// The bits that `changed` and `equals` compare; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<u64>,
    /// Reports only hits of tasks of the group with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Ends the watch after this many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hits: Option<u64>,
    /// Hits per second above which the watch rests for a while; absent for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u32>,
    /// Whether the watch takes turns with others in the registers that are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// Whether reports contain single hits, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
}

// Hits, first as structures and then as text.
const MEMORY: Memory = Memory::bytes(1024 * 1024);

impl Verb for WatchRequest {
    const NAME: &'static str = "watch";
    const LACKS: &'static str = "knows no watches";
    const MEMORY: Memory = MEMORY;
    type Answer = Watching;
}

/// A kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum WireAccess {
    /// Writes only.
    #[default]
    #[serde(rename = "w")]
    Write,
    /// Reads and writes.
    #[serde(rename = "rw")]
    ReadWrite,
    /// Execution of the instruction at the address.
    #[serde(rename = "x")]
    Execute,
}

/// Answer to `watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Watching {
    /// The number of the watch, unique among the present watches of the process.
    pub number: u32,
}

/// Requests what a watch of this connection has recorded; the answer is [`WatchRow`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchReportRequest {
    /// The number of the watch.
    pub number: u32,
}

impl Verb for WatchReportRequest {
    const NAME: &'static str = "watch-report";
    const ANNOUNCED_AS: &'static str = WatchRequest::NAME;
    const LACKS: &'static str = "knows no watches";
    const MEMORY: Memory = MEMORY;
    type Answer = WatchRow;
}

/// Answer to `watch-report`: the hits of a watch so far, and what it could not observe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchRow {
    /// The watch's name.
    pub name: String,
    /// The address of the first byte that is watched.
    pub addr: u64,
    /// The number of bytes that are watched.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// Whether the watch goes on.
    pub state: WireState,
    /// The number of hits by the kernel's count; a lower bound if `stale_because` is there.
    pub hits: u64,
    /// The number of hits that were examined one by one.
    pub delivered: u64,
    /// The number of examined hits that passed the filters.
    pub passed: u64,
    /// The number of hits that were counted but not examined. Until the watch is over: at least so
    /// many, because one that was just counted may be on its way.
    pub lost: u64,
    /// The coverage of the watch.
    pub coverage: CoverageRow,
    /// Why the watch was disarmed for good before its time; absent if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_because: Option<String>,
    /// Why the kernel's counts could not be read for this report: the state, times and rests are
    /// those of the last reading. Absent if they were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale_because: Option<String>,
    /// The places in the code that hit, those with the most hits first.
    pub sites: Vec<SiteRow>,
    /// The number of hits at places for which `sites` had no room.
    #[serde(default)]
    pub other_sites: u64,
    /// Single hits since the last answer, the oldest first, if the client has requested them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stream: Vec<HitRow>,
}

/// Whether a watch goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WireState {
    /// It is armed, or takes turns.
    Armed,
    /// It is disarmed for a while, because there were too many hits.
    Resting,
    /// It has ended.
    Over,
    /// A state that this side does not support.
    #[serde(other)]
    Unknown,
}

/// The coverage of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CoverageRow {
    /// The number of threads on which the watch is armed.
    pub threads_armed: u32,
    /// The number of threads that are alive.
    pub threads_alive: u32,
    /// How long the watch was armed, in nanoseconds.
    pub armed_ns: u64,
    /// How long the watch has existed, in nanoseconds.
    pub wall_ns: u64,
    /// How often the watch rested.
    pub rests: u32,
    /// The number of hits that were delivered late, because their thread blocked the signal.
    #[serde(default)]
    pub late: u64,
    /// The number of hits whose value could not be read.
    #[serde(default)]
    pub unread: u64,
    /// For arm64: how often a thread was at an access that nobody can make in its stead, so that
    /// the watch rested.
    #[serde(default)]
    pub unpassed: u64,
}

/// A place in the code, in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SiteRow {
    /// The number of hits at this place.
    pub hits: u64,
    /// The last of these hits.
    #[serde(flatten)]
    pub last: HitRow,
}

/// One access to the watched memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HitRow {
    /// The address at which the thread continued: after the instruction, or, for a watch of
    /// executions, at it.
    pub ip: u64,
    /// The group of the task that ran; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The value that the watch had seen before; absent if it could not be read. Of a variable
    /// longer than 8 bytes: the value of the 1 to 8 bytes that one register watches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// The value after the hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<u64>,
    /// The thread id, in the service's own namespace.
    pub tid: u32,
    /// The number of the task; 0 if there was none.
    #[serde(default)]
    pub task: u64,
    /// The time by `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// Return addresses, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
    /// How many of these lie before those that are left out; absent if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<u32>,
    /// How far the stack leads; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<WireHitStackEnd>,
}

/// How far the stack of a hit leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WireHitStackEnd {
    /// To the first function of the thread.
    Whole,
    /// There was no room for all functions: those in the middle are left out.
    Cut,
    /// To a function whose caller no rule finds.
    Lost,
    /// An end that this side does not support.
    #[serde(other)]
    Unknown,
}

/// Lists the watches that take debug registers; the answer is [`SlotsAnswer`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotsRequest {}

impl Verb for SlotsRequest {
    const NAME: &'static str = "slots";
    const LACKS: &'static str = "lists no watches";
    const MEMORY: Memory = Memory::SOME;
    type Answer = SlotsAnswer;
}

/// Answer to `slots`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotsAnswer {
    /// The number of debug registers of a thread that watch memory; 0: they cannot be counted.
    pub registers: u32,
    /// How many of these registers are reserved for debuggers: only a watch that asks for all takes
    /// them.
    pub spare: u32,
    /// The watches, and the registers that each takes.
    pub held: Vec<SlotRow>,
}

/// A watch that takes registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotRow {
    /// The number of the watch.
    pub number: u32,
    /// The watch's name, or its address if it has none.
    pub name: String,
    /// How many registers the watch takes on each thread.
    pub registers: u32,
    /// The group during whose tasks the watch takes the registers; absent if it takes them always,
    /// on all threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether the watch takes turns with others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// The holder of the watch.
    #[serde(flatten)]
    pub holder: SlotOwner,
}

/// The holder of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotOwner {
    /// The kind of holder.
    #[serde(default)]
    pub by: HeldBy,
    /// The user id.
    pub uid: u32,
    /// The process id of the client; 0 if it is the service itself.
    pub pid: u32,
}
