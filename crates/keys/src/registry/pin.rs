//! Objects that stay loaded, because keys in them were handed out or are leased.
//!
//! Objects are pinned without the patch lock, because the loader's lock comes before it, and a key
//! that was seen under the patch lock may be unloaded by then. So the keys are chosen again, until
//! no object was loaded or unloaded between a choice and the pinning of its objects. Then a key
//! that lies in no object did not lie in an unloaded one.
//!
//! Nothing is cached for a key that lies in no object: it may be on the heap, or its object may be
//! gone and another may take its place later.
//!
//! # Safety
//!
//! The unsafe code turns the address of a key that was seen under the patch lock into a reference,
//! once its object is pinned.
#![allow(unsafe_code)]

use std::collections::TryReserveError;
use std::ops::Range;
use std::sync::Arc;

use dormouse_sys::loader::{self, PinError};

use super::{KeyUse, LOCAL, Local, Registry, generation, lock, position};
use crate::Error;
use crate::key::Key;
use crate::room::{collect, extend};

/// A key as it was seen under the patch lock. It may be gone since.
struct Seen<T> {
    key: *const Key,
    sites: usize,
    object: Arc<str>,
    about: T,
    /// Whether its object was pinned.
    stays: bool,
    /// Whether it lay in an object with sites.
    is_in_object: bool,
}

/// The keys for which `wanted` holds, by what `look` sees of each under the patch lock. It is taken
/// once, and `wanted` is called without it. The objects of the keys stay; a key in an object that
/// cannot stay is left out.
pub(crate) fn select<T>(look: impl Fn(&Key) -> T, wanted: impl Fn(&T) -> bool) -> Result<Vec<KeyUse>, Error> {
    loop {
        let registry = lock()?;
        let index = &registry.local.index;
        let see = |used: &KeyUse| Seen {
            key: used.key,
            sites: used.sites,
            object: Arc::clone(&used.object),
            about: look(used.key),
            stays: registry.is_pinned(used.key.address()),
            is_in_object: index.is_in_object(used.key.address()),
        };
        let (seen_in, mut seen) = (index.generation(), collect(registry.keys().iter().map(see))?);
        drop(registry);
        seen.retain(|one| wanted(&one.about));
        let mut might_leave = collect(seen.iter().filter(|one| !one.stays).map(|one| one.key.addr()))?;
        might_leave.sort_unstable();
        let Asked { loose, mut stay, .. } =
            if might_leave.is_empty() { Asked::default() } else { ask(&might_leave)? };
        // An object that was unloaded before the loader was asked has changed it: the loader's lock
        // is held while an object leaves.
        if !might_leave.is_empty() && generation()? != seen_in {
            continue;
        }
        stay.sort_unstable_by_key(|range| range.start);
        seen.retain(|one| {
            let at = one.key.addr();
            let is_loose = || loose.binary_search(&at).is_ok() && !one.is_in_object;
            one.stays || position(&stay, at).is_some() || is_loose()
        });
        // For a batch with these keys, which then asks the loader for nothing.
        LOCAL.lock()?.remember(stay)?;
        let there = seen.into_iter().map(|Seen { key, sites, object, .. }| {
            // SAFETY: the key was there when it was seen, no object has come or gone until its own
            // was pinned, and a key in no object is there for good, as the macros promise.
            KeyUse { key: unsafe { &*key }, sites, object }
        });
        return Ok(collect(there)?);
    }
}

/// The registry, with the objects of these keys pinned. The caller keeps the objects until then.
pub(crate) fn lock_pinned(keys: &(impl Iterator<Item = &'static Key> + Clone)) -> Result<Registry, Error> {
    let mut asked: Option<(u64, Asked)> = None;
    loop {
        let mut registry = lock()?;
        if let Some((_, asked)) = &mut asked {
            registry.local.remember(std::mem::take(&mut asked.stay))?;
        }
        let might_leave = registry.not_pinned(keys.clone())?;
        let index = &registry.local.index;
        let generation = index.generation();
        match asked {
            _ if might_leave.is_empty() => return Ok(registry),
            Some((of, Asked { loose, refused, .. })) if of == generation => {
                let is_loose = |at: usize| loose.binary_search(&at).is_ok() && !index.is_in_object(at);
                let Some(at) = might_leave.into_iter().find(|&at| !is_loose(at)) else {
                    return Ok(registry);
                };
                let unknown = || {
                    let object = format!("the object with the key at {at:#x}");
                    PinError { object, reason: "the loader does not show it".into() }
                };
                return Err(refused.unwrap_or_else(unknown).into());
            }
            _ => {}
        }
        drop(registry);
        asked = Some((generation, ask(&might_leave)?));
    }
}

/// The loader's answer about some keys.
#[derive(Debug, Default)]
struct Asked {
    /// The addresses, in order, of those that lie in no object, as far as the loader shows.
    loose: Vec<usize>,
    /// The memory of the others' objects, which stay now.
    stay: Vec<Range<usize>>,
    /// Why the object of one cannot stay.
    refused: Option<PinError>,
}

/// Has the loader pin the objects of keys at these addresses, which are in order. Not under the
/// patch lock.
fn ask(keys: &[usize]) -> Result<Asked, Error> {
    let mapped = loader::mapped()?;
    let segment = |key: usize| position(&mapped, key);
    let mut asked = Asked::default();
    // One question for all keys of a segment.
    for together in keys.chunk_by(|&a, &b| segment(a) == segment(b)) {
        if segment(together[0]).is_none() {
            extend(&mut asked.loose, together.iter().copied())?;
            continue;
        }
        match loader::pin(together[0]) {
            Ok(segments) => {
                extend(&mut asked.stay, segments.unwrap_or_default().into_iter().map(|s| s.range))?;
            }
            Err(why) => asked.refused = Some(why),
        }
    }
    Ok(asked)
}

impl Registry {
    /// Whether an address lies in an object that stays.
    fn is_pinned(&self, address: usize) -> bool {
        position(&self.local.pinned, address).is_some()
    }

    /// The addresses, in order, of those keys whose objects might leave.
    fn not_pinned(&self, keys: impl Iterator<Item = &'static Key>) -> Result<Vec<usize>, TryReserveError> {
        let mut might_leave = collect(keys.map(Key::address).filter(|&address| !self.is_pinned(address)))?;
        might_leave.sort_unstable();
        Ok(might_leave)
    }
}

impl Local {
    /// Remembers that the objects stay to which this memory belongs.
    fn remember(&mut self, ranges: Vec<Range<usize>>) -> Result<(), TryReserveError> {
        let pinned = &mut self.pinned;
        pinned.try_reserve(ranges.len())?;
        for range in ranges {
            let at = pinned.partition_point(|other| other.start < range.start);
            if pinned.get(at) != Some(&range) {
                pinned.insert(at, range);
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use dormouse_testkit::thread_cpu;

    use super::*;
    use crate::{StaticKey, static_key};

    static_key! { static OWN: "registry.own" = false; }

    #[test]
    fn pinning_heap_keys_remembers_none() {
        let new = |_| StaticKey::<false>::new("heap", file!(), line!());
        let keys: &'static [StaticKey<false>] = Vec::leak((0..50_000).map(new).collect());
        let took = |keys: &'static [StaticKey<false>]| {
            let once = || {
                let start = thread_cpu();
                lock_pinned(&keys.iter().map(StaticKey::key).chain([OWN.key()])).unwrap();
                thread_cpu().saturating_sub(start)
            };
            once().min(once()).min(once())
        };
        // Each compared with each, ten times as many would take a hundred times as long.
        let (few, all) = (took(&keys[..5_000]), took(keys));
        assert!(all < 40 * few, "{few:?}, {all:?}");
        let registry = lock().unwrap();
        assert_eq!(registry.not_pinned(keys.iter().map(StaticKey::key)).unwrap().len(), keys.len());
        assert!(registry.not_pinned([OWN.key()].into_iter()).unwrap().is_empty());
        assert!(registry.local.pinned.is_sorted_by_key(|range| range.start));
        assert!(registry.local.pinned.len() < 1000);
    }
}
