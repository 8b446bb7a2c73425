//! The places where tasks wait, by number.

use dormouse_waits::places::Place;
use serde::{Deserialize, Serialize};

/// Answer to `places`: some of the places, in order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
pub struct PlaceRow {
    /// Its number.
    pub number: u32,
    /// The stack, from the leaf to the poll of its task: one less than each return address.
    pub stack: Vec<u64>,
    /// The stack goes on: its outermost frames had no room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

impl From<Place> for PlaceRow {
    fn from(Place { number, stack, is_cut }: Place) -> Self {
        Self { number, stack, cut: is_cut }
    }
}

/// Answer to `wake-tasks`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WokenTasks {
    /// How many were woken.
    pub woken: u64,
    /// Where the next part begins; `None`: all were looked at.
    #[serde(default)]
    pub next: Option<u64>,
}
