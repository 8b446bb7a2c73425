//! Why a map has no answer, and why it refuses a change. Neither changes the map.

/// All reader slots are taken. This look-up has no answer; the address may be mapped.
///
/// A look-up holds a slot for the time of one search. So this takes as many threads or signal
/// handlers as there are slots, all interrupted in the middle of a search at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer: all {slots} reader slots are taken by searches under way; try again")]
pub struct NoSlot {
    /// The total number of slots.
    pub slots: usize,
}

/// Why a change was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The range holds no address.
    #[error("the range {start:#x} to {end:#x} (excluded) holds no address")]
    Empty {
        /// First address.
        start: u64,
        /// The address after the last.
        end: u64,
    },
    /// A mapping is there, and the caller asked for [`Overlap::Reject`](crate::Overlap::Reject).
    #[error(
        "the range {start:#x} to {last:#x} overlaps the mapping {there_start:#x} to {there_last:#x}; \
         remove it first, or insert by Overlap::Replace or Overlap::Split"
    )]
    Overlaps {
        /// First address of the refused range.
        start: u64,
        /// The last address of the range.
        last: u64,
        /// First address of the lowest mapping that is in the way.
        there_start: u64,
        /// The last address of the existing mapping.
        there_last: u64,
    },
    /// The mapping that should grow is not there.
    #[error("no mapping lies inside the range {start:#x} to {last:#x}, so none can grow to it; insert it")]
    Absent {
        /// First address of the range.
        start: u64,
        /// The last address of the range.
        last: u64,
    },
}
