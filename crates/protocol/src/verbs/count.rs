//! `events` and `count`: what groups can count, and what they count for a client.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Lists what groups can count; [`Events`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventsRequest {}

impl Verb for EventsRequest {
    const NAME: &'static str = "events";
    const LACKS: &'static str = "lists no events";
    const MEMORY: Memory = Memory::SOME;
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    type Answer = Events;
}

/// Has groups count these events as long as the connection lasts, in place of those that it asked
/// for before; [`CountAnswer`] answers. The agent counts CPU time with them, because
/// [`Stat`](crate::Stat) always contains it; without names it counts nothing. A name that is no
/// event refuses all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountRequest {
    /// Names, as [`Events`] has them.
    pub events: Vec<String>,
}

impl Verb for CountRequest {
    const NAME: &'static str = "count";
    const LACKS: &'static str = "counts no events";
    const MEMORY: Memory = Memory::each(&[Each::Group]);
    const LONGEST_ANSWER: usize = SHORT_ANSWER;
    type Answer = CountAnswer;
}

/// Answer to `events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Events {
    /// Everything that has a name, also what the service cannot count here.
    pub events: Vec<EventInfo>,
}

/// An event that groups can count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventInfo {
    /// Its name, as `page-faults`.
    pub name: String,
    /// The unit of its values: `ns`, `bytes`, or `1` for occurrences.
    pub unit: String,
    /// The unit that counts it: `clock`, `software`, `hardware`, `user`, `alloc`.
    pub pmu: String,
    /// Its limits, where they are not plain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Why the service cannot count it here; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Answer to `count`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountAnswer {
    /// The events that the service counts from now on, in the order of the request.
    pub counted: Vec<EventInfo>,
    /// Events that it cannot count, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<EventInfo>,
}
