//! The cache of one thread: copies of answers, so that most look-ups search nothing.
//!
//! A table of places by larger page (1 MiB), two answers each: the last one, which a look-up compares first, and the
//! one before it. Programs stay where they are, libraries, heap and stacks lie apart, pieces of one library close
//! together. An answer is a mapping, not a page: it answers for pages that nobody has asked for before.
//!
//! More answers a place find more, but not sooner: what is not the last one costs a mispredicted branch, and so does a
//! search, which is short.
//!
//! # Invariants
//!
//! 1. An answer was looked up after its tag was read. While the map still shows that tag, nothing that could
//!    make the answer wrong has been published, so a hit is true at the moment at which it reads the tag.
//! 2. While [`Turn::BUSY`], nobody but the look-up that set it touches the entries: a signal handler that comes in the
//!    middle of one goes round the cache.
//!
//! # Adaptation
//!
//! A cache only pays where it answers. After [`WINDOW`] misses that had less than a hit for each of
//! them, look-ups go round it before it is tried again: [`REST`] the first time, and twice as many each time that it
//! has not paid then.
//!
//! # Async-signal-safety
//!
//! No allocation, no lock. A `const` thread-local of it needs no initialiser and leaves nothing behind.

use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::entry::Entry;
use crate::generation::Tag;
use crate::map::Inserted;
use crate::{Mapping, NoSlot, RangeMap};

/// Places of the table.
const PLACES: usize = 32;
/// Addresses belong to a place by pages of that many bits.
const PLACE_BITS: u32 = 20;
/// Misses after which it is asked whether the cache pays.
const WINDOW: u64 = 64;
/// Look-ups for which it then rests, at first and at most.
const REST: RangeInclusive<u32> = 1 << 8..=1 << 16;

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
pub struct Cache<V> {
    turn: Cell<Turn>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    stale: Cell<u64>,
    /// Those that it will still rest for included.
    bypassed: Cell<u64>,
    hits_before: Cell<u64>,
    /// How long it rests when it does not pay.
    rest: Cell<u32>,
    places: [Place<V>; PLACES],
}

/// What a look-up finds the cache doing: nothing, or with a look-up in it, or resting for so many more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn(u32);

impl Turn {
    const FREE: Self = Self(0);
    const BUSY: Self = Self(u32::MAX);
}

/// On a cache line of its own, if the value is not larger than an address.
#[repr(align(64))]
struct Place<V> {
    last: Entry<V>,
    before: Entry<V>,
}

impl<V: Copy> Cache<V> {
    /// An empty cache.
    pub const fn new() -> Self {
        Self {
            turn: Cell::new(Turn::FREE),
            hits: Cell::new(0),
            misses: Cell::new(0),
            stale: Cell::new(0),
            bypassed: Cell::new(0),
            hits_before: Cell::new(0),
            rest: Cell::new(*REST.start()),
            places: [const { Place { last: Entry::empty(), before: Entry::empty() } }; PLACES],
        }
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        let left = Some(self.turn.get()).filter(|&turn| turn != Turn::BUSY).map_or(0, |turn| turn.0);
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            stale: self.stale.get(),
            bypassed: self.bypassed.get() - u64::from(left),
        }
    }

    #[inline(always)]
    pub(crate) fn find<const WIDTH: u32>(
        &self,
        addr: u64,
        map: &RangeMap<V, WIDTH>,
    ) -> Result<Option<Mapping<V>>, NoSlot> {
        if self.turn.get() != Turn::FREE {
            return self.go_round(addr, map);
        }
        // Read before the look-up (invariant 1). No entry bears a closed one, so it need not be open here.
        let tag = map.tag();
        self.turn.set(Turn::BUSY);
        // The only other party is a signal handler of this thread: the compiler's order is enough.
        compiler_fence(Ordering::SeqCst);
        let last = self.place(addr).last.answer(addr, tag);
        compiler_fence(Ordering::SeqCst);
        self.turn.set(Turn::FREE);
        if last.is_some() {
            self.hits.set(self.hits.get() + 1);
            return Ok(last);
        }
        self.look_further(addr, tag, map)
    }

    /// All answers that it holds, outdated ones too.
    fn entries(&self) -> impl Iterator<Item = &Entry<V>> {
        self.places.iter().flat_map(|place| [&place.last, &place.before])
    }

    #[inline]
    fn place(&self, addr: u64) -> &Place<V> {
        &self.places[(addr >> PLACE_BITS) as usize % PLACES]
    }

    /// By the answer before the last one, else by what takes longer.
    #[inline(never)]
    fn look_further<const WIDTH: u32>(
        &self,
        addr: u64,
        tag: Tag,
        map: &RangeMap<V, WIDTH>,
    ) -> Result<Option<Mapping<V>>, NoSlot> {
        if !tag.is_open() {
            self.bypassed.set(self.bypassed.get() + 1);
            return map.find(addr);
        }
        self.turn.set(Turn::BUSY);
        compiler_fence(Ordering::SeqCst);
        let place = self.place(addr);
        let (answer, turn) = match place.before.answer(addr, tag) {
            Some(mapping) => {
                place.last.swap(&place.before);
                self.hits.set(self.hits.get() + 1);
                (Ok(Some(mapping)), Turn::FREE)
            }
            None => self.look_up(place, addr, tag, map),
        };
        compiler_fence(Ordering::SeqCst);
        self.turn.set(turn);
        answer
    }

    /// In the map, while the cache rests or belongs to a look-up that was interrupted.
    #[inline(always)]
    fn go_round<const WIDTH: u32>(
        &self,
        addr: u64,
        map: &RangeMap<V, WIDTH>,
    ) -> Result<Option<Mapping<V>>, NoSlot> {
        match self.turn.get() {
            Turn::BUSY => self.count_interruption(),
            Turn(rest) => self.turn.set(Turn(rest.saturating_sub(1))),
        }
        map.find(addr)
    }

    /// A look-up by a signal handler: its count may be lost to the one that it interrupts, whose entries it does not touch.
    // Cold, so that a hit is not asked first whether it is one.
    #[cold]
    #[inline(never)]
    fn count_interruption(&self) {
        self.bypassed.set(self.bypassed.get() + 1);
    }

    /// In the map, unless there is an answer of an older generation that all changes since have spared. And what
    /// the cache does next.
    #[inline]
    fn look_up<const WIDTH: u32>(
        &self,
        place: &Place<V>,
        addr: u64,
        tag: Tag,
        map: &RangeMap<V, WIDTH>,
    ) -> (Result<Option<Mapping<V>>, NoSlot>, Turn) {
        if place.last.covers(addr) || place.before.covers(addr) {
            let spared = self.look_back(place, addr, tag, map);
            if spared.is_some() {
                return (Ok(spared), Turn::FREE);
            }
        }
        self.misses.set(self.misses.get() + 1);
        let answer = map.find(addr);
        if let Ok(Some(mapping)) = &answer {
            place.put(mapping, tag);
        }
        (answer, self.rest_if_useless())
    }

    /// Among answers of older generations.
    #[cold]
    fn look_back<const WIDTH: u32>(
        &self,
        place: &Place<V>,
        addr: u64,
        tag: Tag,
        map: &RangeMap<V, WIDTH>,
    ) -> Option<Mapping<V>> {
        let mut stale = false;
        for entry in [&place.last, &place.before].into_iter().filter(|entry| entry.covers(addr)) {
            if map.spared(entry, tag) {
                entry.renew(tag);
                self.hits.set(self.hits.get() + 1);
                return entry.answer(addr, tag);
            }
            stale |= entry.tag().is_of_same_map::<WIDTH>(tag);
        }
        self.stale.set(self.stale.get() + u64::from(stale));
        None
    }

    /// Takes in what this thread has just inserted, and keeps the answers that the update has not touched.
    pub(crate) fn prime(&self, Inserted { mapping, tag, outdated }: &Inserted<V>) {
        if self.turn.get() == Turn::BUSY {
            return;
        }
        let turn = self.turn.replace(Turn::BUSY);
        compiler_fence(Ordering::SeqCst);
        if let Some((ended, extent)) = outdated {
            for entry in
                self.entries().filter(|entry| entry.tag() == *ended && !entry.extent().overlaps(*extent))
            {
                entry.renew(*tag);
            }
        }
        let (first, last) = (self.place(mapping.start), self.place(mapping.last));
        first.put(mapping, *tag);
        if !ptr::eq(first, last) {
            last.put(mapping, *tag);
        }
        compiler_fence(Ordering::SeqCst);
        self.turn.set(turn);
    }

    fn rest_if_useless(&self) -> Turn {
        if !self.misses.get().is_multiple_of(WINDOW) {
            return Turn::FREE;
        }
        let hits = self.hits.get();
        if hits - self.hits_before.replace(hits) >= WINDOW {
            self.rest.set(*REST.start());
            return Turn::FREE;
        }
        let rest = self.rest.get();
        self.rest.set((2 * rest).min(*REST.end()));
        self.bypassed.set(self.bypassed.get() + u64::from(rest));
        Turn(rest)
    }
}

impl<V: Copy> Place<V> {
    /// Takes `mapping` in as its last answer, for an outdated one about the same addresses or else for the older one.
    #[inline]
    fn put(&self, mapping: &Mapping<V>, tag: Tag) {
        if !self.last.covers(mapping.start) {
            self.last.swap(&self.before);
        }
        self.last.fill(mapping, tag);
    }
}

impl<V> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("hits", &self.hits.get())
            .field("misses", &self.misses.get())
            .finish_non_exhaustive()
    }
}

impl<V: Copy> Default for Cache<V> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{EditError, Overlap};

    const PAGE: u64 = 4096;

    /// Every second page is a mapping that bears its number.
    fn map<const WIDTH: u32>(pages: u64) -> RangeMap<u64, WIDTH> {
        let map = RangeMap::with_width();
        map.update(|edit| {
            (0..pages).step_by(2).try_for_each(|n| edit.insert(n * PAGE..(n + 1) * PAGE, n, Overlap::Reject))
        })
        .unwrap();
        map
    }

    fn value<const WIDTH: u32>(map: &RangeMap<u64, WIDTH>, cache: &Cache<u64>, addr: u64) -> Option<u64> {
        map.find_cached(cache, addr).unwrap().map(|mapping| mapping.value)
    }

    #[test]
    fn the_second_look_up_of_a_mapping_is_a_hit_also_on_another_address() {
        let (map, cache) = (map::<16>(4), Cache::new());
        assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
        assert_eq!(value(&map, &cache, 3 * PAGE - 1), Some(2));
        assert_eq!(value(&map, &cache, 0), Some(0));
        assert_eq!(value(&map, &cache, 2 * PAGE), Some(2));
        assert_eq!(cache.stats(), CacheStats { hits: 2, misses: 2, stale: 0, bypassed: 0 });
    }

    #[test]
    fn nothing_there_is_never_remembered() {
        let (map, cache) = (map::<16>(2), Cache::new());
        assert_eq!(value(&map, &cache, PAGE), None);
        map.update(|edit| edit.insert(PAGE..2 * PAGE, 1, Overlap::Reject)).unwrap();
        assert_eq!(value(&map, &cache, PAGE), Some(1));
    }

    #[test]
    fn an_answer_that_no_change_has_touched_is_taken_up_again() {
        let (map, cache) = (map::<16>(8), Cache::new());
        for n in [0, 2, 4] {
            assert_eq!(value(&map, &cache, n * PAGE), Some(n));
        }
        map.update(|edit| edit.remove(2 * PAGE..3 * PAGE).map(drop)).unwrap();
        // Places hold two; that of page 0 was given up.
        for (n, right) in [(4, Some(4)), (2, None)] {
            assert_eq!(value(&map, &cache, n * PAGE), right);
        }
        assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 4, stale: 1, bypassed: 0 });
    }

    #[test]
    fn an_answer_from_before_its_mapping_grew_is_not_taken_up_when_that_is_removed() {
        let (map, cache) = (map::<16>(2), Cache::new());
        assert_eq!(value(&map, &cache, 0), Some(0));
        map.update(|edit| edit.grow(0..2 * PAGE)).unwrap();
        // Beside what the cache knows of it.
        map.update(|edit| edit.insert(PAGE..2 * PAGE, 7, Overlap::Replace)).unwrap();
        assert_eq!((value(&map, &cache, 0), value(&map, &cache, PAGE)), (None, Some(7)));
    }

    #[test]
    fn what_a_thread_has_inserted_it_need_not_look_up() {
        let (map, cache) = (map::<16>(4), Cache::new());
        assert_eq!(value(&map, &cache, 0), Some(0));
        // Ends in another place than it begins in.
        let large = 2 * PAGE..=(5 << PLACE_BITS);
        map.update_cached(&cache, |edit| edit.insert(large.clone(), 7, Overlap::Split)).unwrap();
        for addr in [*large.start(), *large.end(), 0] {
            assert!(value(&map, &cache, addr).is_some());
        }
        assert_eq!(cache.stats(), CacheStats { hits: 3, misses: 1, stale: 0, bypassed: 0 });
        // Refused: nothing is remembered of it.
        let refused = map.update_cached(&cache, |edit| {
            edit.insert(1 << 40..1 << 41, 8, Overlap::Reject)?;
            edit.insert(.., 9, Overlap::Reject)
        });
        assert!(matches!(refused, Err(EditError::Overlaps { .. })));
        assert_eq!(value(&map, &cache, 1 << 40), None);
        // Inserted and taken away again.
        map.update_cached(&cache, |edit| {
            edit.insert(1 << 40..1 << 41, 8, Overlap::Reject)?;
            edit.remove(1 << 40..1 << 41).map(drop)
        })
        .unwrap();
        assert_eq!(value(&map, &cache, 1 << 40), None);
    }

    #[test]
    fn one_bump_makes_all_entries_stale_and_touches_none_of_them() {
        let (map, cache) = (map::<16>(4), Cache::new());
        for n in [0, 2] {
            assert_eq!(value(&map, &cache, n * PAGE), Some(n));
        }
        let tags = || cache.entries().map(Entry::tag).collect::<Vec<_>>();
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
        let (map, old, used) = (RangeMap::<u64, 8>::with_width(), Cache::new(), Cache::new());
        let put = |value| map.update(|edit| edit.insert(0..PAGE, value, Overlap::Replace)).unwrap();
        put(0);
        // Of every generation of the first round one entry is left in a cache that is not asked again until
        // that generation has come round.
        let kept: Vec<Cache<u64>> = (0..255)
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
                let hit = cache.entries().any(|entry| entry.answer(0, map.tag()).is_some());
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
        let (map, cache) = (map::<16>(2), Cache::new());
        value(&map, &cache, 0);
        let before: Vec<Tag> = cache.entries().map(Entry::tag).collect();
        // As in a signal handler that has interrupted a look-up.
        cache.turn.set(Turn::BUSY);
        assert_eq!(value(&map, &cache, 0), Some(0));
        assert_eq!((cache.stats().bypassed, cache.stats().hits), (1, 0));
        assert_eq!(cache.turn.get(), Turn::BUSY);
        assert_eq!(cache.entries().map(Entry::tag).collect::<Vec<_>>(), before);
    }

    #[test]
    fn a_cache_that_does_not_pay_rests_and_is_tried_again() {
        let (map, cache) = (map::<16>(20_000), Cache::new());
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
        for _ in 0..200_000 {
            value(&map, &cache, 0);
        }
        assert!(cache.stats().hits - scattered.hits > 50_000, "{:?}", cache.stats());
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
