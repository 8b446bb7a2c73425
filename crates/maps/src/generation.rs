//! Generations: the number that, moved on, makes every cached copy stale.
//!
//! A cached answer bears the *tag* under which it was looked up: the map's identity, which no other map of the
//! process ever has, and its generation, in one word that a look-up compares at once. The answer counts while the map still
//! shows that tag.
//!
//! A change *closes* the generation before it publishes and opens the next one after it. Read in any order, an open
//! generation then says that the answers of its tag are true at that very moment; a cache that
//! counted on "publish, then bump" alone would give old answers in between, after others gave new ones.
//!
//! # The width
//!
//! Of the 64 bits the map counts some itself; when those come round it takes a new identity, and all copies are stale
//! as after any other change: no thread has to be visited. Identities are not used again, so neither are tags. With 16 bits
//! that takes 2⁴⁸ maps or 2⁶⁴ updates. (The origin had 32 bits and flushed all threads when they came round; that
//! flush was a hole, and the kernel went to 64 bits.)
//!
//! # Invariants
//!
//! No tag is ever shown twice, by whatever map, and [`Tag::NONE`] never.

use std::sync::atomic::{self, Ordering};

use crate::primitive::{AtomicU64, const_unless_loom};

/// A map and one of its generations, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) u64);

/// How many bits generations can have: identities lie behind them, whatever a map's own width is.
const WIDEST: u32 = 16;

impl Tag {
    /// Shown by no map: of what has never been filled.
    pub(crate) const NONE: Self = Self(0);
    /// Not a generation: an update is publishing, or there was none yet.
    const CLOSED: Self = Self(u64::MAX);

    /// Whether answers may bear it.
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self != Self::CLOSED
    }

    /// Whether both are of one map, and of one round of its generations.
    pub(crate) fn is_of_same_map<const WIDTH: u32>(self, other: Self) -> bool {
        self.0 >> WIDTH == other.0 >> WIDTH
    }

    /// The next generation of the same map; under a new identity when `WIDTH` bits have come round.
    fn next<const WIDTH: u32>(self) -> Self {
        let next = self.0.wrapping_add(1);
        // The one after `CLOSED` is 0: the first one.
        if next.trailing_zeros() >= WIDTH {
            // Not loom's: only that it gives each number once matters.
            static NEXT_MAP: atomic::AtomicU64 = atomic::AtomicU64::new(1);
            const { assert!(WIDTH > 0 && WIDTH <= WIDEST, "an identity begins behind the widest generation") };
            return Self(NEXT_MAP.fetch_add(1, Ordering::Relaxed) << WIDEST);
        }
        Self(next)
    }
}

/// What a map shows: its tag, or that it is changing.
#[derive(Debug)]
pub(crate) struct Stamp<const WIDTH: u32>(AtomicU64);

impl<const WIDTH: u32> Stamp<WIDTH> {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(Tag::CLOSED.0))
        }
    }

    /// What is shown now. Only what [`Tag::is_open`] may be given to an answer; any may be compared with an answer's.
    #[inline]
    pub(crate) fn read(&self) -> Tag {
        // Pairs with the stores of `close` and `open`: who has seen what was published sees it closed at least.
        Tag(self.0.load(Ordering::Acquire))
    }

    /// Closes the present generation, and says which it was. Only the holder of the writers' lock calls this.
    pub(crate) fn close(&self) -> Tag {
        let generation = self.read();
        self.0.store(Tag::CLOSED.0, Ordering::Release);
        generation
    }

    /// Opens the generation after the `closed` one.
    pub(crate) fn open(&self, closed: Tag) {
        self.0.store(closed.next::<WIDTH>().0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_tag_comes_twice_though_eight_bits_come_round() {
        let stamp = Stamp::<8>::new();
        assert!(!stamp.read().is_open());
        let mut seen = HashSet::new();
        let mut maps = HashSet::new();
        for _ in 0..1000 {
            let closed = stamp.close();
            assert!(!stamp.read().is_open());
            stamp.open(closed);
            let tag = stamp.read();
            assert!(tag.is_open() && tag != Tag::NONE);
            assert!(seen.insert(tag.0));
            maps.insert(tag.0 >> 8);
        }
        assert_eq!(maps.len(), 1000_usize.div_ceil(256));
    }

    #[test]
    fn two_maps_never_show_the_same_tag() {
        let (one, two) = (Stamp::<16>::new(), Stamp::<16>::new());
        for stamp in [&one, &two] {
            stamp.open(stamp.close());
        }
        assert_ne!(one.read(), two.read());
    }
}
