//! The index where sites are not patched. Newly loaded objects are found, but unloading goes
//! unnoticed, so objects with sites must stay loaded there.
#![expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "the shapes of where text is patched")]

use std::sync::Arc;

use super::{KeyUse, Local, Mismatches, Registry, sort};
use crate::key::Key;
use crate::patch_lock::PatchLock;
#[cfg(not(all(test, loom)))]
use crate::room::collect;

/// A site where sites are not patched.
#[doc(hidden)]
#[derive(Debug)]
pub struct PortableSite {
    key: &'static Key,
}

impl PortableSite {
    /// Called by the macros.
    pub const fn new(key: &'static Key) -> Self {
        Self { key }
    }
}

inventory::collect!(PortableSite);

/// Another number whenever an object has come.
pub(super) fn generation() -> Result<u64, crate::Error> {
    Ok(inventory::iter::<PortableSite>.into_iter().count() as u64)
}

/// The keys of one moment.
#[derive(Debug)]
pub(super) struct Index {
    /// By name.
    pub(super) keys: Vec<KeyUse>,
    /// How many sites it was built of.
    sites: usize,
}

impl Index {
    pub(super) const NOTHING: Self = Self { keys: Vec::new(), sites: 0 };

    fn build() -> Self {
        let mut sites: Vec<&'static Key> =
            inventory::iter::<PortableSite>.into_iter().map(|site| site.key).collect();
        sites.sort_unstable_by_key(|key| key.address());
        let mut keys: Vec<KeyUse> = sites
            .chunk_by(|a, b| a.address() == b.address())
            .map(|group| KeyUse { key: group[0], sites: group.len(), object: Arc::from("") })
            .collect();
        sort(&mut keys);
        Self { keys, sites: sites.len() }
    }

    /// Another one whenever an object has come.
    pub(super) fn generation(&self) -> u64 {
        self.sites as u64
    }

    /// Objects are not known here.
    pub(super) fn is_in_object(&self, _: usize) -> bool {
        false
    }

    /// Nothing to do for a site that reads its key.
    pub(super) fn put_to_sleep(&self, _: &'static Key) -> bool {
        true
    }
}

impl Local {
    /// Sees that the index is true.
    #[expect(clippy::unnecessary_wraps, reason = "as where code is patched")]
    pub(super) fn refresh_index(&mut self, _: PatchLock<'_>) -> Result<(), crate::Error> {
        let sites = inventory::iter::<PortableSite>.into_iter().count();
        if self.index.sites != sites {
            self.index = Index::build();
        }
        Ok(())
    }
}

impl Registry {
    /// Does nothing: here no object waits to be indexed.
    pub(super) fn refresh(&mut self) -> Result<(), crate::Error> {
        self.local.refresh_index(PatchLock::new(self.table, &self.patch))
    }

    /// Sites read their key.
    pub(crate) fn mismatches(&self, _: &Key, _: &mut dormouse_sys::readable::Pages) -> Mismatches {
        Mismatches::default()
    }

    /// No object is lost here.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn check_there(&self, _: impl Iterator<Item = &'static Key>) -> Result<(), crate::Error> {
        Ok(())
    }

    /// The sites of keys, which are in order of address, follow their states by themselves.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn write(
        &self,
        keys: impl Iterator<Item = (&'static Key, bool)>,
        _: usize,
        _: crate::Protocol,
    ) -> Result<crate::BatchReport, crate::Error> {
        let switched = collect(keys.map(|(key, _)| key.address()))?;
        let is_switched = |site: &&PortableSite| switched.binary_search(&site.key.address()).is_ok();
        let sites = inventory::iter::<PortableSite>.into_iter().filter(is_switched).count();
        Ok(crate::BatchReport { sites, ..Default::default() })
    }
}
