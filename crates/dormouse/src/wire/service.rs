//! The service itself, and what works in it.

use serde::{Deserialize, Serialize};

/// The agent and the process that it serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Path of its executable.
    pub exe: String,
    /// Its effective user id.
    pub uid: u32,
    /// How many keys are registered.
    pub keys: usize,
    /// How many sites are registered.
    pub sites: usize,
    /// The operations that the agent knows. Agents that know those up to `doctor` alone send none.
    /// A client asks for nothing else, because an unknown operation ends the connection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ops: Vec<String>,
}

/// Answer to `doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Doctor {
    /// One for each thing that the agent looked at.
    pub checks: Vec<Check>,
}

/// One thing that works, works with a limit, or does not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Its name, as `keys.write`.
    pub name: String,
    /// The verdict.
    pub state: CheckState,
    /// The observation.
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
