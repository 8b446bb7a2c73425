//! `record`: the flight recorder, as a client asks for it and is told of it.

use serde::{Deserialize, Serialize};

use super::switch::BatchStat;
use crate::verb::{Each, Memory, Verb};

/// Starts the recorder, ends it, or, without `glob` and `off`, tells of it; [`RecordAnswer`]
/// answers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordRequest {
    /// A glob list: starts the recorder. It outlives the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Memory for its records; 8 MiB where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// It ends by itself after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Ends it, whoever has started it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub off: bool,
}

impl Verb for RecordRequest {
    const NAME: &'static str = "record";
    const LACKS: &'static str = "has no flight recorder";
    const MEMORY: Memory = Memory::each(&[Each::Key]);
    type Answer = RecordAnswer;
}

/// Answer to `record`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordAnswer {
    /// The recorder; after `off`, as it was at its end.
    pub recorder: Option<RecorderRow>,
    /// Names of the probes that the glob list matched, where it was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matched: Vec<String>,
    /// The batch that switched them on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchStat>,
}

/// A recorder at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecorderRow {
    /// Of the process, never reused.
    pub number: u64,
    /// The glob list that chose its keys.
    pub glob: String,
    /// How many keys it holds.
    pub keys: usize,
    /// Bytes of memory that it may take.
    pub memory_bytes: u64,
    /// Bytes of it that hold records.
    pub held_bytes: u64,
    /// Records that it has.
    pub records: u64,
    /// Records that made way for newer ones.
    pub aged: u64,
    /// Records lost on the way to it, in full or missing rings.
    pub dropped: u64,
    /// The time since its oldest record, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_ns: Option<u64>,
    /// Milliseconds left, if time ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The time from one look at the rings to the next, in nanoseconds.
    pub tick_ns: u64,
}
