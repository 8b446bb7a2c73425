//! The index of keys and sites, and the sites of a batch.

use std::collections::TryReserveError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dormouse_sys::readable::Pages;
use dormouse_sys::rendezvous;

use super::{KeyUse, Local, Mismatches, Registry, sort};
use crate::key::Key;
use crate::object::{self, List, Registered, Segment, Site};
use crate::patch_lock::PatchLock;
use crate::room::{collect, extend, shared};
use crate::text::{self, Patch};
use crate::{BatchReport, Error, Protocol};

/// The place where a key's sites begin in [`Index::sites`]; they end where the next key's begin.
#[derive(Debug, Clone, Copy)]
struct Located {
    key: usize,
    first: usize,
}

/// The keys and sites of one moment.
#[derive(Debug)]
pub(super) struct Index {
    /// By name.
    pub(super) keys: Vec<KeyUse>,
    /// Sites, those of one key together, in order of address.
    sites: Vec<Site>,
    /// Sorted by the keys' addresses: a large batch looks keys up in that order, and so walks
    /// through memory from one end to the other.
    by_address: Vec<Located>,
    /// The segments of all objects with sites, sorted by address.
    segments: Vec<Segment>,
    /// The generation of the list of objects from which the index was built.
    generation: u64,
    /// The places and names of objects that cannot be read any more.
    unreadable: Vec<(Segment, Arc<str>)>,
    /// Why the sites of some objects do not follow their keys, and are not in here.
    pub(super) waiting: Vec<String>,
}

/// Another number whenever an object has come or left.
pub(super) fn generation() -> Result<u64, Error> {
    Ok(rendezvous::table()?.generation.load(Ordering::Relaxed))
}

impl Index {
    pub(super) const NOTHING: Self = Self {
        keys: Vec::new(),
        sites: Vec::new(),
        by_address: Vec::new(),
        segments: Vec::new(),
        generation: 0,
        unreadable: Vec::new(),
        waiting: Vec::new(),
    };

    fn build(lock: PatchLock<'_>, generation: u64) -> Result<Self, Error> {
        let mut parts = parts_of(List::following(lock).iter())?;
        let is_gone = |one: &&Registered| one.entries().is_none();
        let unreadable = parts_of(List::waiting(lock).iter().filter(is_gone))?;
        parts.sort_unstable_by_key(|(segment, _)| segment.start());
        let segments: Vec<Segment> = collect(parts.iter().map(|(segment, _)| segment.clone()))?;
        // Empty for a key in an object without sites.
        let object_of = |key: &Key| {
            object::find(&segments, key.address()).map_or_else(Arc::default, |at| Arc::clone(&parts[at].1))
        };
        let entries = List::following(lock).iter().flat_map(|one| one.entries().unwrap_or_default());
        let mut all = collect(entries.map(|entry| (entry.key(), Site::of(entry, &segments))))?;
        all.sort_unstable_by_key(|(key, site)| (key.address(), site.code));
        let of_keys = || all.chunk_by(|a, b| a.0.address() == b.0.address());
        let mut first = 0;
        let by_address = collect(of_keys().map(|sites| {
            first += sites.len();
            Located { key: sites[0].0.address(), first: first - sites.len() }
        }))?;
        let mut keys = collect(of_keys().map(|sites| {
            let key = sites[0].0;
            KeyUse { key, sites: sites.len(), object: object_of(key) }
        }))?;
        sort(&mut keys);
        let sites = collect(all.into_iter().map(|(_, site)| site))?;
        Ok(Self { keys, sites, by_address, segments, generation, unreadable, waiting: Vec::new() })
    }

    /// Another one whenever an object has come or left.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether an address lies in an object with sites.
    pub(super) fn is_in_object(&self, address: usize) -> bool {
        object::find(&self.segments, address).is_some()
    }

    /// In a process of one thread: has the sites of a key do what they do when it is off. False if
    /// one cannot be written. Allocates nothing.
    pub(super) fn put_to_sleep(&self, key: &'static Key) -> bool {
        text::write_alone(key, self.sites_in_order()(key), &self.segments)
    }

    /// Gives the sites of keys, each key's in order of address. The keys must be asked for in order
    /// of address too, each once: a search that starts behind the last one finds the next of a
    /// large batch at once.
    fn sites_in_order<'a>(&'a self) -> impl FnMut(&Key) -> &'a [Site] {
        let mut rest = self.by_address.as_slice();
        move |key| {
            let address = key.address();
            let is_before = |located: &Located| located.key < address;
            if rest.first().is_some_and(is_before) {
                // By steps of growing length to the key or beyond it, then back by halves.
                let mut step = 2;
                while rest.get(step - 1).is_some_and(is_before) {
                    step *= 2;
                }
                let near = &rest[step / 2..rest.len().min(step - 1)];
                rest = &rest[step / 2 + near.partition_point(is_before)..];
            }
            match rest.split_first() {
                Some((found, later)) if found.key == address => {
                    rest = later;
                    &self.sites[found.first..later.first().map_or(self.sites.len(), |next| next.first)]
                }
                _ => &[],
            }
        }
    }
}

impl Local {
    /// Sees that the index is true, of the objects whose sites follow their keys; touches no text.
    pub(super) fn refresh_index(&mut self, lock: PatchLock<'_>) -> Result<(), Error> {
        set_aside_unreadable(lock);
        let generation = lock.table.generation.load(Ordering::Relaxed);
        if self.index.generation != generation {
            self.index = Index::build(lock, generation)?;
        }
        Ok(())
    }
}

impl Registry {
    /// Returns an error if one of these keys lies in an object that cannot be read any more. Does
    /// not read the keys themselves.
    pub(crate) fn check_there(&self, mut keys: impl Iterator<Item = &'static Key>) -> Result<(), Error> {
        let unreadable = &self.local.index.unreadable;
        if unreadable.is_empty() {
            return Ok(());
        }
        let found = keys.find_map(|key| {
            let (_, name) = unreadable.iter().find(|(part, _)| part.contains(key.address()))?;
            Some(Error::Unreadable { object: name.to_string(), addr: key.address(), key: key.address() })
        });
        found.map_or(Ok(()), Err)
    }

    /// Has the sites of keys, which are `count` and in order of address, follow new states: all of
    /// them, or none.
    pub(crate) fn write(
        &self,
        keys: impl Iterator<Item = (&'static Key, bool)>,
        count: usize,
        protocol: Protocol,
    ) -> Result<BatchReport, Error> {
        let index = &self.local.index;
        let (mut patches, mut skipped) = (Vec::new(), 0);
        patches.try_reserve(count)?;
        let mut sites_of = index.sites_in_order();
        for (key, enabled) in keys {
            let (sites, before) = (sites_of(key), patches.len());
            patches.try_reserve(sites.len())?;
            patches.extend(sites.iter().filter_map(|site| Patch::new(site, key, enabled)));
            skipped += before + sites.len() - patches.len();
            if let Some(first) = sites.first().filter(|_| patches.len() == before) {
                return Err(Error::NotText { key: key.name(), addr: first.code });
            }
        }
        let report = text::write(self.patch_lock(), &mut patches, &index.segments, protocol)?;
        if count > 0 {
            // Objects that come from now on find keys in another state than their sites.
            self.table.switched.store(true, Ordering::Relaxed);
        }
        Ok(BatchReport { skipped, ..report })
    }

    /// The sites of a key whose code is not what its state makes it.
    pub(crate) fn mismatches(&self, key: &Key, pages: &mut Pages) -> Mismatches {
        let mut mismatches = Mismatches::default();
        // A site outside of every object's code never runs.
        let sites = self.local.index.sites_in_order()(key).iter();
        for site in sites.filter(|site| site.segment().is_some()) {
            match text::is_on(self.patch_lock(), site, pages) {
                Some(is_on) if is_on == key.is_enabled() => {}
                Some(_) => mismatches.stale += 1,
                None => mismatches.foreign += 1,
            }
        }
        mismatches
    }

    /// Whether code can be written by each way, tried on some site; for the capability report.
    pub(crate) fn ways_to_write(&self) -> Option<[text::Way; 2]> {
        let index = &self.local.index;
        let site = index.sites.iter().find(|site| site.segment().is_some())?;
        text::steps(self.patch_lock(), site, &index.segments)
    }

    /// Why some objects' sites do not follow their keys; for the capability report.
    pub(crate) fn waiting(&self) -> &[String] {
        &self.local.index.waiting
    }
}

/// Has objects wait that cannot be read any more, with their keys.
fn set_aside_unreadable(lock: PatchLock<'_>) {
    let following = List::following(lock);
    let first = || following.iter().find(|one| !one.is_there()).map(|one| one.object);
    while let Some(one) = first().and_then(|object| following.remove(object)) {
        List::waiting(lock).push(one);
    }
}

/// The places of objects, each with its object's name.
fn parts_of<'a>(
    objects: impl Iterator<Item = &'a Registered>,
) -> Result<Vec<(Segment, Arc<str>)>, TryReserveError> {
    let mut parts = Vec::new();
    for one in objects {
        let name = shared(one.name())?;
        extend(&mut parts, one.segments().iter().map(|segment| (segment.clone(), Arc::clone(&name))))?;
    }
    Ok(parts)
}

/// The code of the first site of a key, for tests that patch it behind the library's back.
#[cfg(test)]
pub(crate) fn first_site(registry: &Registry, key: &Key) -> Site {
    registry.local.index.sites_in_order()(key)[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StaticKey;

    #[test]
    fn sites_are_found_in_one_walk() {
        let keys: Vec<_> = (0..100).map(|_| StaticKey::<false>::new("k", file!(), line!())).collect();
        let keys: &'static [StaticKey<false>] = Vec::leak(keys);
        // Every third has no site, the others have one or two.
        let counts: Vec<usize> = (0..keys.len()).map(|n| n % 3).collect();
        let mut index = Index::NOTHING;
        for (key, &count) in keys.iter().zip(&counts).filter(|(_, count)| **count > 0) {
            let from = index.sites.len();
            index.sites.extend((0..count).map(|n| Site::new(key.address() + n, 0, false, None)));
            index.by_address.push(Located { key: key.address(), first: from });
        }
        for step in 1..=keys.len() {
            for first in 0..step.min(keys.len()) {
                let mut sites_of = index.sites_in_order();
                for (key, &count) in keys.iter().zip(&counts).skip(first).step_by(step) {
                    let sites = sites_of(key);
                    assert_eq!(sites.len(), count);
                    assert!(sites.iter().enumerate().all(|(n, site)| site.code == key.address() + n));
                }
            }
        }
    }
}
