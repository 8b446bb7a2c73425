//! Lists of all keys of the process.

use std::cell::RefCell;

use dormouse_sys::readable::Pages;

use crate::Error;
use crate::key::Key;
use crate::registry::{self, KeyUse, Mismatches, Registry};
use crate::room::collect;

/// A key with the number of its sites, as [`list`] passes it to its callback.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// The key.
    pub key: &'a Key,
    /// How many sites branch on the key.
    pub sites: usize,
    /// File name of the linked object that contains the key, or empty if it is unknown.
    pub object: &'a str,
    registry: &'a Registry,
    /// A question for many keys whose sites lie on one page.
    pages: &'a RefCell<Pages>,
}

impl Listed<'_> {
    /// Compares the code of the key's sites with the key's state, and counts the sites that differ.
    /// Where sites load their key, none ever does.
    ///
    /// # Cost
    ///
    /// Reads each site, with one system call for each page of sites.
    pub fn mismatches(&self) -> Mismatches {
        self.registry.mismatches(self.key, &mut self.pages.borrow_mut())
    }
}

/// Every key that a site names, sorted by name and then by place. Calls [`try_all`]; empty where
/// that fails.
pub fn all() -> Vec<KeyUse> {
    try_all().unwrap_or_default()
}

/// Every key that a site names, sorted by name and then by place. The objects that contain the keys
/// stay loaded from now on; [`try_list`] does not have that effect.
///
/// # Cost
///
/// At the first call, and after an object has been loaded or unloaded, sorts all sites of the
/// process; otherwise copies the list.
///
/// # Errors
///
/// See [`try_list`].
pub fn try_all() -> Result<Vec<KeyUse>, Error> {
    registry::select(|_| (), |()| true)
}

/// The number of keys that [`list`] would have; 0 where that fails.
///
/// # Cost
///
/// Two loads; after an object has been loaded or unloaded, the lock that batches take, once.
pub fn count() -> usize {
    registry::count().unwrap_or_default()
}

/// The number of sites of all keys; 0 where they cannot be listed.
///
/// # Cost
///
/// See [`count`].
pub fn count_sites() -> usize {
    registry::count_sites().unwrap_or_default()
}

/// The number of keys that are on; 0 where they cannot be listed.
///
/// # Cost
///
/// Four loads; after keys were switched, or an object loaded or unloaded, a check of each key under
/// the lock that batches take, once.
pub fn count_on() -> usize {
    registry::count_on().unwrap_or_default()
}

/// Calls `each` for every key that a site names and returns the results. Calls [`try_list`]; empty
/// where that fails.
pub fn list<T>(each: impl FnMut(Listed<'_>) -> T) -> Vec<T> {
    try_list(each).unwrap_or_default()
}

/// Calls `each` for every key that a site names, sorted by name and then by place, and returns the
/// results. No object is kept loaded for it.
///
/// `each` is called while no batch can run and no object with sites can be loaded or unloaded. It
/// must not change keys (that is refused), load or unload an object, or wait for a thread that
/// does.
///
/// # Cost
///
/// See [`try_all`].
///
/// # Errors
///
/// If another copy of dormouse leads this process and this one cannot follow it; if the caller is a
/// signal handler that interrupted a batch, a listing or a fork of its thread; or if there is no
/// memory.
pub fn try_list<T>(mut each: impl FnMut(Listed<'_>) -> T) -> Result<Vec<T>, Error> {
    let registry = registry::lock()?;
    let pages = RefCell::new(Pages::new());
    let show = |used: &KeyUse| {
        let &KeyUse { key, sites, ref object } = used;
        each(Listed { key, sites, object, registry: &registry, pages: &pages })
    };
    Ok(collect(registry.keys().iter().map(show))?)
}
