//! `watch`, `watch-report` and `slots`: what to watch, what came of it, and who holds the debug
//! registers.
//!
//! A client asks for a watch, and then for its report as often as it likes. The watch is the
//! connection's and ends with it, as a lease of `on` does. Addresses are the service's own; names
//! of variables, functions and lines are the client's business, which has the files.

use serde::{Deserialize, Serialize};

use super::keys::HeldBy;
use crate::verb::{Memory, Verb};

/// Watches memory as long as the connection lasts: the bytes, and the hits to report. [`Watching`]
/// answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchRequest {
    /// Its first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// A name for reports and for others whom it is in the way of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Only hits after which the value is another one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// Only hits after which the value, under `mask`, is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals: Option<u64>,
    /// The bits that `changed` and `equals` look at; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<u64>,
    /// Only hits of tasks of the group of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The watch ends with so many hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hits: Option<u64>,
    /// Hits per second over which it rests for a while; absent: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<u32>,
    /// Takes turns with others in the registers that are left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// Reports have single hits, too.
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
    /// Writes.
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
    /// The number of the watch, which no other watch of the process has now.
    pub number: u32,
}

/// Asks for what a watch of this connection has seen; [`WatchRow`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchReportRequest {
    /// Its number.
    pub number: u32,
}

impl Verb for WatchReportRequest {
    const NAME: &'static str = "watch-report";
    const ANNOUNCED_AS: &'static str = WatchRequest::NAME;
    const LACKS: &'static str = "knows no watches";
    const MEMORY: Memory = MEMORY;
    type Answer = WatchRow;
}

/// Answer to `watch-report`: what a watch has seen so far, and what it could not see.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WatchRow {
    /// Its name.
    pub name: String,
    /// The first byte that is watched.
    pub addr: u64,
    /// How many bytes.
    pub len: u64,
    /// The kind of access.
    pub access: WireAccess,
    /// Whether it goes on.
    pub state: WireState,
    /// Hits that the kernel has counted.
    pub hits: u64,
    /// Hits that were looked at, one by one.
    pub delivered: u64,
    /// Hits of these that the filters let through.
    pub passed: u64,
    /// Hits that were counted and not looked at.
    pub lost: u64,
    /// The share that was seen.
    pub coverage: CoverageRow,
    /// Why it was disarmed for good before its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_because: Option<String>,
    /// The places in the code that the hits came from, with the most first.
    pub sites: Vec<SiteRow>,
    /// Hits at places for which there was no room in `sites`.
    #[serde(default)]
    pub other_sites: u64,
    /// Single hits since the last answer, the oldest first, if the client asked for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stream: Vec<HitRow>,
}

/// Whether a watch goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WireState {
    /// Armed, or taking turns.
    Armed,
    /// Disarmed for a while, because there were too many hits.
    Resting,
    /// At its end.
    Over,
    /// A state that this side does not know.
    #[serde(other)]
    Unknown,
}

/// The share of what happened that a watch could see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CoverageRow {
    /// Threads on which it is armed.
    pub threads_armed: u32,
    /// Threads that there are.
    pub threads_alive: u32,
    /// How long it was armed, in nanoseconds.
    pub armed_ns: u64,
    /// How long it has been there, in nanoseconds.
    pub wall_ns: u64,
    /// How often it rested.
    pub rests: u32,
    /// Hits that a thread learned of later than they happened, because it blocked the signal.
    #[serde(default)]
    pub late: u64,
    /// Hits whose value could not be read.
    #[serde(default)]
    pub unread: u64,
}

/// A place in the code, in one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SiteRow {
    /// How many hits.
    pub hits: u64,
    /// The last of them.
    #[serde(flatten)]
    pub last: HitRow,
}

/// One hit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HitRow {
    /// The address at which the thread went on: after the instruction, for a watch of execution at
    /// it.
    pub ip: u64,
    /// The group of the task that ran; absent: no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The value that the watch had seen before; absent where nobody could look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<u64>,
    /// The value after the hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<u64>,
    /// The thread, by its number in the service's own namespace.
    pub tid: u32,
    /// The task; 0: none.
    #[serde(default)]
    pub task: u64,
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub mono_ns: u64,
    /// Return addresses, the innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
}

/// Lists the watches that take debug registers; [`SlotsAnswer`] answers.
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
    /// Debug registers that a thread has.
    pub registers: u32,
    /// How many of them no watch takes unless it asks for all: those of debuggers.
    pub spare: u32,
    /// The watches, and the registers that each takes.
    pub held: Vec<SlotRow>,
}

/// A watch that takes registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SlotRow {
    /// Its number.
    pub number: u32,
    /// Its name, or its address.
    pub name: String,
    /// How many registers it takes of each thread.
    pub registers: u32,
    /// The group while whose tasks run it takes them; absent: always, on all threads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Whether it takes turns with others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flexible: bool,
    /// Its holder.
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
    /// The user.
    pub uid: u32,
    /// The client process; 0 if it is the service itself.
    pub pid: u32,
}
