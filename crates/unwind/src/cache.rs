//! The memory of one thread: the rules of the addresses that it has met, and the ranges in which
//! they lie.
//!
//! The same callers come again and again: a service has some thousand call sites, and a stack of
//! thirty frames has most of them in common with the one before. So an address is first searched
//! here, by a hash of it. Only a new one is searched in the tables.

use std::cell::Cell;

use dormouse_maps::{Cache, CacheStats};

use crate::rule::PackedRule;
use crate::table::TableRef;

/// Places for addresses. With the ranges they take no more than a page.
const PLACES: usize = 120;

/// The upper bits of a key are the generation of the tables.
const ADDRESS_BITS: u32 = 47;

/// The memory of one thread, which its signal handler uses.
pub struct ThreadCache {
    pub(crate) ranges: Cache<TableRef>,
    rules: [Cell<(u64, u64)>; PLACES],
    hits: Cell<u64>,
    misses: Cell<u64>,
}

const _: () = assert!(size_of::<ThreadCache>() <= 4096);

/// The look-ups of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Addresses whose rule the thread had.
    pub rules: u64,
    /// Addresses that were searched in tables.
    pub searched: u64,
    /// Among these, those whose range the thread had.
    pub ranges: u64,
}

impl ThreadCache {
    /// Remembers nothing.
    pub const fn new() -> Self {
        Self {
            ranges: Cache::new(),
            // The key of no address: the rule of address 0 is never asked for.
            rules: [const { Cell::new((0, 0)) }; PLACES],
            hits: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    /// The rule of an address under a generation of the tables, from here or by `look`.
    #[inline(always)]
    pub(crate) fn rule(
        &self,
        address: u64,
        generation: u64,
        look: impl FnOnce() -> Option<PackedRule>,
    ) -> Option<PackedRule> {
        let key = address | generation << ADDRESS_BITS;
        let place = &self.rules[place_of(address)];
        let (known, rule) = place.get();
        if known == key {
            self.hits.set(self.hits.get() + 1);
            return Some(PackedRule::of_bits(rule));
        }
        self.misses.set(self.misses.get() + 1);
        let rule = look()?;
        place.set((key, rule.bits()));
        Some(rule)
    }

    /// Looks an address up as a walk does that finds a rule for it. Returns whether the thread had
    /// it: for measurements of the memory by recorded stacks.
    #[cfg(feature = "bench")]
    pub fn meet(&self, address: u64) -> bool {
        let hits = self.hits.get();
        self.rule(address, 0, || Some(PackedRule::UNKNOWN));
        self.hits.get() > hits
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

#[inline(always)]
fn place_of(address: u64) -> usize {
    // The upper half of a product with an odd number spreads addresses that differ in low bits.
    let hash = (address as u32).wrapping_mul(0x9e37_79b1);
    ((u64::from(hash) * PLACES as u64) >> 32) as usize
}
