//! The map: readers search a snapshot, writers make a new one.
//!
//! # Locking
//!
//! The writers' lock of [`Published`] is held for a whole update, so updates come one after the other. Readers
//! take no lock. An update from inside an update of the same map would wait for itself.

use crate::cache::Cache;
use crate::changes::Changes;
use crate::entry::Entry;
use crate::generation::{Stamp, Tag};
use crate::mapping::Extent;
use crate::primitive::const_unless_loom;
use crate::publish::Published;
use crate::slots::Slots;
use crate::snapshot::Snapshot;
use crate::{Edit, Mapping, NoSlot};

/// Which mapping an address lies in.
///
/// `V` is what lies there, given out by copy: an index, an `Arc`'s address that something else keeps alive. `WIDTH` is
/// how many generations, as a power of two, the map counts before it takes a new identity; leave it.
///
/// # Async-signal-safety
///
/// [`RangeMap::find`] and [`RangeMap::find_cached`] may be called from signal handlers, also in the middle of
/// themselves and of an update. Nothing else may.
#[derive(Debug)]
pub struct RangeMap<V, const WIDTH: u32 = 16> {
    stamp: Stamp<WIDTH>,
    published: Published<Snapshot<V>>,
    changes: Changes,
}

/// What an update has inserted last.
#[derive(Debug)]
pub(crate) struct Inserted<V> {
    pub(crate) mapping: Mapping<V>,
    /// Under which it is there.
    pub(crate) tag: Tag,
    /// The generation that the update ended, and where answers of it could be wrong now.
    pub(crate) outdated: Option<(Tag, Extent)>,
}

impl<V: Copy> RangeMap<V> {
    const_unless_loom! {
        /// A map of nothing.
        pub fn new() -> Self {
            Self::with_width()
        }
    }
}

impl<V: Copy, const WIDTH: u32> RangeMap<V, WIDTH> {
    const_unless_loom! {
        /// A map of nothing whose generations come round after `2^WIDTH` of them, which tests make them do.
        pub fn with_width() -> Self {
            Self {
                stamp: Stamp::new(),
                published: Published::nothing(Slots::of_process()),
                changes: Changes::new(),
            }
        }
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
    // Else the way round a resting cache is too much for the compiler, and a hit pays for a call.
    #[inline(always)]
    pub fn find_cached(&self, cache: &Cache<V>, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        cache.find(addr, self)
    }

    /// The mapping that `addr` lies in, else the next one above it.
    pub fn find_or_next(&self, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        self.published.read(|snapshot| snapshot.and_then(|snapshot| snapshot.find_or_next(addr)))
    }

    /// All mappings at one moment, by address.
    pub fn mappings(&self) -> Result<Vec<Mapping<V>>, NoSlot> {
        self.published
            .read(|snapshot| snapshot.map_or_else(Vec::new, |snapshot| snapshot.mappings().to_vec()))
    }

    /// How many mappings there are.
    pub fn len(&self) -> Result<usize, NoSlot> {
        self.published.read(|snapshot| snapshot.map_or(0, |snapshot| snapshot.mappings().len()))
    }

    /// Whether there is no mapping.
    pub fn is_empty(&self) -> Result<bool, NoSlot> {
        Ok(self.len()? == 0)
    }

    /// Makes the changes that `edit` makes: readers see all of them or none. When it refuses, or panics, there are none.
    ///
    /// Cached answers stay good unless they could have become wrong.
    ///
    /// # Cost
    ///
    /// An absolute slow path: the map is copied, whatever the number of changes.
    pub fn update<E>(&self, edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>) -> Result<(), E> {
        self.change(edit).map(drop)
    }

    /// [`RangeMap::update`] by a thread that will look up itself what it has just mapped: `cache`, which is its own,
    /// takes the mapping in that was inserted last.
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

    /// Makes the changes.
    fn change<E>(&self, edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>) -> Result<Option<Inserted<V>>, E> {
        let mut writer = self.published.write();
        let there = writer.current().map_or_else(Vec::new, |snapshot| snapshot.mappings().to_vec());
        let mut changes = Edit::of(there);
        edit(&mut changes)?;
        let mapping = changes.inserted();
        let mut outdated = None;
        if changes.is_changed() {
            let touched = changes.outdated();
            let snapshot = Box::new(Snapshot::new(changes.into_mappings()));
            // The first update gives the map its identity.
            if touched.is_some() || !self.tag().is_open() {
                let ended = self.stamp.close();
                if let Some(extent) = touched {
                    self.changes.record(ended, extent);
                    outdated = Some((ended, extent));
                }
                writer.replace(snapshot);
                self.stamp.open(ended);
            } else {
                writer.replace(snapshot);
            }
        }
        writer.free_unread();
        Ok(mapping.map(|mapping| Inserted { mapping, tag: self.tag(), outdated }))
    }

    /// Makes every cached answer of this map stale, in all threads, in constant time.
    ///
    /// For maps of something that has changed behind them: values that stand for other things now.
    pub fn invalidate(&self) {
        let _writer = self.published.write();
        let closed = self.stamp.close();
        self.changes.record(closed, Extent::ALL);
        self.stamp.open(closed);
    }

    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.stamp.read()
    }

    /// Whether the answer in `entry`, which bears an older tag, is known to be right under the tag `now` too.
    #[cold]
    pub(crate) fn spared(&self, entry: &Entry<V>, now: Tag) -> bool {
        self.changes.spared(&self.stamp, entry.tag(), now, entry.extent())
    }
}

impl<V: Copy, const WIDTH: u32> Default for RangeMap<V, WIDTH> {
    fn default() -> Self {
        Self::with_width()
    }
}

#[cfg(all(test, not(loom)))]
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

#[cfg(all(test, loom))]
mod interleavings {
    //! `RUSTFLAGS="--cfg loom" cargo test -p dormouse-maps --lib interleavings`

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::Overlap;

    /// As many switches away from a thread that could go on as show each of the errors that were tried; all there are take
    /// hours.
    fn bounded(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(test);
    }

    /// The writer gives the mappings at `places`, one after the other, the number of the update as their value. The
    /// reader asks for the one at 0, again with the first answer in its cache: what it is told was so between call and
    /// return.
    fn timely(places: &'static [u64]) {
        let changed = places.iter().position(|&at| at == 0).unwrap() as u32 + 1;
        bounded(move || {
            let map = Arc::new(RangeMap::<u32>::new());
            let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            map.update(|edit| places.iter().try_for_each(|&at| edit.insert(at..at + 10, 0, Overlap::Reject)))
                .unwrap();
            let reader = {
                let (map, begun, ended) = (Arc::clone(&map), Arc::clone(&begun), Arc::clone(&ended));
                loom::thread::spawn(move || {
                    let cache = Cache::new();
                    for _ in 0..2 {
                        let low = ended.load(Ordering::Acquire);
                        let answer = map.find_cached(&cache, 5).unwrap().unwrap().value;
                        let high = begun.load(Ordering::Acquire);
                        assert!(answer == 0 && low < changed || answer == changed && high >= changed);
                    }
                })
            };
            for (number, &at) in (1..).zip(places) {
                begun.store(number, Ordering::Release);
                map.update(|edit| edit.insert(at..at + 10, number, Overlap::Replace)).unwrap();
                ended.store(number, Ordering::Release);
            }
            reader.join().unwrap();
        });
    }

    #[test]
    fn every_answer_was_true_between_call_and_return() {
        timely(&[0]);
    }

    #[test]
    fn so_was_one_that_changes_have_spared_or_not() {
        timely(&[40, 0, 60]);
    }
}
