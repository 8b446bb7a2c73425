//! The cache of one thread: copies of answers, so that most look-ups search nothing.
//!
//! Two parts. The *last* answer is looked at first: programs stay where they are. Behind it a table of
//! sets by larger page (2 MiB): libraries, heap and stacks lie apart, pieces of one library close together, so a
//! set holds neighbours and a look-up goes through one set. An entry is a mapping, not a page: it
//! answers for pages that nobody has asked for before.
//!
//! # Invariants
//!
//! 1. An entry's answer was looked up after its tag was read. While the map still shows that tag, nothing that could
//!    make the answer wrong has been published, so a hit is true at the moment at which it reads the tag.
//! 2. While `busy`, nobody but the look-up that set it touches the entries: a signal handler that comes in the
//!    middle of one goes round the cache.
//!
//! # Adaptation
//!
//! A cache only pays where it answers. After [`WINDOW`] misses that had less than one hit for every two of
//! them, look-ups that the last answer does not fit go round it [`REST`] times before it is tried again.
//!
//! # Async-signal-safety
//!
//! No allocation, no lock. A `const` thread-local of it needs no initialiser and leaves nothing behind.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::generation::Tag;
use crate::{Generation, Mapping, NoSlot, RangeMap};

/// Sets of the table.
const SETS: usize = 16;
/// Entries of a set.
const WAYS: usize = 4;
/// Addresses that belong to one set go by pages of that many bits.
const SET_BITS: u32 = 21;
/// The way within a set goes by pages of that many bits.
const WAY_BITS: u32 = 12;
/// Misses after which it is asked whether the cache pays.
const WINDOW: u64 = 64;
/// Look-ups for which it then rests.
const REST: u32 = 4096;

/// What a cache has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Answers from the cache.
    pub hits: u64,
    /// Look-ups that went on to the map because nothing fitted; stale ones included.
    pub misses: u64,
    /// Misses where an answer was there, of a generation that is over.
    pub stale: u64,
    /// Look-ups that went round the cache: while it rests, while the map changes, from a signal handler in the
    /// middle of another look-up.
    pub bypassed: u64,
}

/// Copies of answers, for one thread and any number of maps.
///
/// Put it into a thread-local, or wherever one thread looks things up. Maps that share it take entries from one
/// another but never get one another's answers.
pub struct Cache<V, G: Generation = u64> {
    busy: Cell<bool>,
    rest: Cell<u32>,
    /// Index of the entry that answered last.
    last: Cell<usize>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    stale: Cell<u64>,
    bypassed: Cell<u64>,
    hits_before: Cell<u64>,
    entries: [Entry<V, G>; SETS * WAYS],
}

/// An answer and the tag under which it was looked up; empty for map 0.
struct Entry<V, G> {
    start: Cell<u64>,
    /// `last - start`: one comparison tells whether an address is in it.
    reach: Cell<u64>,
    map: Cell<u64>,
    generation: Cell<G>,
    value: Cell<Option<V>>,
}

impl<V: Copy, G: Generation> Entry<V, G> {
    const fn empty() -> Self {
        Self {
            start: Cell::new(0),
            reach: Cell::new(0),
            map: Cell::new(0),
            generation: Cell::new(G::FIRST),
            value: Cell::new(None),
        }
    }

    #[inline]
    fn covers(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start.get()) <= self.reach.get()
    }

    #[inline]
    fn is_of(&self, tag: Tag<G>) -> bool {
        self.map.get() == tag.map && self.generation.get() == tag.generation
    }

    #[inline]
    fn answer(&self, addr: u64, tag: Tag<G>) -> Option<Mapping<V>> {
        if !self.covers(addr) || !self.is_of(tag) {
            return None;
        }
        let start = self.start.get();
        self.value.get().map(|value| Mapping { start, last: start + self.reach.get(), value })
    }

    fn fill(&self, mapping: &Mapping<V>, tag: Tag<G>) {
        self.start.set(mapping.start);
        self.reach.set(mapping.last - mapping.start);
        self.map.set(tag.map);
        self.generation.set(tag.generation);
        self.value.set(Some(mapping.value));
    }
}

impl<V: Copy, G: Generation> Cache<V, G> {
    /// An empty cache.
    pub const fn new() -> Self {
        Self {
            busy: Cell::new(false),
            rest: Cell::new(0),
            last: Cell::new(0),
            hits: Cell::new(0),
            misses: Cell::new(0),
            stale: Cell::new(0),
            bypassed: Cell::new(0),
            hits_before: Cell::new(0),
            entries: [const { Entry::empty() }; SETS * WAYS],
        }
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            stale: self.stale.get(),
            bypassed: self.bypassed.get(),
        }
    }

    #[inline]
    pub(crate) fn find(&self, addr: u64, map: &RangeMap<V, G>) -> Result<Option<Mapping<V>>, NoSlot> {
        // Read before the look-up (invariant 1). No entry bears a closed one, so it need not be open here.
        let tag = map.tag();
        if !self.busy.get() {
            self.busy.set(true);
            // The only other party is a signal handler of this thread: the compiler's order is enough.
            compiler_fence(Ordering::SeqCst);
            // The mask tells the compiler that the index is in bounds.
            let last = self.entries[self.last.get() & (SETS * WAYS - 1)].answer(addr, tag);
            compiler_fence(Ordering::SeqCst);
            self.busy.set(false);
            if last.is_some() {
                self.hits.set(self.hits.get() + 1);
                return Ok(last);
            }
        }
        self.look_further(addr, tag, map)
    }

    /// In the table, then in the map.
    #[inline(never)]
    fn look_further(
        &self,
        addr: u64,
        tag: Tag<G>,
        map: &RangeMap<V, G>,
    ) -> Result<Option<Mapping<V>>, NoSlot> {
        if self.busy.get() || self.rest.get() > 0 || !tag.is_open() {
            // A handler's count may be lost to the look-up that it interrupts; entries are not touched.
            self.bypassed.set(self.bypassed.get() + 1);
            self.rest.set(self.rest.get().saturating_sub(1));
            return map.find(addr);
        }
        self.busy.set(true);
        compiler_fence(Ordering::SeqCst);
        let answer = self.in_table(addr, tag, map);
        compiler_fence(Ordering::SeqCst);
        self.busy.set(false);
        answer
    }

    /// Only under `busy`.
    #[inline]
    fn in_table(&self, addr: u64, tag: Tag<G>, map: &RangeMap<V, G>) -> Result<Option<Mapping<V>>, NoSlot> {
        let set = (addr >> SET_BITS) as usize % SETS * WAYS;
        let entries = &self.entries[set..set + WAYS];
        let mut stale = false;
        for (way, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.covers(addr)) {
            if let Some(mapping) = entry.answer(addr, tag) {
                self.hits.set(self.hits.get() + 1);
                self.last.set(set + way);
                return Ok(Some(mapping));
            }
            stale |= entry.map.get() == tag.map;
        }
        self.misses.set(self.misses.get() + 1);
        self.stale.set(self.stale.get() + u64::from(stale));
        self.rest_if_useless();
        let answer = map.find(addr)?;
        if let Some(mapping) = &answer {
            let way = (addr >> WAY_BITS) as usize % WAYS;
            entries[way].fill(mapping, tag);
            self.last.set(set + way);
        }
        Ok(answer)
    }

    fn rest_if_useless(&self) {
        if self.misses.get().is_multiple_of(WINDOW) {
            let hits = self.hits.get();
            if hits - self.hits_before.replace(hits) < WINDOW / 2 {
                self.rest.set(REST);
            }
        }
    }
}

impl<V, G: Generation> fmt::Debug for Cache<V, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("hits", &self.hits.get())
            .field("misses", &self.misses.get())
            .finish_non_exhaustive()
    }
}

impl<V: Copy, G: Generation> Default for Cache<V, G> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EditError, Overlap};

    const PAGE: u64 = 1 << WAY_BITS;

    /// Every second page is a mapping that bears its number.
    fn map<G: Generation>(pages: u64) -> RangeMap<u64, G> {
        let map = RangeMap::new();
        map.update(|edit| {
            (0..pages).step_by(2).try_for_each(|n| edit.insert(n * PAGE..(n + 1) * PAGE, n, Overlap::Reject))
        })
        .unwrap();
        map
    }

    fn value<G: Generation>(map: &RangeMap<u64, G>, cache: &Cache<u64, G>, addr: u64) -> Option<u64> {
        map.find_cached(cache, addr).unwrap().map(|mapping| mapping.value)
    }

    #[test]
    fn the_second_look_up_of_a_mapping_is_a_hit_also_on_another_address() {
        let (map, cache) = (map::<u64>(4), Cache::new());
        assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
        assert_eq!(value(&map, &cache, 3 * PAGE - 1), Some(2));
        assert_eq!(value(&map, &cache, 0), Some(0));
        assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
        assert_eq!(cache.stats(), CacheStats { hits: 2, misses: 2, stale: 0, bypassed: 0 });
    }

    #[test]
    fn nothing_there_is_never_remembered() {
        let (map, cache) = (map::<u64>(2), Cache::new());
        assert_eq!(value(&map, &cache, PAGE), None);
        map.update(|edit| edit.insert(PAGE..2 * PAGE, 1, Overlap::Reject)).unwrap();
        assert_eq!(value(&map, &cache, PAGE), Some(1));
    }

    #[test]
    fn one_bump_makes_all_entries_stale_and_touches_none_of_them() {
        let (map, cache) = (map::<u64>(4), Cache::new());
        for n in [0, 2] {
            assert_eq!(value(&map, &cache, n * PAGE), Some(n));
        }
        let tags = || cache.entries.iter().map(|entry| entry.generation.get()).collect::<Vec<_>>();
        let before = (tags(), cache.stats().stale);
        map.invalidate();
        assert_eq!((tags(), cache.stats().stale), before);
        for n in [0, 2] {
            assert_eq!(value(&map, &cache, n * PAGE), Some(n));
        }
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 4, stale: 2, bypassed: 0 });
    }

    #[test]
    fn eight_bits_come_round_and_no_old_answer_comes_back() {
        let (map, old, used) = (RangeMap::<u64, u8>::new(), Cache::new(), Cache::new());
        let put = |value| map.update(|edit| edit.insert(0..PAGE, value, Overlap::Replace)).unwrap();
        put(0);
        // Of every generation of the first round one entry is left in a cache that is not asked again until
        // that generation has come round.
        let kept: Vec<Cache<u64, u8>> = (0..255)
            .map(|n| {
                put(n);
                let cache = Cache::new();
                assert_eq!(value(&map, &cache, 0), Some(n));
                cache
            })
            .collect();
        assert_eq!(value(&map, &old, 0), Some(254));
        for n in 255_u64..1024 {
            put(n);
            assert_eq!(value(&map, &used, 0), Some(n));
            for cache in &kept {
                // Only a peek: a look-up would fill it anew.
                let hit = cache.entries.iter().any(|entry| entry.answer(0, map.tag()).is_some());
                assert!(!hit, "an answer of an earlier round counts again in update {n}");
            }
        }
        assert_eq!(value(&map, &old, 0), Some(1023));
    }

    #[test]
    fn maps_that_share_a_cache_get_their_own_answers() {
        let cache = Cache::<u64>::new();
        let maps: Vec<RangeMap<u64>> = (0..5)
            .map(|n| {
                let map = RangeMap::new();
                map.update(|edit| edit.insert(0..PAGE, n, Overlap::Reject)).unwrap();
                map
            })
            .collect();
        for _ in 0..3 {
            for (n, map) in (0..).zip(&maps) {
                assert_eq!(value(map, &cache, 7), Some(n));
                assert_eq!(value(map, &cache, 8), Some(n));
            }
        }
        assert!(cache.stats().hits >= 15);
    }

    #[test]
    fn a_dropped_maps_entries_answer_for_no_other_map() {
        let cache = Cache::<u64>::new();
        for n in 0..100 {
            // Likely at the address of the one before.
            let map = Box::new(RangeMap::new());
            map.update(|edit| edit.insert(0..PAGE, n, Overlap::Reject)).unwrap();
            assert_eq!(value(&map, &cache, 0), Some(n));
        }
        assert_eq!(cache.stats().hits, 0);
    }

    #[test]
    fn a_look_up_in_the_middle_of_another_goes_round_the_cache() {
        let (map, cache) = (map::<u64>(2), Cache::new());
        value(&map, &cache, 0);
        let before: Vec<u64> = cache.entries.iter().map(|entry| entry.map.get()).collect();
        // As in a signal handler that has interrupted a look-up.
        cache.busy.set(true);
        assert_eq!(value(&map, &cache, 0), Some(0));
        assert_eq!((cache.stats().bypassed, cache.stats().hits), (1, 0));
        assert!(cache.busy.get());
        assert_eq!(cache.entries.iter().map(|entry| entry.map.get()).collect::<Vec<_>>(), before);
    }

    #[test]
    fn a_cache_that_does_not_pay_rests_and_is_tried_again() {
        let (map, cache) = (map::<u64>(20_000), Cache::new());
        let mut random = 1_u64;
        let mut ask = |count| {
            for _ in 0..count {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let n = (random >> 33) % 10_000 * 2;
                assert_eq!(value(&map, &cache, n * PAGE), Some(n));
            }
        };
        ask(100_000);
        let scattered = cache.stats();
        assert!(scattered.bypassed > 90_000, "{scattered:?}");
        for _ in 0..10_000 {
            value(&map, &cache, 0);
        }
        assert!(cache.stats().hits - scattered.hits > 5_000, "{:?}", cache.stats());
    }

    #[test]
    fn the_last_address_is_cached_like_any_other() {
        let (map, cache) = (RangeMap::<u64>::new(), Cache::new());
        map.update(|edit| {
            edit.insert(.., 1, Overlap::Reject)?;
            edit.insert(u64::MAX..=u64::MAX, 2, Overlap::Split)?;
            Ok::<_, EditError>(())
        })
        .unwrap();
        for _ in 0..2 {
            assert_eq!(value(&map, &cache, u64::MAX), Some(2));
            assert_eq!(value(&map, &cache, u64::MAX - 1), Some(1));
            assert_eq!(value(&map, &cache, 0), Some(1));
        }
        assert!(cache.stats().hits >= 2);
    }
}
