//! Generations: the number that, moved on, makes every cached copy stale.
//!
//! A cached answer bears the *tag* under which it was looked up: the map's identity, which no other map of the process
//! ever has, and its generation. The answer counts while the map still shows that tag.
//!
//! A change *closes* the generation before it publishes and opens the next one after it. Read in any order, an open
//! generation then says that the answers of its tag are true at that very moment; a cache that
//! counted on "publish, then bump" alone would give old answers in between, after others gave new ones.
//!
//! # The width
//!
//! 64 bits do not come round. Narrower ones do, and then the map takes a new identity: all copies are stale as
//! after any other change, and no thread has to be visited. (The origin had 32 bits and
//! flushed all threads when they came round; that flush was a hole, and the kernel went to 64 bits.)
//!
//! # Invariants
//!
//! 1. No tag is ever shown twice: generations grow under one identity, identities are never used again.
//! 2. The identity changes only while the generation is closed.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// An unsigned integer that counts the generations of a map: `u64`, or a narrower one.
pub trait Generation: sealed::Word {}

impl<G: sealed::Word> Generation for G {}

mod sealed {
    use super::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Debug, Ordering};

    pub trait Word: Copy + Eq + Debug + Send + Sync + 'static {
        type Atomic: Debug + Send + Sync;
        const FIRST: Self;
        const FIRST_ATOMIC: Self::Atomic;
        /// Not a generation: an update is publishing.
        const CLOSED: Self;
        /// Whether it can come round.
        const WRAPS: bool;
        fn load(atomic: &Self::Atomic) -> Self;
        fn store(atomic: &Self::Atomic, value: Self);
        /// The one after; none when it would be `CLOSED`.
        fn next(self) -> Option<Self>;
    }

    macro_rules! word {
        ($($word:ty, $atomic:ident, $wraps:literal;)*) => {$(
            impl Word for $word {
                type Atomic = $atomic;
                const FIRST: Self = 0;
                const FIRST_ATOMIC: $atomic = $atomic::new(0);
                const CLOSED: Self = Self::MAX;
                const WRAPS: bool = $wraps;
                #[inline]
                fn load(atomic: &$atomic) -> Self {
                    atomic.load(Ordering::Acquire)
                }
                fn store(atomic: &$atomic, value: Self) {
                    atomic.store(value, Ordering::Release);
                }
                fn next(self) -> Option<Self> {
                    Some(self + 1).filter(|&next| next != Self::CLOSED)
                }
            }
        )*};
    }

    word! {
        u8, AtomicU8, true;
        u16, AtomicU16, true;
        u32, AtomicU32, true;
        u64, AtomicU64, false;
    }
}

/// A map and one of its generations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag<G> {
    pub(crate) map: u64,
    pub(crate) generation: G,
}

impl<G: Generation> Tag<G> {
    /// Whether answers may bear it: no update is publishing, and there has been one.
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.generation != G::CLOSED && self.map != 0
    }
}

/// What a map shows: its tag, or that it is changing.
#[derive(Debug)]
pub(crate) struct Stamp<G: Generation> {
    /// 0: no update yet, so nothing to be cached.
    map: AtomicU64,
    generation: G::Atomic,
}

/// The identities: 64 bits do not come round, so none is used again.
static NEXT_MAP: AtomicU64 = AtomicU64::new(1);

impl<G: Generation> Stamp<G> {
    pub(crate) const fn new() -> Self {
        Self { map: AtomicU64::new(0), generation: G::FIRST_ATOMIC }
    }

    /// What is shown now. Only what [`Tag::is_open`] may be given to an answer; any may be compared with an answer's.
    #[inline]
    pub(crate) fn read(&self) -> Tag<G> {
        // Pairs with the store in `open`: who sees an identity sees its generations or a closed one, none of
        // the identity before it.
        let map = self.map.load(Ordering::Acquire);
        // Pairs with the stores of `close` and `open`: who has seen what was published sees it closed at least.
        let mut generation = G::load(&self.generation);
        // Seen again, so the generation was read under it (invariant 2).
        if G::WRAPS && self.map.load(Ordering::Acquire) != map {
            generation = G::CLOSED;
        }
        Tag { map, generation }
    }

    /// Whether there has been an update.
    pub(crate) fn is_named(&self) -> bool {
        self.map.load(Ordering::Relaxed) != 0
    }

    /// Closes the present generation, and says which it was. Only the holder of the writers' lock calls this.
    pub(crate) fn close(&self) -> G {
        let generation = G::load(&self.generation);
        G::store(&self.generation, G::CLOSED);
        generation
    }

    /// Opens the generation after the `closed` one.
    pub(crate) fn open(&self, closed: G) {
        let next = closed.next();
        if next.is_none() || !self.is_named() {
            self.map.store(NEXT_MAP.fetch_add(1, Ordering::Relaxed), Ordering::Release);
        }
        G::store(&self.generation, next.unwrap_or(G::FIRST));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_tag_comes_twice_though_eight_bits_come_round() {
        let stamp = Stamp::<u8>::new();
        assert!(!stamp.read().is_open());
        let mut seen = HashSet::new();
        let mut maps = HashSet::new();
        for _ in 0..1000 {
            let closed = stamp.close();
            assert!(!stamp.read().is_open());
            stamp.open(closed);
            let tag = stamp.read();
            assert!(tag.is_open());
            assert!(seen.insert((tag.map, tag.generation)));
            maps.insert(tag.map);
        }
        // 255 generations an identity, one value being "closed".
        assert_eq!(maps.len(), 1000_usize.div_ceil(255));
    }

    #[test]
    fn two_maps_never_show_the_same_tag() {
        let (one, two) = (Stamp::<u64>::new(), Stamp::<u64>::new());
        for stamp in [&one, &two] {
            stamp.open(stamp.close());
        }
        assert_ne!(one.read(), two.read());
    }
}
