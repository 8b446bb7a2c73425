//! Every key of the process, listed.

use std::cell::RefCell;

use dormouse_sys::readable::Pages;

use crate::Error;
use crate::key::Key;
use crate::registry::{self, Astray, KeyUse, Registry};
use crate::room::collect;

/// A key with the number of its sites, while [`list`] shows it.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// The key.
    pub key: &'a Key,
    /// How many sites branch on it.
    pub sites: usize,
    /// File name of the linked object that the key lives in; empty where that cannot be told.
    pub object: &'a str,
    registry: &'a Registry,
    /// A question for many keys whose sites lie on one page.
    pages: &'a RefCell<Pages>,
}

impl Listed<'_> {
    /// Compares the code of the key's sites with the key's state. Nothing is astray where sites
    /// read their key.
    ///
    /// # Cost
    ///
    /// Reads each site; a system call for each page of them.
    pub fn astray(&self) -> Astray {
        self.registry.astray(self.key, &mut self.pages.borrow_mut())
    }
}

/// Every key that a site names, by name, then by place: [`try_all`], or none where that fails.
pub fn all() -> Vec<KeyUse> {
    try_all().unwrap_or_default()
}

/// Every key that a site names, by name, then by place. The objects that the keys live in stay
/// loaded from now on; [`try_list`] is for a look.
///
/// # Cost
///
/// Sorts all sites of the process at the first call and after an object has come or left; else a
/// copy.
///
/// # Errors
///
/// Those of [`try_list`].
pub fn try_all() -> Result<Vec<KeyUse>, Error> {
    registry::select(|_| true)
}

/// The results of `each` for every key that a site names: [`try_list`], or none where that fails.
pub fn list<T>(each: impl FnMut(Listed<'_>) -> T) -> Vec<T> {
    try_list(each).unwrap_or_default()
}

/// The results of `each` for every key that a site names, by name, then by place. No object is kept
/// loaded for it.
///
/// `each` is called while no batch can run and no object with sites can come or leave. It must not
/// change keys (that is refused), load or unload an object, or wait for a thread that does.
///
/// # Cost
///
/// That of [`try_all`].
///
/// # Errors
///
/// Another copy of dormouse leads this process and cannot be followed; the caller is a signal
/// handler over a batch, a listing or a fork of its thread; or there is no memory.
pub fn try_list<T>(mut each: impl FnMut(Listed<'_>) -> T) -> Result<Vec<T>, Error> {
    let registry = registry::lock()?;
    let pages = RefCell::new(Pages::new());
    let show = |used: &KeyUse| {
        let &KeyUse { key, sites, ref object } = used;
        each(Listed { key, sites, object, registry: &registry, pages: &pages })
    };
    Ok(collect(registry.keys().iter().map(show))?)
}
