//! `keys`: the keys, and their holders.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, Verb};

/// Lists keys; the answer is [`Keys`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeysRequest {
    /// A glob list; all keys if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
}

impl Verb for KeysRequest {
    const NAME: &'static str = "keys";
    const LACKS: &'static str = "lists no keys";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = Keys;
}

/// Answer to `keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Keys {
    /// All keys that match, sorted by name.
    pub keys: Vec<KeyInfo>,
}

/// One static key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyInfo {
    /// The key's name; it need not be unique.
    pub name: String,
    /// The kind of key: `key`, `probe` or `tracing`.
    pub kind: String,
    /// Whether code that branches on the key takes the branch now.
    pub on: bool,
    /// The baseline, which stays when all leases are gone.
    pub baseline: bool,
    /// The baseline at the start of the process.
    #[serde(default)]
    pub initial: bool,
    /// The number of leases on the key.
    pub leases: u32,
    /// The holders of leases on the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<KeyHolder>,
    /// Milliseconds until the key goes off, if only time keeps it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// The number of places in the code that branch on the key.
    pub sites: usize,
    /// How many of these places have the code of the other state because something else has
    /// restored it: they do not follow the key until it has changed to that state and back.
    #[serde(default)]
    pub sites_stale: usize,
    /// How many of these places have other code, such as a breakpoint; their effect is unknown.
    #[serde(default)]
    pub sites_foreign: usize,
    /// The source file that defines the key.
    pub file: String,
    /// Line in `file`.
    pub line: u32,
    /// File name of the linked object that contains the key.
    pub object: String,
    /// Names of a probe's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// A holder of leases on one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyHolder {
    /// The number of the holder's leases on the key. Profiles of allocations share one.
    pub leases: u32,
    /// The holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}

/// A holder of leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseHolder {
    /// The kind of holder, which determines how its leases end.
    #[serde(default)]
    pub by: HeldBy,
    /// The user id.
    pub uid: u32,
    /// The process id of the client while it is connected; otherwise 0.
    pub pid: u32,
    /// The client's name and version from its `hello`; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// Milliseconds until time ends the holder's leases, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// The kinds of [`LeaseHolder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeldBy {
    /// A connected client, until it disconnects.
    Client,
    /// A user, for a time.
    User,
    /// The flight recorder, until it ends.
    Recorder,
    /// The service's own code.
    Service,
    /// No holder: the lease was given back, and lingers for its dwell time.
    Nobody,
    /// A kind that this side does not support.
    #[default]
    #[serde(other)]
    Unknown,
}
