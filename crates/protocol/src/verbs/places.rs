//! `places` and `wake-tasks`: the places where tasks wait, by number.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};

/// Lists the places where tasks wait, as far as they were taken; [`PlacesPart`] answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlacesRequest {
    /// The least number of the answer: 0, or `next` of a part for the next part.
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
    /// Wakers whose stack is not known, for their leaf's code has no frame pointers.
    #[serde(default)]
    pub unknown: u64,
    /// Stacks for which there was no room.
    #[serde(default)]
    pub no_room: u64,
    /// The `from` of the next part; absent: this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

/// A place where tasks wait.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlaceRow {
    /// Its number.
    pub number: u32,
    /// The stack, from the leaf to the poll of its task: one less than each return address.
    pub stack: Vec<u64>,
    /// The stack goes on: its outermost frames had no room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// Wakes each task that awaits something at a place that is not known, once, as any runtime may do:
/// their leaves take wakers again, and so they have places from then on. [`WokenTasks`] answers.
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
    /// How many were woken.
    pub woken: u64,
    /// Where the next part begins; `None`: all were looked at.
    #[serde(default)]
    pub next: Option<u64>,
}
