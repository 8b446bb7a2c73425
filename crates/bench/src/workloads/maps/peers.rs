//! Maps to look an address up in, ours last; and the addresses.
//!
//! Maps of a size are the same for all peers: mappings of 1 to 64 pages with gaps of up to 16. So
//! are the addresses; each lies in a mapping.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwap;
use dormouse_maps::{Cache, Overlap, RangeMap};
use rangemap::RangeInclusiveMap;

use super::lookups::{Fault, Lookup, by};
use super::schemes::{Scheme, Vmacache};
use crate::runner::SplitMix64;

/// How look-ups go about a map.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pattern {
    /// They stay in a mapping for 33 look-ups on average, as a program counter does.
    Run,
    /// Nine of ten go to four mappings, in random order.
    Hot90,
    /// All go anywhere.
    Uniform,
}

pub(super) const PATTERNS: [(&str, Pattern); 3] =
    [("run", Pattern::Run), ("hot90", Pattern::Hot90), ("uniform", Pattern::Uniform)];

/// Addresses asked for before they come again: more than a branch predictor learns.
const ADDRESSES: usize = 1 << 15;
const PAGE: u64 = 4096;

/// A range of addresses and its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) range: Range<u64>,
    pub(super) value: u64,
}

impl Entry {
    pub(super) fn last(&self) -> u64 {
        self.range.end - 1
    }
}

/// `count` entries, in order of address.
pub(super) fn entries(count: usize) -> Vec<Entry> {
    let mut random = SplitMix64(1);
    let mut end = 0x7f00_0000_0000;
    (0..count as u64)
        .map(|value| {
            let start = end + random.next() % 17 * PAGE;
            end = start + (1 + random.next() % 64) * PAGE;
            Entry { range: start..end, value }
        })
        .collect()
}

/// The look-ups of one thread, one after the other.
pub(super) fn faults(pattern: Pattern, entries: &[Entry]) -> Vec<Fault> {
    let mut random = SplitMix64(2);
    let mut below = |bound: u64| random.next() % bound;
    let hot: Vec<usize> = (0..4).map(|_| below(entries.len() as u64) as usize).collect();
    let mut at = 0;
    (0..ADDRESSES)
        .map(|_| {
            let anywhere = below(entries.len() as u64) as usize;
            at = match pattern {
                Pattern::Run if below(33) > 0 => at,
                Pattern::Hot90 if below(10) > 0 => hot[below(4) as usize],
                Pattern::Run | Pattern::Hot90 | Pattern::Uniform => anywhere,
            };
            let Range { start, end } = entries[at].range;
            (0, start + below(end - start))
        })
        .collect()
}

/// A sorted array that is searched by halves: first addresses apart, so that a search touches few
/// lines.
#[derive(Debug, Clone)]
pub(super) struct Sorted {
    starts: Vec<u64>,
    rest: Vec<(u64, u64)>,
}

impl Sorted {
    pub(super) fn of(entries: &[Entry]) -> Self {
        Self {
            starts: entries.iter().map(|entry| entry.range.start).collect(),
            rest: entries.iter().map(|entry| (entry.last(), entry.value)).collect(),
        }
    }

    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u64> {
        let (last, value) = *self.rest.get(self.at(addr)?)?;
        (addr <= last).then_some(value)
    }

    /// Gives the mapping of `addr` another value.
    pub(super) fn set(&mut self, addr: u64, value: u64) {
        if let Some(entry) = self.at(addr).and_then(|at| self.rest.get_mut(at)) {
            entry.1 = value;
        }
    }

    #[inline]
    fn at(&self, addr: u64) -> Option<usize> {
        self.starts.partition_point(|&start| start <= addr).checked_sub(1)
    }
}

/// A tree by first addresses.
pub(super) type Tree = BTreeMap<u64, (u64, u64)>;

pub(super) fn tree(entries: &[Entry]) -> Tree {
    entries.iter().map(|entry| (entry.range.start, (entry.last(), entry.value))).collect()
}

#[inline]
pub(super) fn find_in_tree(tree: &Tree, addr: u64) -> Option<u64> {
    let (_, &(last, value)) = tree.range(..=addr).next_back()?;
    (addr <= last).then_some(value)
}

/// Ours, of these entries.
pub(super) fn range_map(entries: &[Entry]) -> RangeMap<u64> {
    let map = RangeMap::new();
    // A refused entry makes answers wrong, and those are compared.
    let _ = map.update(|edit| {
        entries.iter().try_for_each(|entry| edit.insert(entry.range.clone(), entry.value, Overlap::Reject))
    });
    map
}

#[inline]
pub(super) fn find_in_range_map(map: &RangeMap<u64>, cache: &Cache<u64>, addr: u64) -> Option<u64> {
    map.find_cached(cache, addr).ok().flatten().map(|mapping| mapping.value)
}

/// Makes a map of entries, for one thread.
pub(super) type New = fn(&[Entry]) -> Lookup<'static>;

pub(super) const PEERS: [(&str, New); 7] = [
    ("sorted", sorted),
    ("btreemap", |entries| {
        let map = tree(entries);
        by(move |addr| find_in_tree(&map, addr))
    }),
    ("rangemap", |entries| {
        let ranges = entries.iter().map(|entry| (entry.range.start..=entry.last(), entry.value));
        let map: RangeInclusiveMap<u64, u64> = ranges.collect();
        by(move |addr| map.get(&addr).copied())
    }),
    ("vmacache", |entries| {
        let mut map = Vmacache::<false>::default();
        map.process(None);
        map.thread(0);
        for entry in entries {
            map.map(0, entry.range.start, entry.last(), entry.value);
        }
        Box::new(move |faults, answers| map.look_up(faults, answers))
    }),
    ("arc-swap", |entries| {
        let map = ArcSwap::from_pointee(Sorted::of(entries));
        by(move |addr| map.load().find(addr))
    }),
    ("arc-swap-cache", |entries| {
        let mut cache = arc_swap::Cache::new(Arc::new(ArcSwap::from_pointee(Sorted::of(entries))));
        by(move |addr| cache.load().find(addr))
    }),
    ("dormouse", |entries| {
        let (map, cache) = (range_map(entries), Box::new(Cache::new()));
        by(move |addr| find_in_range_map(&map, &cache, addr))
    }),
];

pub(super) fn sorted(entries: &[Entry]) -> Lookup<'static> {
    let map = Sorted::of(entries);
    by(move |addr| map.find(addr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_peers_give_the_same_answers() {
        let entries = entries(100);
        for (_, pattern) in PATTERNS {
            let faults = faults(pattern, &entries);
            let right = sorted(&entries)(&faults, 0);
            for (peer, new) in PEERS {
                let mut look_up = new(&entries);
                // Once more, with warm caches.
                assert_eq!([(); 2].map(|()| look_up(&faults, 0)), [right; 2], "{peer}");
            }
        }
    }
}
