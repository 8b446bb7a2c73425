//! `triggers`, `trigger-add`, `trigger-remove` and `record-save`: the rules by which a recorder's
//! file is written, and why one has not been.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Lists the triggers; [`TriggersAnswer`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggersRequest {}

impl Verb for TriggersRequest {
    const NAME: &'static str = "triggers";
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Arms triggers, which stay when the connection ends; [`TriggersAnswer`] answers. A rule that
/// makes no sense refuses all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerAddRequest {
    /// Rules, with `;` in between.
    pub rules: String,
}

impl Verb for TriggerAddRequest {
    const NAME: &'static str = "trigger-add";
    const ANNOUNCED_AS: &'static str = TriggersRequest::NAME;
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Ends a trigger; [`TriggersAnswer`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerRemoveRequest {
    /// Its number.
    pub number: u64,
}

impl Verb for TriggerRemoveRequest {
    const NAME: &'static str = "trigger-remove";
    const ANNOUNCED_AS: &'static str = TriggersRequest::NAME;
    const LACKS: &'static str = "knows no triggers";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Has a file written now: a trigger that fires at once, and is listed until somebody removes it.
/// [`TriggersAnswer`] answers, with it as the only one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RecordSaveRequest {}

impl Verb for RecordSaveRequest {
    const NAME: &'static str = "record-save";
    const LACKS: &'static str = "writes no files";
    const MEMORY: Memory = Memory::SOME;
    type Answer = TriggersAnswer;
}

/// Answer to `triggers`, `trigger-add` and `trigger-remove`: all triggers there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggersAnswer {
    /// In order of their numbers.
    pub triggers: Vec<TriggerRow>,
    /// The directory of the files.
    pub directory: String,
    /// The bytes that our files take there; absent: the directory cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// The bytes that they may take.
    pub budget_bytes: u64,
    /// Why no file can be written, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A trigger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TriggerRow {
    /// Its number; never reused in a process.
    pub number: u64,
    /// Its rule.
    pub rule: String,
    /// For how long it has been armed, in nanoseconds.
    pub armed_for_ns: u64,
    /// The least time between two of its files, in nanoseconds.
    pub every_ns: u64,
    /// How many files it has had written.
    pub fired: u64,
    /// When it last fired, in nanoseconds ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_ago_ns: Option<u64>,
    /// The thing that it saw then, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
    /// The last file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How often it has seen what it waits for, and there was no file: too soon after the last.
    pub passed_over: u64,
    /// Whether a file is being written, or about to be.
    pub is_writing: bool,
    /// How near it has come: the highest value since it was armed, and the one that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<String>,
    /// Why it has not fired, or does not now.
    pub why_not: String,
}
