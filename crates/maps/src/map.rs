//! The map: readers search a snapshot, writers make a new one.
//!
//! # Locking
//!
//! The writers' lock of [`Published`] is held for a whole update, so updates come one after the other. Readers
//! take no lock. An update from inside an update of the same map would wait for itself.

use crate::cache::Cache;
use crate::generation::{Stamp, Tag};
use crate::publish::Published;
use crate::slots::Slots;
use crate::snapshot::Snapshot;
use crate::{Edit, Generation, Mapping, NoSlot};

/// Which mapping an address lies in.
///
/// `V` is what lies there, given out by copy: an index, an `Arc`'s address that something else keeps alive. `G` is the
/// width of the generation; leave it.
///
/// # Async-signal-safety
///
/// [`RangeMap::find`] and [`RangeMap::find_cached`] may be called from signal handlers, also in the middle of
/// themselves and of an update. Nothing else may.
#[derive(Debug)]
pub struct RangeMap<V, G: Generation = u64> {
    stamp: Stamp<G>,
    published: Published<Snapshot<V>>,
}

impl<V: Copy, G: Generation> RangeMap<V, G> {
    /// A map of nothing.
    pub const fn new() -> Self {
        Self { stamp: Stamp::new(), published: Published::nothing(Slots::of_process()) }
    }

    /// The mapping that `addr` lies in, searched for.
    #[inline]
    pub fn find(&self, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        self.published.read(|snapshot| snapshot.and_then(|snapshot| snapshot.find(addr)))
    }

    /// The mapping that `addr` lies in, from `cache` if it has it.
    ///
    /// The answer was true at some moment between call and return. Its bounds may be those that the mapping had
    /// before it grew.
    #[inline]
    pub fn find_cached(&self, cache: &Cache<V, G>, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        cache.find(addr, self)
    }

    /// The mapping that `addr` lies in, else the next one above it.
    pub fn find_or_next(&self, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        self.published.read(|snapshot| snapshot.and_then(|snapshot| snapshot.find_or_next(addr)))
    }

    /// All mappings at one moment, by address.
    pub fn mappings(&self) -> Result<Vec<Mapping<V>>, NoSlot> {
        self.published.read(|snapshot| snapshot.map_or_else(Vec::new, Snapshot::to_vec))
    }

    /// How many mappings there are.
    pub fn len(&self) -> Result<usize, NoSlot> {
        self.published.read(|snapshot| snapshot.map_or(0, Snapshot::len))
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> Result<bool, NoSlot> {
        Ok(self.len()? == 0)
    }

    /// Makes the changes that `edit` makes: readers see all of them or none. When it refuses, or panics, there are none.
    ///
    /// Cached answers stay good unless one of them could have become wrong.
    ///
    /// # Cost
    ///
    /// An absolute slow path: the map is copied twice, whatever the number of changes.
    pub fn update<E>(&self, edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>) -> Result<(), E> {
        let mut writer = self.published.write();
        let mut changes = Edit::of(writer.current().map_or_else(Vec::new, Snapshot::to_vec));
        edit(&mut changes)?;
        if changes.is_changed() {
            let snapshot = Box::new(Snapshot::new(changes.mappings()));
            // The first update gives the map its identity.
            if changes.is_outdating() || !self.stamp.is_named() {
                let closed = self.stamp.close();
                writer.replace(snapshot);
                self.stamp.open(closed);
            } else {
                writer.replace(snapshot);
            }
        }
        writer.free_unread();
        Ok(())
    }

    /// Makes every cached answer of this map stale, in all threads, in constant time.
    ///
    /// For maps of something that has changed behind them: values that stand for other things now.
    pub fn invalidate(&self) {
        let _writer = self.published.write();
        self.stamp.open(self.stamp.close());
    }

    #[inline]
    pub(crate) fn tag(&self) -> Tag<G> {
        self.stamp.read()
    }
}

impl<V: Copy, G: Generation> Default for RangeMap<V, G> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EditError, Overlap};

    #[test]
    fn a_refused_update_leaves_nothing_of_itself() {
        let map = RangeMap::<u8>::new();
        let refused = map.update(|edit| {
            edit.insert(0..10, 1, Overlap::Reject)?;
            edit.insert(5..6, 2, Overlap::Reject)
        });
        assert!(matches!(refused, Err(EditError::Overlaps { start: 5, .. })));
        assert_eq!((map.find(0), map.is_empty()), (Ok(None), Ok(true)));
    }

    #[test]
    fn an_update_that_panics_leaves_the_map_as_it_was_and_usable() {
        let map = RangeMap::<u8>::new();
        map.update(|edit| edit.insert(0..10, 1, Overlap::Reject)).unwrap();
        let panicked = std::panic::catch_unwind(|| {
            map.update(|edit| -> Result<(), EditError> {
                edit.clear();
                std::panic::resume_unwind(Box::new(()))
            })
        });
        assert!(panicked.is_err());
        assert_eq!(map.find(5).unwrap().map(|mapping| mapping.value), Some(1));
        map.update(|edit| edit.remove(5..).map(drop)).unwrap();
        assert_eq!(map.find(5), Ok(None));
        assert_eq!(map.find_or_next(0).unwrap().map(|mapping| mapping.last), Some(4));
    }

    #[test]
    fn the_tag_moves_when_an_answer_could_have_become_wrong_and_only_then() {
        let map = RangeMap::<u8>::new();
        assert!(!map.tag().is_open());
        map.update(|edit| edit.insert(0..10, 1, Overlap::Reject)).unwrap();
        let first = map.tag();
        map.update(|edit| edit.insert(20..30, 2, Overlap::Split)).unwrap();
        map.update(|edit| edit.grow(20..=u64::MAX)).unwrap();
        map.update(|edit| edit.remove(15..16).map(drop)).unwrap();
        assert_eq!(map.tag(), first);
        map.update(|edit| edit.remove(25..).map(drop)).unwrap();
        let second = map.tag();
        assert_ne!(second, first);
        map.invalidate();
        assert_ne!(map.tag(), second);
    }
}
