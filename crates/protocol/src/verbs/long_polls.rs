//! `long-polls` and `long-poll-reports`: polls that last, as they are reported.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Reports polls that last, as long as the connection lasts, in place of those that it asked for
/// before; [`LongPollsBegun`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsRequest {
    /// The length from which on a poll is a long one.
    pub threshold_us: u64,
}

impl Verb for LongPollsRequest {
    const NAME: &'static str = "long-polls";
    const LACKS: &'static str = "does not look for long polls";
    const MEMORY: Memory = Memory::SOME;
    type Answer = LongPollsBegun;
}

/// Answer to `long-polls`: reports are made from now on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsBegun {}

/// Asks for the reports on long polls that have come since the last time; [`LongPollsPart`]
/// answers.
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

/// Answer to `long-poll-reports`: those that have come since the last time, or some of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollsPart {
    /// The oldest first.
    pub reports: Vec<LongPollRow>,
    /// Whether there may be more.
    #[serde(default)]
    pub more: bool,
    /// Reports that were lost so far, because there was no room for them.
    #[serde(default)]
    pub lost: u64,
    /// The time between two looks: more than usual, where very many threads are in tasks.
    #[serde(default)]
    pub look_us: u64,
}

/// A report on a long poll.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LongPollRow {
    /// The number of the poll, which all reports on it have.
    pub number: u64,
    /// When the report was made, in nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// The thread's id in the service's own namespace.
    pub tid: u32,
    /// The thread's name.
    pub thread: String,
    /// The task that is charged.
    pub task: u64,
    /// The name of its group; empty if it has none.
    pub group: String,
    /// For how long the poll has lasted.
    pub lasted_ns: u64,
    /// Whether that is exact.
    #[serde(default)]
    pub exact: bool,
    /// The stack: the address of the next instruction, then one less than each return address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<u64>,
    /// The way by which the stack was found: `tables`, `frame-pointers`, `search`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub way: String,
    /// The reason why there is no stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_stack: Option<String>,
    /// Whether the poll is over.
    #[serde(default)]
    pub over: bool,
}
