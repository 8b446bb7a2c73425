//! `events` and `count`: the events that groups can count, and those that they count for a client.

use serde::{Deserialize, Serialize};

use crate::verb::{Each, Memory, SHORT_ANSWER, Verb};

/// Lists the events that groups can count; the answer is [`Events`].
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

/// Makes groups count these events as long as the connection lasts. It replaces an earlier request
/// of the connection; the answer is [`CountAnswer`]. The agent counts CPU time as well, because
/// [`Stat`](crate::Stat) always contains it; without names it counts nothing. If one name is
/// unknown, the whole request is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountRequest {
    /// Names, as in [`Events`].
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
    /// All events by name, including those that the service cannot count here.
    pub events: Vec<EventInfo>,
}

/// An event that groups can count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct EventInfo {
    /// The event's name, such as `page-faults`.
    pub name: String,
    /// The unit of the event's values: `ns`, `bytes`, or `1` for occurrences.
    pub unit: String,
    /// The kind of unit that counts the event: `clock`, `software`, `hardware`, `user`, `alloc`.
    pub pmu: String,
    /// A note on what the count leaves out, if anything.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Why the service cannot count the event here; absent if it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// Answer to `count`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CountAnswer {
    /// The events that the service counts from now on, in the order of the request.
    pub counted: Vec<EventInfo>,
    /// Events that the service cannot count, each with its reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<EventInfo>,
}
