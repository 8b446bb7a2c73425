//! Generations: the number whose change makes every cached copy stale.
//!
//! A cached answer carries the *tag* under which it was looked up: the map's identity, unique in
//! the process, and its generation, in one word that a look-up compares at once. The answer is
//! valid while the map still shows that tag.
//!
//! A change *closes* the generation before it publishes and opens the next one after it. So whoever
//! reads an open generation, in any order, has proof that answers with its tag are true at that
//! very moment. A cache that relied only on "publish, then increment" could return old answers in
//! between, after other readers got new ones.
//!
//! # The width
//!
//! Some of the 64 bits count the map's generations; when that counter wraps, the map takes a new
//! identity, and all copies are stale as after any other change: no thread has to be visited.
//! Identities are not reused, so neither are tags. With a 16-bit counter they last for 2⁴⁸ maps or
//! 2⁶⁴ updates. (The origin had 32 bits and flushed all threads when they wrapped; that flush was a
//! vulnerability, and the kernel went to 64 bits.)
//!
//! # Invariants
//!
//! No two maps show the same tag, no map shows a tag twice, and none shows [`Tag::NONE`].

use std::sync::atomic::{self, Ordering};

use crate::primitive::{AtomicU64, const_unless_loom};
use crate::publish::Writer;

/// A map and one of its generations, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tag(pub(crate) u64);

/// The most bits that generations can have: identities lie above them in every map.
const WIDEST: u32 = 16;

impl Tag {
    /// Shown by no map: the tag of an entry that was never filled.
    pub(crate) const NONE: Self = Self(0);
    /// Not a generation: an update is publishing, or there was none yet.
    pub(crate) const CLOSED: Self = Self(u64::MAX);

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

/// The word that a map shows: its tag, or that it is changing.
#[derive(Debug)]
pub(crate) struct Stamp<const WIDTH: u32>(AtomicU64);

impl<const WIDTH: u32> Stamp<WIDTH> {
    const_unless_loom! {
        pub(crate) fn new() -> Self {
            Self(AtomicU64::new(Tag::CLOSED.0))
        }
    }

    /// The tag that is shown now. Only an open one may be given to an answer; any may be compared
    /// with an answer's.
    #[inline]
    pub(crate) fn read(&self) -> Tag {
        // Pairs with the stores of `close` and `open`: a reader of a published snapshot sees its
        // generation closed, or a later one.
        Tag(self.0.load(Ordering::Acquire))
    }

    /// Closes the present generation and returns its tag.
    pub(crate) fn close<T>(&self, _writer: &Writer<'_, T>) -> Tag {
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
    use crate::publish::Published;
    use crate::slots::Slots;

    #[test]
    fn no_tag_comes_twice_when_bits_come_round() {
        let published = Published::<()>::nothing(Slots::of_process());
        let (writer, stamp) = (published.write(), Stamp::<8>::new());
        assert!(!stamp.read().is_open());
        let mut seen = HashSet::new();
        let mut maps = HashSet::new();
        for _ in 0..1000 {
            let closed = stamp.close(&writer);
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
        let published = Published::<()>::nothing(Slots::of_process());
        let (one, two) = (Stamp::<16>::new(), Stamp::<16>::new());
        for stamp in [&one, &two] {
            stamp.open(stamp.close(&published.write()));
        }
        assert_ne!(one.read(), two.read());
    }
}
