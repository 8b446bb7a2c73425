//! The last changes of a map: an old answer that none of them touched is still right.
//!
//! A new generation makes all copies of a map's answers stale, though a change touches few of them.
//! So for its last [`KEPT`] such changes the map stores the generation that each ended and the
//! addresses that it touched, and a cache checks them before it drops a stale answer.
//!
//! # Invariants
//!
//! Only the holder of the writers' lock records changes, and only while the generation is closed. A
//! reader that has read the records under an open tag and then sees the map still show that tag has
//! read consistent records.

use std::sync::atomic::Ordering;

use crate::generation::Tag;
use crate::mapping::Extent;
use crate::primitive::{AtomicU64, const_unless_loom, fence};
use crate::publish::Writer;

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
    /// The number of changes so far.
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

    /// Remembers that the change which ended the generation `ended` may have made answers about
    /// addresses in `touched` wrong, and no others.
    pub(crate) fn record<T>(&self, _writer: &Writer<'_, T>, ended: Tag, touched: Extent) {
        // Pairs with the fence in `spared`: a reader of one of these stores sees the generation
        // closed, or a later one.
        fence(Ordering::Release);
        let count = self.count.load(Ordering::Relaxed);
        let change = &self.kept[count as usize % KEPT];
        change.ended.store(ended.0, Ordering::Relaxed);
        change.start.store(touched.start, Ordering::Relaxed);
        change.last.store(touched.last, Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether an answer about `extent` that was right under `old` is known to be right still, if
    /// the map shows the same tag before this call and after it.
    pub(crate) fn spared(&self, old: Tag, extent: Extent) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        for back in 1..=KEPT as u64 {
            let change = &self.kept[count.wrapping_sub(back) as usize % KEPT];
            let (start, last) = (change.start.load(Ordering::Relaxed), change.last.load(Ordering::Relaxed));
            if extent.overlaps(Extent { start, last }) {
                return false;
            }
            if change.ended.load(Ordering::Relaxed) == old.0 {
                // Pairs with the fence in `record`: the caller's look at the tag comes after these.
                fence(Ordering::Acquire);
                return true;
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::generation::Stamp;
    use crate::publish::Published;
    use crate::slots::Slots;

    #[test]
    fn answer_is_spared_by_remembered_changes_beside_it() {
        let (stamp, changes) = (Stamp::<16>::new(), Changes::new());
        let published = Published::<()>::nothing(Slots::of_process());
        let writer = published.write();
        stamp.open(stamp.close(&writer));
        let old = stamp.read();
        let spared = |start, last| changes.spared(old, Extent { start, last });
        let change = |start, last| {
            let closed = stamp.close(&writer);
            changes.record(&writer, closed, Extent { start, last });
            stamp.open(closed);
        };
        // No change has ended that generation, so none is known to have spared anything.
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
}
