//! `places` and `wake-tasks`: the places where tasks wait, by number.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Lists the places where tasks wait, if places are recorded; the answer is [`PlacesPart`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlacesRequest {
    /// The lowest number in the answer: 0, or `next` of a part for the next part.
    #[serde(default)]
    pub from: u32,
}

impl Verb for PlacesRequest {
    const NAME: &'static str = "places";
    const LACKS: &'static str = "knows no places";
    const MEMORY: Memory = Memory::bytes(2 * 1024 * 1024);
    type Answer = PlacesPart;
}

/// Answer to `places`: some of the places, in order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlacesPart {
    /// The places.
    pub places: Vec<PlaceRow>,
    /// The number of wakers whose stack is unknown, because no rule leads to the caller of their
    /// leaf.
    #[serde(default)]
    pub unknown: u64,
    /// The number of wakers whose stack had functions of which the service had learned nothing yet.
    #[serde(default)]
    pub unlearned: u64,
    /// The number of stacks for which there was no room.
    #[serde(default)]
    pub no_room: u64,
    /// The `from` of the next part; absent in the last part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A place where tasks wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceRow {
    /// The place's number.
    pub number: u32,
    /// The stack from the leaf (the innermost future) to the poll of its task: each return address,
    /// minus one.
    pub stack: Vec<u64>,
    /// Whether frames are missing because there was no room: those behind the first `inner`, or the
    /// outermost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// How many frames of a stack that is cut lie before those that are missing; absent if the
    /// outermost are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<u32>,
    /// Whether the stack ends at a function whose caller is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// Wakes each task that awaits something at an unknown place, once, as any runtime may do: their
/// leaves take wakers again, so that they have places from then on. The answer is [`WokenTasks`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WakeTasksRequest {
    /// Where the part begins: 0, or `next` of the part before.
    #[serde(default)]
    pub from: u64,
}

impl Verb for WakeTasksRequest {
    const NAME: &'static str = "wake-tasks";
    const LACKS: &'static str = "does not wake tasks";
    const MEMORY: Memory = Memory::SOME;
    type Answer = WokenTasks;
}

/// Answer to `wake-tasks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WokenTasks {
    /// How many tasks were woken.
    pub woken: u64,
    /// Where the next part begins; absent if all tasks were visited.
    #[serde(default)]
    pub next: Option<u64>,
}
