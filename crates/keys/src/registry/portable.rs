//! The index where sites are not patched. Objects that come are found; one that leaves is not noticed, so
//! objects with sites must stay loaded there.

use std::sync::Arc;

use super::{KeyEntry, KeyUse, Registry, sort};
use crate::key::Key;

/// A site where sites are not patched.
#[doc(hidden)]
#[derive(Debug)]
pub struct PortableSite {
    key: &'static Key,
}

impl PortableSite {
    /// For the macros.
    pub const fn new(key: &'static Key) -> Self {
        Self { key }
    }
}

inventory::collect!(PortableSite);

/// Everything that is known, at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    /// By name.
    keys: Vec<KeyEntry>,
    /// How many sites it was built of.
    sites: usize,
}

impl Index {
    pub(super) const NOTHING: Self = Self { keys: Vec::new(), sites: 0 };

    fn build() -> Self {
        let mut sites: Vec<&'static Key> =
            inventory::iter::<PortableSite>.into_iter().map(|site| site.key).collect();
        sites.sort_unstable_by_key(|key| key.address());
        let mut keys: Vec<KeyEntry> = sites
            .chunk_by(|a, b| a.address() == b.address())
            .map(|group| KeyEntry {
                usage: KeyUse { key: group[0], sites: group.len(), object: Arc::from("") },
            })
            .collect();
        sort(&mut keys);
        Self { keys, sites: sites.len() }
    }

    pub(super) fn entries(&self) -> &[KeyEntry] {
        &self.keys
    }

    /// Nothing to do for a site that reads its key.
    #[cfg(not(all(test, loom)))]
    #[expect(clippy::unused_self, reason = "the same shape as where text is patched")]
    pub(crate) fn put_to_sleep(&self, _: &Key) -> bool {
        true
    }

    /// Sites are not changed by int3.
    #[cfg(not(all(test, loom)))]
    #[expect(clippy::unused_self, reason = "the same shape as where text is patched")]
    pub(crate) fn needs_int3(&self) -> bool {
        false
    }

    /// How many sites a key has.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn site_count_of(&self, key: &Key) -> usize {
        self.keys.iter().find(|k| k.usage.key.address() == key.address()).map_or(0, |k| k.usage.sites)
    }
}

impl Registry {
    /// Sees that the index is true.
    pub(super) fn refresh(&mut self) {
        let sites = inventory::iter::<PortableSite>.into_iter().count();
        if self.index().sites != sites {
            self.local.index = Some(Index::build());
        }
    }

    /// The same: no object waits here.
    pub(super) fn refresh_index(&mut self) {
        self.refresh();
    }
}
