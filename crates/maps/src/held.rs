//! Several look-ups in one map as it was at one moment.

use crate::cache::Cache;
use crate::error::NoSlot;
use crate::generation::Tag;
use crate::map::RangeMap;
use crate::mapping::Mapping;
use crate::snapshot::Snapshot;

/// A map at one moment.
#[derive(Debug)]
pub struct Held<'a, V> {
    tag: Tag,
    snapshot: Option<&'a Snapshot<V>>,
}

impl<V: Copy> Held<'_, V> {
    /// The mapping that contains `addr`, from `cache` if it has it.
    #[inline]
    pub fn find(&self, cache: &Cache<V>, addr: u64) -> Option<Mapping<V>> {
        let snapshot = self.snapshot?;
        cache.find_or(addr, self.tag, || snapshot.find(addr))
    }

    /// The mapping that contains `addr`.
    #[inline]
    pub fn find_uncached(&self, addr: u64) -> Option<Mapping<V>> {
        self.snapshot?.find(addr)
    }
}

/// For several look-ups.
impl<V: Copy, const WIDTH: u32> RangeMap<V, WIDTH> {
    /// Gives `look` the map as it is now, for several look-ups. Until `look` returns,
    /// [`RangeMap::is_settled`] is false once this map has changed: memory to which values lead can
    /// be kept until nobody has an old one.
    ///
    /// # Async-signal-safety
    ///
    /// That of `look`; reads no thread-local.
    #[inline]
    pub fn hold<R>(&self, look: impl FnOnce(Held<'_, V>) -> R) -> Result<R, NoSlot> {
        let before = self.tag();
        self.read_without_hint(|snapshot| {
            // The same generation before and after: the snapshot is of it, too.
            let tag = self.tag();
            look(Held { tag: if tag == before { tag } else { Tag::CLOSED }, snapshot })
        })
    }
}
