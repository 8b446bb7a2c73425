//! A mapping: addresses from `start` to `last`, both included, and their value.
//!
//! `last` is included because no number is the end of a range that reaches to the end of the
//! address space.

use std::ops::{Bound, RangeBounds};

use crate::error::EditError;

/// A range of addresses and their value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mapping<V> {
    /// First address.
    pub start: u64,
    /// Last address, included.
    pub last: u64,
    /// The value of these addresses.
    pub value: V,
}

impl<V> Mapping<V> {
    /// Whether the mapping contains `addr`.
    #[inline]
    pub fn contains(&self, addr: u64) -> bool {
        self.start <= addr && addr <= self.last
    }

    pub(crate) fn extent(&self) -> Extent {
        Extent { start: self.start, last: self.last }
    }
}

/// A range of at least one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) last: u64,
}

impl Extent {
    pub(crate) fn of(range: &impl RangeBounds<u64>) -> Result<Self, EditError> {
        let start = match range.start_bound() {
            Bound::Included(&start) => Some(start),
            Bound::Excluded(&before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let last = match range.end_bound() {
            Bound::Included(&last) => Some(last),
            Bound::Excluded(&end) => end.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        match (start, last) {
            (Some(start), Some(last)) if start <= last => Ok(Self { start, last }),
            _ => {
                let start = start.unwrap_or(u64::MAX);
                Err(EditError::Empty { start, end: last.map_or(0, |last| last.saturating_add(1)) })
            }
        }
    }

    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// From the lower first address to the higher last one.
    pub(crate) fn hull(self, other: Self) -> Self {
        Self { start: self.start.min(other.start), last: self.last.max(other.last) }
    }

    /// Whether all of `mapping` lies in it.
    pub(crate) fn encloses<V>(&self, mapping: &Mapping<V>) -> bool {
        self.start <= mapping.start && mapping.last <= self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_range_has_two_ends() {
        let extent = |range: &dyn Fn() -> Result<Extent, EditError>| range().map(|e| (e.start, e.last));
        assert_eq!(extent(&|| Extent::of(&(1..3))), Ok((1, 2)));
        assert_eq!(extent(&|| Extent::of(&(1..=3))), Ok((1, 3)));
        assert_eq!(extent(&|| Extent::of(&..)), Ok((0, u64::MAX)));
        assert_eq!(extent(&|| Extent::of(&(u64::MAX..=u64::MAX))), Ok((u64::MAX, u64::MAX)));
        assert_eq!(extent(&|| Extent::of(&(Bound::Excluded(1), Bound::Unbounded::<u64>))), Ok((2, u64::MAX)));
    }

    #[test]
    fn empty_range_is_refused() {
        assert_eq!(Extent::of(&(5..5)), Err(EditError::Empty { start: 5, end: 5 }));
        assert_eq!(Extent::of(&(0..0)), Err(EditError::Empty { start: 0, end: 0 }));
        assert!(Extent::of(&(Bound::Excluded(u64::MAX), Bound::Unbounded::<u64>)).is_err());
        #[allow(clippy::reversed_empty_ranges)]
        let reversed = Extent::of(&(7..=3));
        assert_eq!(reversed, Err(EditError::Empty { start: 7, end: 4 }));
    }
}
