//! The last changes of a map: an old answer that none of them touched is still right.
//!
//! A generation outdates all copies of a map's answers, though a change touches few of them. So the map remembers for
//! its last [`KEPT`] outdating changes which generation they ended and between which addresses, and a cache that holds
//! a stale answer asks before it drops it.
//!
//! # Invariants
//!
//! Only the holder of the writers' lock records, and only while the generation is closed. Whoever has read the records under
//! an open tag and then sees the map still show that tag has read them whole.

use std::sync::atomic::Ordering;

use crate::generation::{Stamp, Tag};
use crate::mapping::Extent;
use crate::primitive::{AtomicU64, const_unless_loom, fence};

/// Changes that are remembered.
const KEPT: usize = if cfg!(all(test, loom)) { 2 } else { 8 };

/// A change. With nothing recorded it ends no generation and touches every address.
#[derive(Debug)]
struct Change {
    ended: AtomicU64,
    start: AtomicU64,
    last: AtomicU64,
}

/// The last changes of a map, in a ring.
#[derive(Debug)]
pub(crate) struct Changes {
    kept: [Change; KEPT],
    /// How many there have been.
    count: AtomicU64,
}

impl Change {
    const_unless_loom! {
        fn nothing() -> Self {
            Self { ended: AtomicU64::new(Tag::NONE.0), start: AtomicU64::new(0), last: AtomicU64::new(u64::MAX) }
        }
    }
}

impl Changes {
    #[cfg(not(all(test, loom)))]
    pub(crate) const fn new() -> Self {
        Self { kept: [const { Change::nothing() }; KEPT], count: AtomicU64::new(0) }
    }

    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self { kept: std::array::from_fn(|_| Change::nothing()), count: AtomicU64::new(0) }
    }

    /// Remembers that the change which ended `ended` made answers between these addresses wrong, and none beside them.
    pub(crate) fn record(&self, ended: Tag, touched: Extent) {
        // Pairs with the fence in `spared`: who reads one of these stores sees the generation closed, or a later one.
        fence(Ordering::Release);
        let count = self.count.load(Ordering::Relaxed);
        let change = &self.kept[count as usize % KEPT];
        change.ended.store(ended.0, Ordering::Relaxed);
        change.start.store(touched.start, Ordering::Relaxed);
        change.last.store(touched.last, Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether it is remembered that an answer about `extent` that was right under `old` is so under `now`.
    pub(crate) fn spared<const WIDTH: u32>(
        &self,
        stamp: &Stamp<WIDTH>,
        old: Tag,
        now: Tag,
        extent: Extent,
    ) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        for back in 1..=KEPT as u64 {
            let change = &self.kept[count.wrapping_sub(back) as usize % KEPT];
            let (start, last) = (change.start.load(Ordering::Relaxed), change.last.load(Ordering::Relaxed));
            if extent.overlaps(Extent { start, last }) {
                return false;
            }
            if change.ended.load(Ordering::Relaxed) == old.0 {
                // Pairs with the fence in `record`.
                fence(Ordering::Acquire);
                return stamp.read() == now;
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_spared_by_changes_beside_it_as_long_as_they_are_remembered() {
        let (stamp, changes) = (Stamp::<16>::new(), Changes::new());
        stamp.open(stamp.close());
        let old = stamp.read();
        let spared = |start, last| changes.spared(&stamp, old, stamp.read(), Extent { start, last });
        let change = |start, last| {
            let closed = stamp.close();
            changes.record(closed, Extent { start, last });
            stamp.open(closed);
        };
        // Nobody asks under the tag that is shown; what nobody knows is not vouched for.
        assert!(!spared(0, 9));
        change(20, 29);
        for (start, last, right) in
            [(0, 19, true), (30, 99, true), (0, 20, false), (29, 40, false), (22, 23, false)]
        {
            assert_eq!(spared(start, last), right, "{start} to {last}");
        }
        for _ in 1..KEPT {
            change(40, 49);
        }
        assert!(spared(0, 9) && !spared(20, 20) && !spared(45, 45));
        change(40, 49);
        assert!(!spared(0, 9));
    }

    #[test]
    fn nothing_is_spared_under_a_tag_that_is_no_longer_shown() {
        let (stamp, changes) = (Stamp::<16>::new(), Changes::new());
        stamp.open(stamp.close());
        let old = stamp.close();
        changes.record(old, Extent { start: 20, last: 29 });
        stamp.open(old);
        let now = stamp.read();
        assert!(changes.spared(&stamp, old, now, Extent { start: 0, last: 9 }));
        stamp.close();
        assert!(!changes.spared(&stamp, old, now, Extent { start: 0, last: 9 }));
    }
}
