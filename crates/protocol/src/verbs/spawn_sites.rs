//! `spawn-sites`: the places in the source that spawn tasks, and whether the number of their tasks
//! keeps growing.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Asks for the places in the source that have spawned tasks; the answer is [`SpawnSites`]. Numbers
/// of tasks are compared while times are taken; this does not start taking them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpawnSitesRequest {}

impl Verb for SpawnSitesRequest {
    const NAME: &'static str = "spawn-sites";
    const LACKS: &'static str = "does not know where its tasks were spawned";
    const MEMORY: Memory = Memory::bytes(2 * 1024 * 1024);
    type Answer = SpawnSites;
}

/// Answer to `spawn-sites`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpawnSites {
    /// For how long the numbers of tasks have been compared, in nanoseconds; absent if times are
    /// not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watched_ns: Option<u64>,
    /// The length of the longest stretch of time over which there are enough readings, in
    /// nanoseconds; absent as long as there are not: then no site is known to grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_ns: Option<u64>,
    /// The sites. A line of a generic function may be several.
    pub sites: Vec<SpawnSiteRow>,
}

/// A place in the source that spawns tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SpawnSiteRow {
    /// Its number in [`TaskColumns::site`](crate::TaskColumns::site).
    pub site: u32,
    /// The path of the source file, as the compiler was given it.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
    /// The growth of the number of its living tasks; absent if it does not keep growing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<SiteGrowth>,
}

/// A number of tasks that keeps growing: of the readings in this time, each third lies wholly above
/// the third before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SiteGrowth {
    /// By how many tasks it has grown.
    pub tasks: u64,
    /// The time from the first reading to the last one, in nanoseconds.
    pub ns: u64,
}
