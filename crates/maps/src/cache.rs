//! The cache of one thread: copies of answers, so that most look-ups search nothing.
//!
//! A table indexed by larger page (1 MiB), with two answers in each place: the last one, which a
//! look-up compares first, and the one before it. Programs stay where they are; libraries, heap and
//! stacks lie far apart, parts of one library close together. An answer is a mapping, not a page:
//! it also answers for pages that were never looked up before.
//!
//! More answers for each place would find more, but not faster: an answer that is not the last one
//! costs a mispredicted branch, and so does a search, which is short.
//!
//! # Invariants
//!
//! 1. An answer was looked up after its tag was read. While the map still shows that tag, nothing
//!    that could make the answer wrong has been published, so a hit is true at the moment at which
//!    it reads the tag.
//! 2. While [`Turn::BUSY`], only the look-up that set it touches the entries: a signal handler that
//!    interrupts one bypasses the cache.
//!
//! # Adaptation
//!
//! A cache only pays if it answers. After [`WINDOW`] misses with fewer hits than misses, look-ups
//! bypass it for a while before it is tried again: [`REST`] look-ups the first time, and twice as
//! many after each trial that does not pay either.
//!
//! # Async-signal-safety
//!
//! No allocation, no lock. A `const` thread-local of this type needs no initialiser and no
//! destructor.
//!
//! A handler that does not return (`siglongjmp`) from the middle of a look-up leaves the cache
//! [`Turn::BUSY`]: all later look-ups with it go to the map, with right answers. Nothing tells such
//! a cache from an interrupted one that will go on: the address of the interrupted stack does not,
//! for handlers have stacks of their own. A program that leaves handlers so makes a new cache. The
//! look-up's reader slot is lost with it (`slots.rs`).

use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::edit::Edit;
use crate::entry::Entry;
use crate::error::NoSlot;
use crate::generation::Tag;
use crate::map::{Inserted, RangeMap};
use crate::mapping::Mapping;

/// Places of the table.
const PLACES: usize = 32;
/// Bits of the pages by which addresses belong to a place.
const PLACE_BITS: u32 = 20;
/// Misses between two checks whether the cache pays.
const WINDOW: u64 = 64;
/// Look-ups for which a cache that does not pay rests, at first and at most.
const REST: RangeInclusive<u32> = 1 << 8..=1 << 16;

/// Counts of a cache's look-ups since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Look-ups that the cache answered.
    pub hits: u64,
    /// Look-ups that went on to the map because no cached answer fitted, including stale ones.
    pub misses: u64,
    /// Misses for which there was an answer of an earlier generation.
    pub stale: u64,
    /// Look-ups that bypassed the cache: while it rests, while the map changes, or in a signal
    /// handler that interrupts another look-up.
    pub bypassed: u64,
}

/// Copies of answers, for one thread and any number of maps.
///
/// Put it into a thread-local, or wherever one thread does its look-ups. Maps that share a cache
/// evict each other's entries but never get each other's answers.
pub struct Cache<V> {
    turn: Cell<Turn>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    stale: Cell<u64>,
    /// Includes those for which it will still rest.
    bypassed: Cell<u64>,
    hits_before: Cell<u64>,
    /// The number of look-ups for which it rests when it does not pay.
    rest: Cell<u32>,
    places: [Place<V>; PLACES],
}

/// The answer of a look-up.
type Answer<V> = Result<Option<Mapping<V>>, NoSlot>;

/// The state in which a look-up finds the cache: free, busy with a look-up, or bypassed for the
/// given number of look-ups.
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

    /// The counts so far.
    pub fn stats(&self) -> CacheStats {
        let left = Some(self.turn.get()).filter(|&turn| turn != Turn::BUSY).map_or(0, |turn| turn.0);
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            stale: self.stale.get(),
            bypassed: self.bypassed.get().saturating_sub(u64::from(left)),
        }
    }

    #[inline(always)]
    fn find<const WIDTH: u32>(&self, addr: u64, map: &RangeMap<V, WIDTH>) -> Answer<V> {
        if self.turn.get() != Turn::FREE {
            return self.go_round(addr, map);
        }
        // Read before the look-up (invariant 1). No entry bears a closed one, so it need not be
        // open here.
        let tag = map.tag();
        let last = self.busy(|| (self.place(addr).last.answer(addr, tag), Turn::FREE));
        if last.is_some() {
            self.hits.set(self.hits.get() + 1);
            return Ok(last);
        }
        self.look_further(addr, tag, map)
    }

    /// The answer of the generation `tag`, or that of `look`, which is of the same.
    #[inline]
    pub(crate) fn find_or(
        &self,
        addr: u64,
        tag: Tag,
        look: impl FnOnce() -> Option<Mapping<V>>,
    ) -> Option<Mapping<V>> {
        if self.turn.get() == Turn::BUSY || !tag.is_open() {
            self.bypassed.set(self.bypassed.get() + 1);
            return look();
        }
        self.busy(|| {
            let place = self.place(addr);
            let mut answer = place.last.answer(addr, tag);
            if answer.is_none() {
                answer = place.before.answer(addr, tag).inspect(|_| place.last.swap(&place.before));
            }
            let counter = if answer.is_some() { &self.hits } else { &self.misses };
            counter.set(counter.get() + 1);
            if answer.is_none() {
                answer = look().inspect(|mapping| place.put(mapping, tag));
            }
            (answer, Turn::FREE)
        })
    }

    /// All answers that it holds, outdated ones too.
    fn entries(&self) -> impl Iterator<Item = &Entry<V>> {
        self.places.iter().flat_map(|place| [&place.last, &place.before])
    }

    #[inline]
    fn place(&self, addr: u64) -> &Place<V> {
        &self.places[(addr >> PLACE_BITS) as usize % PLACES]
    }

    /// By the answer before the last one, else by an older or a new one.
    #[inline(never)]
    fn look_further<const WIDTH: u32>(&self, addr: u64, tag: Tag, map: &RangeMap<V, WIDTH>) -> Answer<V> {
        if !tag.is_open() {
            self.bypassed.set(self.bypassed.get() + 1);
            return map.find(addr);
        }
        self.busy(|| {
            let place = self.place(addr);
            let Some(mapping) = place.before.answer(addr, tag) else {
                return self.look_up(place, addr, tag, map);
            };
            place.last.swap(&place.before);
            self.hits.set(self.hits.get() + 1);
            (Ok(Some(mapping)), Turn::FREE)
        })
    }

    /// Runs `look`, which may touch the entries, while signal handlers bypass the cache; then sets
    /// the state that `look` returns.
    #[inline(always)]
    fn busy<T>(&self, look: impl FnOnce() -> (T, Turn)) -> T {
        self.turn.set(Turn::BUSY);
        // The only other party is a signal handler of this thread: the compiler's order is enough.
        compiler_fence(Ordering::SeqCst);
        let (result, turn) = look();
        compiler_fence(Ordering::SeqCst);
        self.turn.set(turn);
        result
    }

    /// In the map, while the cache rests or belongs to a look-up that was interrupted.
    #[inline(always)]
    fn go_round<const WIDTH: u32>(&self, addr: u64, map: &RangeMap<V, WIDTH>) -> Answer<V> {
        match self.turn.get() {
            Turn::BUSY => self.count_interruption(),
            Turn(rest) => self.turn.set(Turn(rest.saturating_sub(1))),
        }
        map.find(addr)
    }

    /// Counts a look-up by a signal handler. The one that it interrupts may overwrite the count;
    /// the entries are its own.
    // Cold, so that a hit is not asked first whether it is one.
    #[cold]
    #[inline(never)]
    fn count_interruption(&self) {
        self.bypassed.set(self.bypassed.get() + 1);
    }

    /// In the map, unless there is an answer of an older generation that all changes since have
    /// spared. Also the state of the cache after it.
    #[inline]
    fn look_up<const WIDTH: u32>(
        &self,
        place: &Place<V>,
        addr: u64,
        tag: Tag,
        map: &RangeMap<V, WIDTH>,
    ) -> (Answer<V>, Turn) {
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
            if map.spared(entry.tag(), entry.extent(), tag) {
                entry.renew(tag);
                self.hits.set(self.hits.get() + 1);
                return entry.answer(addr, tag);
            }
            stale |= entry.tag().is_of_same_map::<WIDTH>(tag);
        }
        self.stale.set(self.stale.get() + u64::from(stale));
        None
    }

    /// Takes in the mapping that this thread has just inserted, and keeps the answers that the
    /// update has not touched.
    fn prime(&self, Inserted { mapping, tag, outdated }: &Inserted<V>) {
        let turn = self.turn.get();
        if turn == Turn::BUSY {
            return;
        }
        self.busy(|| {
            if let Some((ended, extent)) = outdated {
                let is_spared =
                    |entry: &&Entry<V>| entry.tag() == *ended && !entry.extent().overlaps(*extent);
                self.entries().filter(is_spared).for_each(|entry| entry.renew(*tag));
            }
            let (first, last) = (self.place(mapping.start), self.place(mapping.last));
            first.put(mapping, *tag);
            if !ptr::eq(first, last) {
                last.put(mapping, *tag);
            }
            ((), turn)
        });
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

/// By a thread with a cache.
impl<V: Copy, const WIDTH: u32> RangeMap<V, WIDTH> {
    /// The mapping that contains `addr`, from `cache` if it has it.
    ///
    /// The answer was true at some moment between call and return. Its bounds may be those that the
    /// mapping had before it grew.
    // Else the way round a resting cache is too much for the compiler, and a hit pays for a call.
    #[inline(always)]
    pub fn find_cached(&self, cache: &Cache<V>, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        cache.find(addr, self)
    }

    /// [`RangeMap::update`] for a thread that will itself look up what it has just mapped: the
    /// mapping that was inserted last is also put into `cache`, which must be the thread's own.
    pub fn update_cached<E>(
        &self,
        cache: &Cache<V>,
        edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(inserted) = self.change(edit)? {
            cache.prime(&inserted);
        }
        Ok(())
    }
}

impl<V: Copy> Place<V> {
    /// Takes `mapping` in as its last answer, in place of an outdated one about the same addresses,
    /// or else of the older one.
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
mod tests;
