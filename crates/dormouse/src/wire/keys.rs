//! Keys, what switching them did, and who holds them.

use dormouse_keys::BatchReport;
use serde::{Deserialize, Serialize};

/// Answer to `keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    /// All that match, by name.
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
    /// How many of them have other code, such as a breakpoint; what they do is not known.
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

/// Answer to `on`, `off` and `reset`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Changed {
    /// Names of the keys that the glob list matched.
    pub matched: Vec<String>,
    /// How many of them changed their state.
    pub changed: usize,
    /// Their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// After `on` for a time: milliseconds until this user's leases let the last of the matched
    /// keys go off. An earlier lease that ends later holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// The batch that did it.
    pub batch: BatchStat,
    /// After `off`: how many keys the agent left alone because they start on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub start_on: usize,
    /// After `off` and `reset`: leases of others that keep matched keys on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldKeys>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The work of one batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchStat {
    /// Keys that changed their state.
    pub keys: usize,
    /// Sites written.
    pub sites: usize,
    /// Pages that hold the sites written.
    pub pages: usize,
    /// Core synchronisations.
    pub barriers: usize,
    /// Traps taken by threads that ran into a site meanwhile.
    pub traps: u64,
    /// Sites that the batch left alone, because they lie in no readable code.
    #[serde(default)]
    pub skipped: usize,
    /// Pages of code that stayed writable, because the kernel refused to protect them again.
    #[serde(default)]
    pub unsealed: usize,
    /// Wall time, in nanoseconds.
    pub elapsed_ns: u64,
}

impl From<BatchReport> for BatchStat {
    fn from(report: BatchReport) -> Self {
        Self {
            keys: report.keys,
            sites: report.sites,
            pages: report.pages,
            barriers: report.barriers,
            traps: report.traps,
            skipped: report.skipped,
            unsealed: report.unsealed,
            elapsed_ns: report.elapsed.as_nanos() as u64,
        }
    }
}

/// A holder of matched keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldKeys {
    /// How many of the matched keys it holds.
    pub keys: usize,
    /// The holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}

/// A holder of one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyHolder {
    /// How many leases on it the holder has. Profiles of allocations share one.
    pub leases: u32,
    /// The holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}

/// Somebody with leases, in words for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
