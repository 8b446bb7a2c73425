//! All keys and their sites, found through the objects' entries.
//!
//! Nothing registers a key: a key is known because a live site names it, so functions that the linker
//! dropped take their keys along. The index is built when it is first asked for and again when an object has
//! come or left; entries lie in read-only data, and cost nothing until then.
//!
//! # Objects that leave
//!
//! A key lies in an object, which `dlclose` may unload. So the index is looked at under the patch lock, which
//! an object that leaves must take ([`crate::object::unregister`]), and whoever is to have a key for longer has
//! its object *pinned* first: it stays until the process ends. [`all`], [`Selector::keys`](crate::Selector::keys)
//! and every [`Lease`](crate::Lease) pin; [`list`] does not.
//!
//! # Locking
//!
//! The patch lock, then [`LOCAL`], then, in a batch, the holds. A constructor calls [`add`] and a destructor [`remove`]
//! under the loader's own lock, so that comes first of all, and under the patch lock nothing may wait for the loader:
//! no `dl_iterate_phdr`, no `dlopen`, no first use of a thread-local that has a destructor or that may lie in an object
//! which was opened later (hence no `HashMap`, whose seeds are one). What the loader knows of an object is asked when
//! it comes, before the lock is taken.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dormouse_sys::loader;
use dormouse_sys::lock::Guard;
use dormouse_sys::rendezvous::{self, Table};

use crate::Error;
use crate::key::Key;

#[cfg(dormouse_patching)]
mod patched;
#[cfg(dormouse_patching)]
pub(crate) use patched::{Index, Site, add, remove};

#[cfg(not(dormouse_patching))]
mod portable;
#[cfg(not(dormouse_patching))]
pub(crate) use portable::Index;
#[cfg(not(dormouse_patching))]
pub use portable::PortableSite;

/// A key and where it is used. The key's object stays loaded.
#[derive(Debug, Clone)]
pub struct KeyUse {
    /// The key.
    pub key: &'static Key,
    /// How many sites branch on it.
    pub sites: usize,
    /// File name of the linked object that the key lives in; empty where that cannot be told.
    pub object: Arc<str>,
}

/// A key and where it is used, while [`list`] shows it.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// The key.
    pub key: &'a Key,
    /// How many sites branch on it.
    pub sites: usize,
    /// File name of the linked object that the key lives in; empty where that cannot be told.
    pub object: &'a str,
}

/// Every key that a site names, by name, then by place. The objects that the keys live in stay loaded from now
/// on; [`list`] is for who only wants to look.
///
/// # Cost
///
/// Sorts all sites of the process at the first call and after an object has come or left; else a copy.
pub fn all() -> Vec<KeyUse> {
    select(|_| true)
}

/// What `each` makes of every key that a site names, by name, then by place. No object is kept loaded for it.
///
/// `each` is called while no batch can run and no object with sites can come or leave. It must not change
/// keys (that is refused), load or unload an object, or wait for who does.
///
/// # Cost
///
/// As [`all`].
pub fn list<T>(mut each: impl FnMut(Listed<'_>) -> T) -> Vec<T> {
    let Ok(registry) = lock() else { return Vec::new() };
    let show =
        |k: &KeyEntry| each(Listed { key: k.usage.key, sites: k.usage.sites, object: &k.usage.object });
    registry.index().entries().iter().map(show).collect()
}

/// How many sites there are.
///
/// # Cost
///
/// As [`all`].
pub fn site_count() -> usize {
    list(|used| used.sites).into_iter().sum()
}

/// The key that `search` finds, which is called under the patch lock. Its object stays.
#[cfg(dormouse_patching)]
pub(crate) fn find(search: impl Fn(&Index) -> Option<&'static Key>) -> Option<&'static Key> {
    loop {
        let registry = lock().ok()?;
        let found = search(registry.index())?;
        let Some(leaving) = registry.first_not_pinned(std::iter::once(found)) else { return Some(found) };
        drop(registry);
        // At the next look it may be gone.
        pin(leaving).ok()?;
    }
}

/// The keys that `wanted` holds for, which is called under the patch lock. Their objects stay.
pub(crate) fn select(wanted: impl Fn(&Key) -> bool) -> Vec<KeyUse> {
    let mut refused = Vec::new();
    loop {
        let Ok(registry) = lock() else { return Vec::new() };
        let is_wanted = |k: &&KeyEntry| wanted(k.usage.key) && !refused.contains(&k.usage.key.address());
        let chosen = || registry.index().entries().iter().filter(is_wanted).map(|k| &k.usage);
        let Some(leaving) = registry.first_not_pinned(chosen().map(|k| k.key)) else {
            return chosen().cloned().collect();
        };
        drop(registry);
        // An object that has left meanwhile is not in the next index; one that cannot be pinned is left out.
        if pin(leaving).is_err() {
            refused.push(leaving);
        }
    }
}

/// Has the objects of these keys stay. Not under the patch lock.
pub(crate) fn keep(keys: &[&'static Key]) -> Result<(), Error> {
    if cfg!(all(test, loom)) {
        // A model's keys are in no object.
        return Ok(());
    }
    loop {
        // One by one: an object is pinned with its first key.
        let leaving = lock()?.first_not_pinned(keys.iter().copied());
        let Some(leaving) = leaving else { return Ok(()) };
        pin(leaving)?;
    }
}

/// Has the object stay that `address` lies in, and remembers that.
fn pin(address: usize) -> Result<(), Error> {
    // On the heap, as it were: it does not leave.
    let range = loader::pin(address)?.unwrap_or(address..address + 1);
    let mut registry = Registry::enter(rendezvous::table()?)?;
    registry.local.pinned.push(range);
    Ok(())
}

#[derive(Debug)]
pub(crate) struct KeyEntry {
    usage: KeyUse,
}

#[cfg(not(all(test, loom)))]
impl Index {
    /// Every key that a site names, by name.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.entries().iter().map(|k| k.usage.key)
    }
}

/// What this copy of dormouse has found out. Locked under the patch lock only.
static LOCAL: Mutex<Local> = Mutex::new(Local { index: None, pinned: Vec::new() });

#[derive(Debug)]
struct Local {
    index: Option<Index>,
    /// The addresses of objects that stay.
    pinned: Vec<Range<usize>>,
}

/// The keys and sites of this moment, which lasts as long as this does: the patch lock is held.
#[derive(Debug)]
pub(crate) struct Registry {
    local: MutexGuard<'static, Local>,
    #[cfg_attr(all(test, loom), expect(dead_code, reason = "a model has no objects"))]
    table: &'static Table,
    /// Last: the local lock is taken and given back under it. None: a fork has it.
    _patch: Option<Guard<'static>>,
}

/// Takes the patch lock, with an index that is true.
pub(crate) fn lock() -> Result<Registry, Error> {
    let mut registry = Registry::enter(rendezvous::table()?)?;
    registry.refresh();
    Ok(registry)
}

impl Registry {
    fn enter(table: &'static Table) -> Result<Self, Error> {
        #[cfg(not(all(test, loom)))]
        crate::fork::guard();
        let patch = table.patch.lock()?;
        Ok(Self::with(table, Some(patch)))
    }

    /// While the calling thread's fork has the patch lock: with an index that is true.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn of_fork(table: &'static Table) -> Self {
        let mut registry = Self::with(table, None);
        registry.refresh_index();
        registry
    }

    fn with(table: &'static Table, patch: Option<Guard<'static>>) -> Self {
        // Nothing that could panic leaves something half done under it.
        let local = LOCAL.lock().unwrap_or_else(PoisonError::into_inner);
        Self { local, table, _patch: patch }
    }

    /// Everything that is known.
    pub(crate) fn index(&self) -> &Index {
        const NOTHING: &Index = &Index::NOTHING;
        self.local.index.as_ref().unwrap_or(NOTHING)
    }

    /// The address of the first of these keys whose object might leave.
    fn first_not_pinned(&self, keys: impl Iterator<Item = &'static Key>) -> Option<usize> {
        let is_pinned = |address: &usize| self.local.pinned.iter().any(|range| range.contains(address));
        keys.map(Key::address).find(|address| !is_pinned(address))
    }

    /// Says that keys have left the state that sites are assembled for.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn set_switched(&self) {
        // Under the patch lock, as the load in `add`.
        self.table.switched.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

fn sort(keys: &mut [KeyEntry]) {
    keys.sort_by_key(|k| (k.usage.key.name(), k.usage.key.file(), k.usage.key.line(), k.usage.key.address()));
}
