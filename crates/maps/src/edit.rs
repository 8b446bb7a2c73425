//! Changes to a map, made to a private copy before they are published.
//!
//! # Invariants
//!
//! `mappings` is sorted and free of overlaps after every operation, including refused ones.

use std::ops::{Range, RangeBounds};

use crate::error::EditError;
use crate::mapping::{Extent, Mapping};

/// The treatment of mappings that a new one overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// The new mapping is refused.
    Reject,
    /// They are removed, including the parts beyond the new one.
    Replace,
    /// They are cut: the parts beyond the new one stay, with their value.
    ///
    /// So a value should not depend on where its mapping begins. Describe a file's mapping, for
    /// example, by address minus file offset instead of by the offset of its first byte.
    Split,
}

/// The changes of one [`RangeMap::update`](crate::RangeMap::update): readers see all of them or
/// none.
#[derive(Debug)]
pub struct Edit<V> {
    mappings: Vec<Mapping<V>>,
    changed: bool,
    /// The addresses about which answers could be wrong now lie in it.
    outdated: Option<Extent>,
    /// First address of the mapping that was inserted last.
    inserted: Option<u64>,
}

impl<V: Copy> Edit<V> {
    pub(crate) fn of(mappings: Vec<Mapping<V>>) -> Self {
        Self { mappings, changed: false, outdated: None, inserted: None }
    }

    /// Adds a mapping.
    pub fn insert(
        &mut self,
        range: impl RangeBounds<u64>,
        value: V,
        overlap: Overlap,
    ) -> Result<(), EditError> {
        let extent = Extent::of(&range)?;
        let there = self.overlapping(extent);
        if overlap == Overlap::Reject {
            Self::refuse(extent, self.mappings[there.clone()].first())?;
        }
        let new = Mapping { start: extent.start, last: extent.last, value };
        self.splice(there, extent, Some(new), overlap == Overlap::Split);
        self.inserted = Some(extent.start);
        Ok(())
    }

    /// Removes all of `range`, and cuts mappings that reach beyond it. Returns how many mappings
    /// that affects.
    pub fn remove(&mut self, range: impl RangeBounds<u64>) -> Result<usize, EditError> {
        let extent = Extent::of(&range)?;
        let there = self.overlapping(extent);
        let touched = there.len();
        if touched > 0 {
            self.splice(there, extent, None, true);
        }
        Ok(touched)
    }

    /// Extends the one mapping that lies inside `range` to all of it.
    ///
    /// Unlike removing and inserting it again, this makes no cached answer stale: each is still
    /// true of a part of the mapping. It is refused if no mapping lies inside, or if another one
    /// overlaps the range.
    pub fn grow(&mut self, range: impl RangeBounds<u64>) -> Result<(), EditError> {
        let extent = Extent::of(&range)?;
        let there = self.overlapping(extent);
        let (Extent { start, last }, mappings) = (extent, &mut self.mappings[there]);
        let Some(inside) = mappings.iter().position(|mapping| extent.encloses(mapping)) else {
            return Err(EditError::Absent { start, last });
        };
        Self::refuse(extent, mappings.iter().enumerate().find(|&(at, _)| at != inside).map(|(_, m)| m))?;
        self.changed |= (mappings[inside].start, mappings[inside].last) != (start, last);
        (mappings[inside].start, mappings[inside].last) = (start, last);
        Ok(())
    }

    /// Takes away all mappings that overlap `extent`, whole, and puts `new`, which lies in it, in
    /// their place.
    pub(crate) fn replace(&mut self, extent: Extent, new: Option<Mapping<V>>) {
        debug_assert!(new.is_none_or(|new| extent.encloses(&new)));
        let there = self.overlapping(extent);
        self.splice(there, extent, new, false);
    }

    /// The mappings as they are after the changes so far, by address.
    pub(crate) fn mappings(&self) -> &[Mapping<V>] {
        &self.mappings
    }

    /// Whether there is something to publish.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    /// The addresses about which answers that were right could be wrong now lie in it.
    pub(crate) fn outdated(&self) -> Option<Extent> {
        self.outdated
    }

    /// The mapping that was inserted last, as far as later changes have left it at its first
    /// address.
    pub(crate) fn inserted(&self) -> Option<Mapping<V>> {
        let start = self.inserted?;
        let at = self.mappings.partition_point(|mapping| mapping.last < start);
        self.mappings.get(at).filter(|mapping| mapping.contains(start)).copied()
    }

    pub(crate) fn into_mappings(self) -> Vec<Mapping<V>> {
        self.mappings
    }

    /// Every answer about the mappings `there` could be wrong now, also about where they begin and
    /// end.
    fn outdate(&mut self, there: Range<usize>) {
        if let [first, ..] = self.mappings[there.clone()] {
            let extent = first.extent().hull(self.mappings[there.end - 1].extent());
            self.outdated = Some(self.outdated.map_or(extent, |before| before.hull(extent)));
        }
    }

    fn overlapping(&self, extent: Extent) -> Range<usize> {
        let from = self.mappings.partition_point(|mapping| mapping.last < extent.start);
        let count = self.mappings[from..].partition_point(|mapping| mapping.start <= extent.last);
        debug_assert!(
            self.mappings[from..from + count].iter().all(|mapping| mapping.extent().overlaps(extent))
        );
        from..from + count
    }

    fn refuse(extent: Extent, there: Option<&Mapping<V>>) -> Result<(), EditError> {
        there.map_or(Ok(()), |there| {
            Err(EditError::Overlaps {
                start: extent.start,
                last: extent.last,
                there_start: there.start,
                there_last: there.last,
            })
        })
    }

    /// Puts `new` in the place of the mappings `there`. If `keep`, the parts of them beyond
    /// `extent` stay.
    fn splice(&mut self, there: Range<usize>, extent: Extent, new: Option<Mapping<V>>, keep: bool) {
        self.changed = true;
        self.outdate(there.clone());
        let touched = &self.mappings[there.clone()];
        let before = touched
            .first()
            .filter(|mapping| keep && mapping.start < extent.start)
            .map(|mapping| Mapping { last: extent.start - 1, ..*mapping });
        let after = touched
            .last()
            .filter(|mapping| keep && mapping.last > extent.last)
            .map(|mapping| Mapping { start: extent.last + 1, ..*mapping });
        self.mappings.splice(there, before.into_iter().chain(new).chain(after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit() -> Edit<char> {
        let mut edit = Edit::of(Vec::new());
        edit.insert(10..20, 'a', Overlap::Reject).unwrap();
        edit.insert(20..30, 'b', Overlap::Reject).unwrap();
        Edit::of(edit.mappings)
    }

    fn shown(edit: &Edit<char>) -> Vec<(u64, u64, char)> {
        edit.mappings().iter().map(|m| (m.start, m.last, m.value)).collect()
    }

    #[test]
    fn each_policy_treats_overlaps_as_it_says() {
        let mut rejected = edit();
        let error = rejected.insert(15..25, 'x', Overlap::Reject).unwrap_err();
        assert_eq!(error, EditError::Overlaps { start: 15, last: 24, there_start: 10, there_last: 19 });
        assert_eq!((shown(&rejected), rejected.is_changed()), (shown(&edit()), false));

        let mut replaced = edit();
        replaced.insert(15..=15, 'x', Overlap::Replace).unwrap();
        assert_eq!(shown(&replaced), [(15, 15, 'x'), (20, 29, 'b')]);

        let mut split = edit();
        split.insert(15..=15, 'x', Overlap::Split).unwrap();
        assert_eq!(shown(&split), [(10, 14, 'a'), (15, 15, 'x'), (16, 19, 'a'), (20, 29, 'b')]);
        assert_eq!(split.outdated(), Some(Extent { start: 10, last: 19 }));
    }

    #[test]
    fn ends_of_address_space_can_be_cut_off() {
        let mut edit = Edit::of(Vec::new());
        edit.insert(.., 'a', Overlap::Reject).unwrap();
        edit.insert(u64::MAX..=u64::MAX, 'z', Overlap::Split).unwrap();
        edit.insert(0..=0, 'b', Overlap::Split).unwrap();
        assert_eq!(shown(&edit), [(0, 0, 'b'), (1, u64::MAX - 1, 'a'), (u64::MAX, u64::MAX, 'z')]);
        assert_eq!(edit.remove(..), Ok(3));
        assert!(edit.mappings().is_empty());
    }

    #[test]
    fn only_removing_outdates_answers() {
        let mut grown = edit();
        grown.grow(20..40).unwrap();
        grown.insert(50..60, 'c', Overlap::Split).unwrap();
        assert_eq!(grown.remove(100..), Ok(0));
        assert_eq!(shown(&grown), [(10, 19, 'a'), (20, 39, 'b'), (50, 59, 'c')]);
        assert_eq!((grown.is_changed(), grown.outdated()), (true, None));
        assert_eq!(
            grown.grow(10..45),
            Err(EditError::Overlaps { start: 10, last: 44, there_start: 20, there_last: 39 })
        );
        assert_eq!(grown.grow(52..55), Err(EditError::Absent { start: 52, last: 54 }));
        assert_eq!(grown.remove(15..35), Ok(2));
        assert_eq!(grown.outdated(), Some(Extent { start: 10, last: 39 }));
        let mut replaced = edit();
        let new = Mapping { start: 12, last: 15, value: 'x' };
        replaced.replace(Extent { start: 12, last: 15 }, Some(new));
        replaced.replace(Extent { start: 20, last: 20 }, None);
        assert_eq!(
            (shown(&replaced), replaced.outdated()),
            (vec![(12, 15, 'x')], Some(Extent { start: 10, last: 29 }))
        );
    }
}
