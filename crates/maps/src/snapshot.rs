//! An immutable map: sorted mappings, and a search tree of their first addresses.
//!
//! The tree lies in heap order, the children of `i` at `2 i` and `2 i + 1`, and is full: all
//! searches take the same number of steps, no branch depends on what they read, and in each step
//! the carry of a comparison selects the child. This takes nine tenths of the time of the standard
//! library's search in a sorted array, and less when the next look-up depends on the result.
//!
//! # Invariants
//!
//! 1. `mappings` are sorted and do not overlap.
//! 2. The number of places of `tree` is a power of two and at least the number of mappings. The
//!    first is unused; read from right to left the others are the first addresses of all mappings
//!    but the lowest, and after them `u64::MAX`.

use crate::arch;
use crate::mapping::Mapping;

/// The mappings at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot<V> {
    tree: Box<[u64]>,
    mappings: Box<[Mapping<V>]>,
}

impl<V: Copy> Snapshot<V> {
    /// A snapshot of mappings that are sorted and do not overlap.
    pub(crate) fn new(mappings: Vec<Mapping<V>>) -> Self {
        debug_assert!(mappings.windows(2).all(|pair| pair[0].last < pair[1].start));
        let places = mappings.len().next_power_of_two();
        let mut tree = vec![u64::MAX; places].into_boxed_slice();
        for level in 0..places.trailing_zeros() {
            // The ranks of the mappings on this level, from its right.
            let ranks = (places >> (level + 1)..).step_by(places >> level);
            let nodes = &mut tree[1 << level..2 << level];
            for (node, mapping) in nodes.iter_mut().rev().zip(ranks.map_while(|rank| mappings.get(rank))) {
                *node = mapping.start;
            }
        }
        Self { tree, mappings: mappings.into_boxed_slice() }
    }

    /// All of them, by address.
    pub(crate) fn mappings(&self) -> &[Mapping<V>] {
        &self.mappings
    }

    /// The mapping that `addr` lies in.
    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<Mapping<V>> {
        let &Mapping { start, last, value } = self.mappings.get(self.at(addr))?;
        (start <= addr && addr <= last).then_some(Mapping { start, last, value })
    }

    /// The index of the last mapping that begins at or below `addr`; of the first if none does.
    #[inline]
    fn at(&self, addr: u64) -> usize {
        let mut at = 1;
        while at < self.tree.len() {
            at = arch::below(at, addr, self.tree[at]);
        }
        // Below the tree now, as many places from the left as there are first addresses above
        // `addr`. No address is above the last one, so there the fillers count too.
        (2 * self.tree.len() - 1 - at).min(self.mappings.len().saturating_sub(1))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_at_both_ends() {
        let mapping = |start, last| Mapping { start, last, value: start };
        let all = [mapping(0, 0), mapping(10, 19), mapping(20, 29), mapping(u64::MAX, u64::MAX)];
        let snapshot = Snapshot::new(all.to_vec());
        for mapping in all {
            assert_eq!(snapshot.find(mapping.start), Some(mapping));
            assert_eq!(snapshot.find(mapping.last), Some(mapping));
        }
        for addr in [1, 9, 30, u64::MAX - 1] {
            assert_eq!(snapshot.find(addr), None);
        }
        assert_eq!(snapshot.mappings(), all);
        let empty = Snapshot::<u64>::new(Vec::new());
        assert_eq!((empty.find(0), empty.find(u64::MAX)), (None, None));
    }

    #[test]
    fn each_mapping_is_found_among_any_number() {
        for count in 0..70 {
            let all: Vec<_> =
                (0..count).map(|n| Mapping { start: 10 * n + 5, last: 10 * n + 9, value: n }).collect();
            let snapshot = Snapshot::new(all.clone());
            for addr in (0..10 * count + 10).chain([u64::MAX]) {
                let right = all.iter().copied().find(|mapping| mapping.contains(addr));
                assert_eq!(snapshot.find(addr), right, "{addr} among {count}");
            }
        }
    }
}
