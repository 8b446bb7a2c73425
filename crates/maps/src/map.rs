//! The map: readers search a snapshot, writers make a new one.
//!
//! # Locking
//!
//! An update holds the writers' lock of [`Published`] from its beginning to its end, so there is
//! one update at a time. Readers take no lock. An update inside an update of the same map would
//! wait for itself.

use crate::changes::Changes;
use crate::edit::Edit;
use crate::error::NoSlot;
use crate::generation::{Stamp, Tag};
use crate::mapping::{Extent, Mapping};
use crate::primitive::const_unless_loom;
use crate::publish::Published;
use crate::slots::Slots;
use crate::snapshot::Snapshot;

/// A map from ranges of addresses to values.
///
/// `V` is the value of a mapping, returned by copy: an index, or the address of an `Arc` that
/// something else keeps alive. The map counts `2^WIDTH` generations before it takes a new identity;
/// only tests have a reason to change that.
///
/// # Async-signal-safety
///
/// A signal handler may call [`RangeMap::find`], [`RangeMap::find_cached`] and [`RangeMap::hold`],
/// even if it interrupts one of them or an update. It must not call anything else.
#[derive(Debug)]
pub struct RangeMap<V, const WIDTH: u32 = 16> {
    stamp: Stamp<WIDTH>,
    published: Published<Snapshot<V>>,
    changes: Changes,
}

/// The mapping that an update has inserted last.
#[derive(Debug)]
pub(crate) struct Inserted<V> {
    pub(crate) mapping: Mapping<V>,
    /// The map's tag since the update.
    pub(crate) tag: Tag,
    /// The generation that the update ended, and the addresses about which answers of it could be
    /// wrong now.
    pub(crate) outdated: Option<(Tag, Extent)>,
}

impl<V: Copy> RangeMap<V> {
    const_unless_loom! {
        /// An empty map.
        pub fn new() -> Self {
            Self::with_width()
        }
    }
}

impl<V: Copy, const WIDTH: u32> RangeMap<V, WIDTH> {
    const_unless_loom! {
        /// An empty map whose generation counter wraps after `2^WIDTH`, for tests.
        pub fn with_width() -> Self {
            Self {
                stamp: Stamp::new(),
                published: Published::nothing(Slots::of_process()),
                changes: Changes::new(),
            }
        }
    }

    /// Searches the mapping that contains `addr`.
    #[inline]
    pub fn find(&self, addr: u64) -> Result<Option<Mapping<V>>, NoSlot> {
        self.published.read(|snapshot| snapshot.and_then(|snapshot| snapshot.find(addr)))
    }

    /// Whether every look-up that began before the last change has ended.
    pub fn is_settled(&self) -> bool {
        self.published.write().free_unread() == 0
    }

    /// All mappings at one moment, sorted by address.
    pub fn mappings(&self) -> Result<Vec<Mapping<V>>, NoSlot> {
        self.published
            .read(|snapshot| snapshot.map_or_else(Vec::new, |snapshot| snapshot.mappings().to_vec()))
    }

    /// Makes the changes of `edit`: readers see all of them or none. If `edit` fails or panics,
    /// nothing changes.
    ///
    /// Cached answers stay valid unless the changes could have made them wrong.
    ///
    /// # Cost
    ///
    /// Slow: copies the map, once for all changes.
    pub fn update<E>(&self, edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>) -> Result<(), E> {
        self.change(edit).map(drop)
    }

    /// [`RangeMap::update`]; also the mapping that it inserted last.
    pub(crate) fn change<E>(
        &self,
        edit: impl FnOnce(&mut Edit<V>) -> Result<(), E>,
    ) -> Result<Option<Inserted<V>>, E> {
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
                let ended = self.stamp.close(&writer);
                if let Some(extent) = touched {
                    self.changes.record(&writer, ended, extent);
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

    /// Gives `look` the snapshot of this moment, without a thread-local.
    #[inline]
    pub(crate) fn read_without_hint<R>(
        &self,
        look: impl FnOnce(Option<&Snapshot<V>>) -> R,
    ) -> Result<R, NoSlot> {
        self.published.read_without_hint(look)
    }

    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        self.stamp.read()
    }

    /// Whether an answer about `extent` that bears the older tag `old` is known to be right under
    /// the tag `now` too.
    #[cold]
    pub(crate) fn spared(&self, old: Tag, extent: Extent, now: Tag) -> bool {
        self.changes.spared(old, extent) && self.tag() == now
    }
}

impl<V: Copy, const WIDTH: u32> Default for RangeMap<V, WIDTH> {
    fn default() -> Self {
        Self::with_width()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod interleavings;
