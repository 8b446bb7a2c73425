//! `cancelled`: the requests that were cancelled lately, by where they waited and what dropped
//! them.

use serde::{Deserialize, Serialize};

use crate::verb::{Memory, Verb};
use crate::verbs::waits::HistogramRow;

/// Asks for the requests that were cancelled in the last minutes, while places were recorded; the
/// answer is [`CancelledRows`]. It does not start to record places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancelledRequest {}

impl Verb for CancelledRequest {
    const NAME: &'static str = "cancelled";
    const LACKS: &'static str = "does not know what cancels its requests";
    const MEMORY: Memory = Memory::bytes(4 * 1024 * 1024);
    type Answer = CancelledRows;
}

/// Answer to `cancelled`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancelledRows {
    /// The requests were cancelled within this time, in nanoseconds: the last five to ten minutes,
    /// or since places are recorded. Absent while they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    /// The requests by group, place, and the stack that dropped them. A row may come in two parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<CancelledRow>,
    /// The number of requests for which there was no row since places were first requested.
    #[serde(default)]
    pub no_room: u64,
}

/// Cancelled requests of a group that waited at the same place and were dropped by the same code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CancelledRow {
    /// The number of the group.
    pub group: u32,
    /// The state in which they were dropped.
    #[serde(default)]
    pub waited: WireWaited,
    /// The number of the [place](crate::PlaceRow) where they waited; absent if it is not known, or
    /// there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// At how many other places each of them waited.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_places: u32,
    /// The number of the [stack](crate::PlaceRow) that dropped them, from the drop to the thread's
    /// first function; absent if no future was dropped: the answer itself was that the client is
    /// gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
    /// Whether the thread that dropped them unwound by a panic.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub panicking: bool,
    /// The number of requests.
    pub requests: u64,
    /// How long ago the last one ended, in nanoseconds.
    pub last_ns: u64,
    /// The ages of those that began while times were taken.
    pub ages: HistogramRow,
    /// The trace of the oldest one, as 32 digits, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
}

/// The state in which a request was dropped; on the wire a letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum WireWaited {
    /// It awaited something.
    #[serde(rename = "a")]
    Awaiting,
    /// It was woken, and not polled yet.
    #[serde(rename = "r")]
    Runnable,
    /// It was never polled.
    #[serde(rename = "n")]
    NotBegun,
    /// Not known: it was polled last before times were taken, or no future was dropped. Also a
    /// state that only a newer agent has.
    #[default]
    #[serde(other, rename = "?")]
    Unknown,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let none = CancelledRow { group: 3, requests: 2, ..CancelledRow::default() };
        let json = serde_json::to_value(&none).unwrap();
        for absent in ["place", "more_places", "stack", "panicking", "trace_id"] {
            assert!(json.get(absent).is_none(), "{json}");
        }
        assert_eq!(serde_json::from_value::<CancelledRow>(json).unwrap(), none);
        assert_eq!(serde_json::from_str::<WireWaited>("\"x\"").unwrap(), WireWaited::Unknown);
    }
}
