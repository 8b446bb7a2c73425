//! All keys and their sites, found through the objects' entries.
//!
//! Nothing registers a key: a key is known because a live site names it, so keys of functions that
//! the linker dropped are gone with them. The index is built when it is first used, and again when
//! an object has been loaded or unloaded. Entries lie in read-only data, and cost nothing until
//! then.
//!
//! # Objects that leave
//!
//! A key lies in an object, which `dlclose` may unload. So the index is read under the patch lock,
//! which also unloading takes. For a caller that is to keep a key for longer, the key's object is
//! *pinned* first: it stays loaded until the process ends (`pin`).
//!
//! # Locking
//!
//! The patch lock, then [`LOCAL`]. Only what the loader keeps for good is noted under [`LOCAL`]
//! alone.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};
use dormouse_sys::process::lock::Guard;
use dormouse_sys::rendezvous::{self, Table};

use crate::Error;
use crate::key::Key;
use crate::patch_lock::PatchLock;

mod fork;
mod pin;

#[cfg(dormouse_patching)]
mod index;
#[cfg(dormouse_patching)]
mod objects;
#[cfg(all(test, dormouse_patching))]
pub(crate) use index::first_site;
#[cfg(dormouse_patching)]
use index::{Index, generation};
#[cfg(dormouse_patching)]
pub use objects::{register, unregister};

#[cfg(not(dormouse_patching))]
mod portable;
#[cfg(not(dormouse_patching))]
pub use portable::PortableSite;
#[cfg(not(dormouse_patching))]
use portable::{Index, generation};

pub(crate) use pin::{lock_pinned, select};

/// A key with the number of its sites. The key's object stays loaded.
#[derive(Debug, Clone)]
pub struct KeyUse {
    /// The key.
    pub key: &'static Key,
    /// How many sites branch on the key.
    pub sites: usize,
    /// File name of the linked object that contains the key, or empty if it is unknown.
    pub object: Arc<str>,
}

/// Sites whose code does not match the state of their key.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Mismatches {
    /// Number of sites with the code of the other state. Something has put it back: a uprobe that
    /// was removed, a tool that rewrites code. They follow their key again when it has changed to
    /// the other state and back.
    pub stale: usize,
    /// Number of sites with other code, such as a breakpoint. Their effect is unknown, and batches
    /// with their key are refused.
    pub foreign: usize,
}

/// The numbers of keys and of sites in the index, and 1 more than the generation of the list of
/// objects that they are true for.
static KEYS: AtomicUsize = AtomicUsize::new(0);
static SITES: AtomicUsize = AtomicUsize::new(0);
static COUNTED: AtomicU64 = AtomicU64::new(0);

/// The number of keys that are on, and 1 more than the count of switches that it is true for.
static ON: AtomicUsize = AtomicUsize::new(0);
static ON_COUNTED: AtomicU64 = AtomicU64::new(0);

/// How often the patch lock was taken here.
#[cfg(feature = "counting")]
static LOCKED: AtomicU64 = AtomicU64::new(0);

/// The findings of this copy of dormouse.
static LOCAL: Mutex<Local> = Mutex::with_hooks(
    Phase::Registry,
    Local { index: Index::NOTHING, pinned: Vec::new() },
    fork::before,
    fork::in_child,
);

#[derive(Debug)]
struct Local {
    index: Index,
    /// The memory of objects that stay, in order of address.
    pinned: Vec<Range<usize>>,
}

/// The keys and sites of this moment, which lasts as long as this does: the patch lock is held.
#[derive(Debug)]
pub(crate) struct Registry {
    local: MutexGuard<Local>,
    table: &'static Table,
    /// Last: the local lock is taken and given back under it.
    patch: Guard<'static>,
}

/// Takes the patch lock, with an index that is true.
pub(crate) fn lock() -> Result<Registry, Error> {
    let table = rendezvous::table()?;
    fork::join();
    let patch = table.patch.lock()?;
    #[cfg(feature = "counting")]
    LOCKED.fetch_add(1, Ordering::Relaxed);
    let mut registry = Registry { local: LOCAL.lock()?, table, patch };
    registry.refresh()?;
    let index = &registry.local.index;
    if COUNTED.load(Ordering::Relaxed) != index.generation() + 1 {
        KEYS.store(index.keys.len(), Ordering::Relaxed);
        SITES.store(index.keys.iter().map(|used| used.sites).sum(), Ordering::Relaxed);
        // The keys of another list: how many are on is unknown.
        ON_COUNTED.store(0, Ordering::Relaxed);
        // Pairs with the load in `count_objects`.
        COUNTED.store(index.generation() + 1, Ordering::Release);
    }
    Ok(registry)
}

/// The number of keys that sites name. It takes the patch lock only after an object has come or
/// left; so does [`count_sites`].
pub(crate) fn count() -> Result<usize, Error> {
    count_objects()?;
    Ok(KEYS.load(Ordering::Relaxed))
}

/// The number of sites.
pub(crate) fn count_sites() -> Result<usize, Error> {
    count_objects()?;
    Ok(SITES.load(Ordering::Relaxed))
}

/// The number of keys that are on. It takes the patch lock only after a key was switched, or an
/// object has come or left.
pub(crate) fn count_on() -> Result<usize, Error> {
    count_objects()?;
    let switches = &rendezvous::table()?.switches;
    // Pairs with the store below: the number is of this count of switches, or of a later one. The
    // load of `switches` pairs with the addition in `Key::publish`.
    if ON_COUNTED.load(Ordering::Acquire) != switches.load(Ordering::Acquire) + 1 {
        let registry = lock()?;
        let on = registry.keys().iter().filter(|used| used.key.is_enabled()).count();
        ON.store(on, Ordering::Relaxed);
        ON_COUNTED.store(switches.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
    Ok(ON.load(Ordering::Relaxed))
}

/// Sees to it that the numbers are of the objects that are loaded now.
fn count_objects() -> Result<(), Error> {
    // Pairs with the store in `lock`: the numbers are of this generation, or of a later one.
    if COUNTED.load(Ordering::Acquire) != generation()? + 1 {
        lock()?;
    }
    Ok(())
}

/// How often batches and listings of this copy of dormouse have taken the patch lock.
#[cfg(feature = "counting")]
#[doc(hidden)]
pub fn patch_locks() -> u64 {
    LOCKED.load(Ordering::Relaxed)
}

impl Registry {
    pub(crate) fn patch_lock(&self) -> PatchLock<'_> {
        PatchLock::new(self.table, &self.patch)
    }

    /// Every key that a site names, by name, then by place.
    pub(crate) fn keys(&self) -> &[KeyUse] {
        &self.local.index.keys
    }
}

/// Sorts keys by name, then by place, without memory for it.
fn sort(keys: &mut [KeyUse]) {
    keys.sort_unstable_by_key(|used| (used.key.name(), used.key.file(), used.key.line(), used.key.address()));
}

/// The index of the range, of those in order of address, that holds an address.
fn position(ranges: &[Range<usize>], address: usize) -> Option<usize> {
    let at = ranges.partition_point(|range| range.start <= address).checked_sub(1)?;
    ranges[at].contains(&address).then_some(at)
}
