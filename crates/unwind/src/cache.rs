//! The memory of one thread: the rules of the addresses that it has met, and the ranges in which
//! they lie.
//!
//! The same callers come again and again: a service has some thousand call sites, and a stack of
//! thirty frames has most of them in common with the one before. So an address is first searched
//! here, by a hash of it. Only a new one is searched in the tables.

use std::cell::Cell;

use dormouse_maps::{Cache, CacheStats};

use crate::rule::FrameRule;
use crate::short::ShortRule;
use crate::table::TableRef;

/// An address is in one of the places of its set, the one that was met last first. With the ranges
/// they take no more than a page.
const SETS: usize = 60;
const WAYS: usize = 4;

/// The bits of a place below the address: the number of its rule.
const RULE_BITS: u32 = u16::BITS;

/// The memory of one thread, which its signal handler uses.
pub struct ThreadCache {
    pub(crate) ranges: Cache<TableRef>,
    /// Zero where there is none.
    rules: [[Cell<u64>; WAYS]; SETS],
    /// The generation of the tables by which the rules were found.
    generation: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

const _: () = assert!(size_of::<ThreadCache>() <= 4096);

/// The look-ups of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Addresses whose rule the thread had.
    pub rules: u64,
    /// Addresses whose rule was found in tables.
    pub searched: u64,
    /// Among these, those whose range the thread had.
    pub ranges: u64,
}

impl ThreadCache {
    /// An empty cache.
    pub const fn new() -> Self {
        Self {
            ranges: Cache::new(),
            rules: [const { [const { Cell::new(0) }; WAYS] }; SETS],
            generation: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    /// Forgets the rules of another generation of the tables than this one.
    #[inline]
    pub(crate) fn renew(&self, generation: u64) {
        if self.generation.replace(generation) != generation {
            self.rules.iter().flatten().for_each(|place| place.set(0));
        }
    }

    /// The rule of an address, if the thread remembers it.
    #[inline(always)]
    pub(crate) fn known(&self, address: u64) -> Option<ShortRule> {
        let set = &self.rules[set_of(address)];
        let is_of = |known: u64| known >> RULE_BITS == address && known != 0;
        let mut known = set[0].get();
        if !is_of(known) {
            let way = (1..WAYS).find(|&way| is_of(set[way].get()))?;
            known = set[way].get();
            put_first(set, way, known);
        }
        self.hits.set(self.hits.get() + 1);
        Some(ShortRule(known as u16))
    }

    /// Remembers the rule of an address, which has been searched for.
    pub(crate) fn remember(&self, address: u64, rule: FrameRule) {
        self.misses.set(self.misses.get() + 1);
        if let (Some(ShortRule(number)), 0) = (ShortRule::of(rule), address >> (u64::BITS - RULE_BITS)) {
            put_first(&self.rules[set_of(address)], WAYS - 1, address << RULE_BITS | u64::from(number));
        }
    }

    /// Looks an address up as a walk does that finds a rule for it. Returns whether the thread had
    /// it: for measurements of the memory by recorded stacks.
    #[cfg(feature = "bench")]
    pub fn meet(&self, address: u64) -> bool {
        let is_known = self.known(address).is_some();
        if !is_known {
            self.remember(address, FrameRule::Unknown);
        }
        is_known
    }

    /// The counts so far.
    pub fn counts(&self) -> CacheCounts {
        let CacheStats { hits, .. } = self.ranges.stats();
        CacheCounts { rules: self.hits.get(), searched: self.misses.get(), ranges: hits }
    }
}

impl Default for ThreadCache {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ThreadCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.counts().fmt(f)
    }
}

/// Puts `known` into the first place, and those before `way` one place on.
#[inline(always)]
fn put_first(set: &[Cell<u64>; WAYS], way: usize, known: u64) {
    let mut next = known;
    for place in &set[..=way] {
        next = place.replace(next);
    }
}

#[inline(always)]
fn set_of(address: u64) -> usize {
    // The upper half of a product with an odd number spreads addresses that differ in low bits.
    let hash = (address as u32).wrapping_mul(0x9e37_79b1);
    ((u64::from(hash) * SETS as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(cache: &ThreadCache, address: u64) -> bool {
        let known = cache.known(address);
        match known {
            Some(known) => assert_eq!(known.rule(), FrameRule::LINK),
            None => cache.remember(address, FrameRule::LINK),
        }
        known.is_some()
    }

    /// Addresses that share a set.
    fn of_one_set() -> Vec<u64> {
        (1..).filter(|&address| set_of(address) == 7).take(WAYS + 1).collect()
    }

    #[test]
    fn the_addresses_met_last_stay() {
        let cache = ThreadCache::new();
        let all = of_one_set();
        let (new, old) = all.split_last().unwrap();
        assert!(old.iter().all(|&address| !look(&cache, address)));
        assert!(look(&cache, old[0]));
        // The second is now the one that was met longest ago.
        assert!(!look(&cache, *new));
        assert!(look(&cache, old[0]) && !look(&cache, old[1]));
    }

    #[test]
    fn another_generation_has_none() {
        let cache = ThreadCache::new();
        cache.renew(1);
        assert!(!look(&cache, 0x1000) && look(&cache, 0x1000));
        cache.renew(1);
        assert!(look(&cache, 0x1000));
        cache.renew(2);
        assert!(!look(&cache, 0x1000));
    }

    #[test]
    fn no_address_is_taken_for_an_empty_place() {
        let cache = ThreadCache::new();
        assert!(!look(&cache, 0));
        // Too high to be remembered.
        assert!(!look(&cache, u64::MAX) && !look(&cache, u64::MAX));
    }
}
