//! `record`: starting, ending and listing the flight recorder.

use serde::{Deserialize, Serialize};

use super::switch::BatchStat;
use crate::verb::{Each, Memory, Verb};

/// Starts the recorder, ends it, or, without `glob` and `off`, returns its state; the answer is
/// [`RecordAnswer`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordRequest {
    /// A glob list: starts the recorder with these probes. It outlives the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub glob: Option<String>,
    /// Memory for the recorder's records, in bytes; 8 MiB if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Ends the recorder after this time, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Ends the recorder, no matter which client has started it.
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
    /// The recorder; after `off`, its state at its end.
    pub recorder: Option<RecorderRow>,
    /// Names of the probes that the glob list matched, if it was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matched: Vec<String>,
    /// The batch that switched these probes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchStat>,
}

/// A recorder at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecorderRow {
    /// The recorder's number, never reused in a process.
    pub number: u64,
    /// The glob list that chose the recorder's keys.
    pub glob: String,
    /// The number of keys that the recorder holds.
    pub keys: usize,
    /// The memory that the recorder may take, in bytes.
    pub memory_bytes: u64,
    /// The memory that records occupy, in bytes.
    pub held_bytes: u64,
    /// The number of records that the recorder has.
    pub records: u64,
    /// The number of records that were replaced by newer ones.
    pub aged: u64,
    /// The number of records lost before they reached the recorder, in full or missing rings.
    pub dropped: u64,
    /// The age of the oldest record, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_ns: Option<u64>,
    /// Milliseconds until time ends the recorder, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The time between two reads of the rings, in nanoseconds.
    pub tick_ns: u64,
}
