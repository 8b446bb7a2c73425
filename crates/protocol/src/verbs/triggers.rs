//! `triggers`, `trigger-add`, `trigger-remove` and `record-save`: the rules by which a recorder's
//! file is written, and why none was written yet.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Lists the triggers; the answer is [`TriggersAnswer`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggersRequest {}

impl Verb for TriggersRequest {
    const NAME: &'static str = "triggers";
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Arms triggers, which stay when the connection ends; the answer is [`TriggersAnswer`]. If one
/// rule is invalid, the whole request is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerAddRequest {
    /// Rules, separated by `;`.
    pub rules: String,
}

impl Verb for TriggerAddRequest {
    const NAME: &'static str = "trigger-add";
    const ANNOUNCED_AS: &'static str = TriggersRequest::NAME;
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Ends a trigger; the answer is [`TriggersAnswer`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerRemoveRequest {
    /// The number of the trigger.
    pub number: u64,
}

impl Verb for TriggerRemoveRequest {
    const NAME: &'static str = "trigger-remove";
    const ANNOUNCED_AS: &'static str = TriggersRequest::NAME;
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Writes a file now: adds a trigger that fires at once, and is listed until it is removed. The
/// answer is [`TriggersAnswer`] with only this trigger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordSaveRequest {}

impl Verb for RecordSaveRequest {
    const NAME: &'static str = "record-save";
    const LACKS: &'static str = "writes no files";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Answer to `triggers`, `trigger-add` and `trigger-remove`: all triggers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggersAnswer {
    /// The triggers, in order of their numbers.
    pub triggers: Vec<TriggerRow>,
    /// The directory of the files.
    pub directory: String,
    /// The bytes that our files take there; absent if the directory cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The bytes that these files may take.
    pub budget_bytes: u64,
    /// Why no file can be written; absent if files can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerRow {
    /// The trigger's number; never reused in a process.
    pub number: u64,
    /// The trigger's rule.
    pub rule: String,
    /// For how long the trigger has been armed, in nanoseconds.
    pub armed_for_ns: u64,
    /// The least time between two files of the trigger, in nanoseconds.
    pub every_ns: u64,
    /// How many files were written for the trigger.
    pub fired: u64,
    /// The time since the trigger last fired, in nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_ago_ns: Option<u64>,
    /// The event that fired the trigger last, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The path of the trigger's last file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How often the trigger's condition held but no file was written, because it was too soon
    /// after the last one.
    pub passed_over: u64,
    /// Whether a file is being written, or about to be.
    pub is_writing: bool,
    /// How close the trigger has come to firing: the highest value since it was armed, and its
    /// threshold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<String>,
    /// Why the trigger has not fired, or does not fire now.
    pub why_not: String,
}
