//! `hello`, the first request of a connection.

use serde::{Deserialize, Serialize};

use super::sleep::Asleep;
use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Begins the conversation; the answer is [`Hello`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HelloRequest {
    /// Name and version of the client, for display.
    pub client: String,
    /// Whether the client accepts a [`Notice`](crate::Notice) between answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub notices: bool,
}

impl Verb for HelloRequest {
    const NAME: &'static str = "hello";
    const LACKS: &'static str = "answers nobody";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    const WHILE_ASLEEP: bool = true;
    type Answer = Hello;
}

/// Later additions to verbs, which are announced like verbs: notices between answers, and `off`
/// with `release`.
pub(super) const FEATURES: [&str; 2] = ["notices", "release"];

/// Answer to `hello`: the agent, and the process that it serves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Hello {
    /// The protocol version of this conversation.
    pub protocol: u32,
    /// Version of the library in the service.
    pub version: String,
    /// Process id, in the service's own namespace.
    pub pid: u32,
    /// Start of the process in clock ticks after boot (field 22 of `/proc/pid/stat`). Together with
    /// `pid` it is never reused.
    pub start_ticks: u64,
    /// The process's name.
    pub name: String,
    /// The path of the process's executable.
    pub exe: String,
    /// The process's effective user id.
    pub uid: u32,
    /// How many keys are registered.
    pub keys: usize,
    /// How many sites are registered.
    pub sites: usize,
    /// The operations that the agent supports. Agents that support only those up to `doctor` send
    /// none. A client must not send others, because an unknown operation ends the connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
    /// The sleep of dormouse in this process, if somebody has put it to sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asleep: Option<Asleep>,
}
