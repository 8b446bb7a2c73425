//! `keys`: the keys, and who holds them.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, Verb};

/// Lists keys; [`Keys`] answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeysRequest {
    /// A glob list; absent, it stands for all keys.
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
    /// All that match, by name.
    pub keys: Vec<KeyInfo>,
}

/// One static key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyInfo {
    /// Its name; need not be unique.
    pub name: String,
    /// `key`, `probe` or `tracing`.
    pub kind: String,
    /// Whether code that branches on it takes the branch now.
    pub on: bool,
    /// The baseline, which stays when all leases are gone.
    pub baseline: bool,
    /// The baseline with which it started.
    #[serde(default)]
    pub initial: bool,
    /// Leases held on it.
    pub leases: u32,
    /// Their holders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<KeyHolder>,
    /// Milliseconds until it goes off, if nothing but time keeps it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// Places in the code that branch on it.
    pub sites: usize,
    /// How many of them have the code of the other state, which something else has put back: they
    /// do not follow the key until it has changed to that state and back.
    #[serde(default)]
    pub sites_stale: usize,
    /// How many of them have other code, such as a breakpoint; nobody knows what they do.
    #[serde(default)]
    pub sites_foreign: usize,
    /// Source file of its definition.
    pub file: String,
    /// Line in `file`.
    pub line: u32,
    /// File name of the linked object that it lives in.
    pub object: String,
    /// Names of a probe's fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
}

/// A holder of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyHolder {
    /// How many leases on it the holder has. Profiles of allocations share one.
    pub leases: u32,
    /// The holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}

/// Somebody with leases, in words for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeaseHolder {
    /// The kind of holder, which says how its leases end.
    #[serde(default)]
    pub by: HeldBy,
    /// The user.
    pub uid: u32,
    /// The client process, as long as it is connected; else 0.
    pub pid: u32,
    /// The client's name and version, as its `hello` has them; else empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// Milliseconds left, if time ends its leases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
}

/// The kinds of [`LeaseHolder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeldBy {
    /// A connected client, until it goes.
    Client,
    /// A user, for a time.
    User,
    /// The flight recorder, until it is ended.
    Recorder,
    /// The service's own code.
    Service,
    /// Nobody: the lease was given back, and lingers for its dwell time.
    Nobody,
    /// A kind that this side does not know.
    #[default]
    #[serde(other)]
    Unknown,
}
