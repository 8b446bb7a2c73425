//! `on`, `off` and `reset`: switching keys.

use serde::{Deserialize, Serialize};

use super::keys::LeaseHolder;
use crate::verb::{Each, Memory, Verb};

/// Switches keys on; the answer is [`Changed`]. Without `for_ms` and `keep` the connection holds a
/// lease: the keys go off when the connection closes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OnRequest {
    /// The keys: a list of globs.
    pub glob: String,
    /// The length of a hold, in milliseconds. The keys' own timer ends it, even without the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// How long the keys stay on after the connection's lease has ended, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dwell_ms: Option<u64>,
    /// Sets the baseline instead of taking a lease.
    #[serde(default)]
    pub keep: bool,
}

impl Verb for OnRequest {
    const NAME: &'static str = "on";
    const LACKS: &'static str = "switches no keys";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = Changed;
}

/// Clears the baseline and ends the caller's own leases; the answer is [`Changed`]. Keys that start
/// on keep their baseline, unless the list contains their name without a wildcard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OffRequest {
    /// The keys: a list of globs.
    pub glob: String,
    /// How long the keys stay on from now, in milliseconds. A key that is switched on again in this
    /// time is not patched at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dwell_ms: Option<u64>,
    /// Whether to end the leases of others, too.
    #[serde(default)]
    pub force: bool,
    /// Whether to end only the connection's own leases: the inverse of `on` without `for_ms` and
    /// `keep`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub release: bool,
}

impl Verb for OffRequest {
    const NAME: &'static str = "off";
    const LACKS: &'static str = "switches no keys";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = Changed;
}

/// Restores the baselines that keys had at the start, and ends the caller's own leases; the answer
/// is [`Changed`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResetRequest {
    /// The keys: a list of globs.
    pub glob: String,
}

impl Verb for ResetRequest {
    const NAME: &'static str = "reset";
    const LACKS: &'static str = "knows no `reset`";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = Changed;
}

/// Answer to `on`, `off` and `reset`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Changed {
    /// Names of the keys that the glob list matched.
    pub matched: Vec<String>,
    /// How many of the matched keys changed their state.
    pub changed: usize,
    /// The names of the keys that changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<String>>,
    /// After `on` for a time: milliseconds until this user's leases let the last of the matched
    /// keys go off. If an earlier lease ends later, its end counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off_in_ms: Option<u64>,
    /// The batch that changed the keys.
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

/// The effects of one batch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BatchStat {
    /// The number of keys that changed their state.
    pub keys: usize,
    /// The number of sites written.
    pub sites: usize,
    /// The number of pages that hold the written sites.
    pub pages: usize,
    /// The number of core synchronisations.
    pub barriers: usize,
    /// The number of traps taken by threads that ran into a site meanwhile.
    pub traps: u64,
    /// The number of sites that the batch skipped, because they lie in no readable code.
    #[serde(default)]
    pub skipped: usize,
    /// The number of pages of code that stayed writable, because the kernel refused to protect them
    /// again.
    #[serde(default)]
    pub unsealed: usize,
    /// Wall time, in nanoseconds.
    pub elapsed_ns: u64,
}

/// A holder of matched keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HeldKeys {
    /// How many of the matched keys the holder keeps on.
    pub keys: usize,
    /// The holder.
    #[serde(flatten)]
    pub holder: LeaseHolder,
}
