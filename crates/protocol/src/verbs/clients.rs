//! `clients`: who looks into this process, and what the agent does for each.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, SHORT_ANSWER, Verb};

/// Lists the connections of the agent; [`Clients`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientsRequest {}

impl Verb for ClientsRequest {
    const NAME: &'static str = "clients";
    const LACKS: &'static str = "lists no clients";
    const MEMORY: Memory = Memory::SOME;
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    const WHILE_ASLEEP: bool = true;
    type Answer = Clients;
}

/// Answer to `clients`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Clients {
    /// One for each connection, in the order in which they came.
    pub clients: Vec<ClientRow>,
}

/// A connection, and what the agent does for it until it ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClientRow {
    /// The user of the process at the other end.
    pub uid: u32,
    /// The process id of that process, as the service sees it; 0 if it is in another process
    /// namespace.
    pub pid: u32,
    /// The client's name and version, as it reports them.
    pub client: String,
    /// For how long the client has been connected, in milliseconds.
    pub connected_ms: u64,
    /// Whether this is the client that sent the request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
    /// The agent's work for the client until it disconnects, in words: `counts task-clock`.
    #[serde(default)]
    pub does: Vec<String>,
    /// The keys that the client's leases keep on, each once for each lease.
    #[serde(default)]
    pub keys: usize,
}
