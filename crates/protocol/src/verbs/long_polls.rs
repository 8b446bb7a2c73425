//! `long-polls` and `long-poll-reports`: polls that last long, reported while they last.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Reports long polls as long as the connection lasts. It replaces an earlier request of the
/// connection; the answer is [`LongPollsBegun`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsRequest {
    /// The length from which on a poll counts as long, in microseconds.
    pub threshold_us: u64,
}

impl Verb for LongPollsRequest {
    const NAME: &'static str = "long-polls";
    const LACKS: &'static str = "does not look for long polls";
    const MEMORY: Memory = Memory::SOME;
    type Answer = LongPollsBegun;
}

/// Answer to `long-polls`: long polls are reported from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsBegun {}

/// Requests the reports on long polls since the last such request; the answer is [`LongPollsPart`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollReportsRequest {}

// 130 addresses in each report, first as structures and then as text.
impl Verb for LongPollReportsRequest {
    const NAME: &'static str = "long-poll-reports";
    const ANNOUNCED_AS: &'static str = LongPollsRequest::NAME;
    const LACKS: &'static str = "does not look for long polls";
    const MEMORY: Memory = Memory::bytes(1024 * 1024);
    type Answer = LongPollsPart;
}

/// Answer to `long-poll-reports`: the reports since the last such request, or some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsPart {
    /// The reports, the oldest first.
    pub reports: Vec<LongPollRow>,
    /// Whether there may be more.
    #[serde(default)]
    pub more: bool,
    /// The number of reports so far for which there was no room.
    #[serde(default)]
    pub lost: u64,
    /// The time between two scans of the threads, in microseconds. It is longer than usual if very
    /// many threads are in tasks.
    #[serde(default)]
    pub look_us: u64,
}

/// A report on a long poll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollRow {
    /// The number of the poll, the same in all reports on it.
    pub number: u64,
    /// When the report was made, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// The thread id in the service's own namespace.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// The number of the task that is charged.
    pub task: u64,
    /// The name of that task's group; empty if it has none.
    pub group: String,
    /// For how long the poll has lasted, in nanoseconds.
    pub lasted_ns: u64,
    /// Whether `lasted_ns` is exact.
    #[serde(default)]
    pub exact: bool,
    /// The stack: the address of the next instruction, then each return address minus one. If it
    /// does not lead to the first function of the thread, the last address stands for the reason,
    /// as in profiles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
    /// How the stack was found: `tables`, `frame-pointers`, `search`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub way: String,
    /// Why there is no stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_stack: Option<String>,
    /// The calls and states in which samples since the first report have found the thread: the most
    /// frequent first. Absent from agents that take none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub looks: Vec<ThreadSampleRow>,
    /// The last of these samples; absent if the poll is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<LongPollNowRow>,
    /// Whether the poll is over.
    #[serde(default)]
    pub over: bool,
}

/// A call or state, and how many samples have found the thread in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ThreadSampleRow {
    /// The name of a system call, or `on a CPU`, `runnable`, `page fault`, `stopped`, `other`, or
    /// `unknown: ` with the reason.
    pub within: String,
    /// The number of samples.
    pub looks: u64,
}

/// The call or state of a thread in a long poll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollNowRow {
    /// A name as those of [`ThreadSampleRow::within`].
    pub within: String,
    /// The first arguments of the system call; empty if it is in none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<u64>,
    /// The function of the kernel in which it sleeps, where the kernel shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_function: Option<String>,
    /// If it sleeps in a futex that looks like a mutex of glibc's: the thread that owns it. A
    /// function `pthread_mutex_lock` in the stack shows that it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutex_owner: Option<u32>,
}
