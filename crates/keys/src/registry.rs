//! All keys and their sites, found through the objects' entries.
//!
//! Nothing registers a key: a key is known because a live site names it, so functions that the linker
//! dropped take their keys along. The index is built when it is first asked for and again when an object has
//! come; entries point into read-only data, and cost nothing until then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::Busy;
use crate::key::Key;

/// A key and where it is used.
#[derive(Debug, Clone)]
pub struct KeyUse {
    /// The key.
    pub key: &'static Key,
    /// How many sites branch on it.
    pub sites: usize,
    /// File name of the linked object that the key lives in; empty where that cannot be told.
    pub object: Arc<str>,
}

/// Every key that a site names, by name, then by place.
///
/// # Cost
///
/// Sorts all sites of the process at the first call and after an object has come; else a copy.
pub fn all() -> Vec<KeyUse> {
    index().keys.iter().map(|k| k.usage.clone()).collect()
}

/// How many sites there are.
///
/// # Cost
///
/// As [`all`].
pub fn site_count() -> usize {
    index().keys.iter().map(|k| k.usage.sites).sum()
}

/// One place in the code that branches on a key.
#[cfg(dormouse_patching)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub(crate) code: usize,
    pub(crate) target: usize,
    pub(crate) branch: bool,
    pub(crate) form: crate::arch::Form,
    /// Index into [`Index::segments`]; `None`: not in any object's code.
    pub(crate) segment: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct KeyEntry {
    usage: KeyUse,
}

/// Everything that is known, at one moment.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// By name.
    keys: Vec<KeyEntry>,
    /// Sites, those of one key together, in order of address.
    #[cfg(dormouse_patching)]
    sites: Vec<Site>,
    /// Addresses of keys, with the ranges of their sites, in order: a large batch asks in that order, and so walks
    /// through memory from one end to the other.
    #[cfg(dormouse_patching)]
    by_address: Vec<(usize, std::ops::Range<usize>)>,
    #[cfg(dormouse_patching)]
    pub(crate) segments: Vec<crate::text::Segment>,
    objects: usize,
}

static INDEX: Mutex<Option<Arc<Index>>> = Mutex::new(None);

/// The index as it was last built, if it was.
pub(crate) fn lock() -> MutexGuard<'static, Option<Arc<Index>>> {
    INDEX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The index, as of now.
pub(crate) fn index() -> Arc<Index> {
    // A batch of a signal handler over this would wait for its own thread.
    let _busy = Busy::mark();
    let mut cached = lock();
    let objects = count_objects();
    match &*cached {
        Some(index) if index.objects == objects => Arc::clone(index),
        _ => Arc::clone(cached.insert(Arc::new(Index::build(objects)))),
    }
}

fn sort(keys: &mut [KeyEntry]) {
    keys.sort_by_key(|k| (k.usage.key.name(), k.usage.key.file(), k.usage.key.line(), k.usage.key.address()));
}

#[cfg(dormouse_patching)]
fn count_objects() -> usize {
    crate::object::all().count()
}

#[cfg(dormouse_patching)]
impl Index {
    fn build(objects: usize) -> Self {
        let map = crate::text::CodeMap::load();
        let mut all: Vec<(&'static Key, Site)> = crate::object::all()
            .flat_map(crate::object::Object::entries)
            .map(|entry| {
                let (code, target) = (entry.code(), entry.target());
                let (branch, form) = (entry.branch(), entry.form());
                (entry.key(), Site { code, target, branch, form, segment: map.segment_of(code) })
            })
            .collect();
        all.sort_unstable_by_key(|(key, site)| (key.address(), site.code));
        let (mut keys, mut by_address) = (Vec::new(), Vec::new());
        let mut from = 0;
        for group in all.chunk_by(|a, b| a.0.address() == b.0.address()) {
            let (key, sites) = (group[0].0, from..from + group.len());
            from = sites.end;
            let usage = KeyUse { key, sites: group.len(), object: map.object_of(key.address()) };
            by_address.push((key.address(), sites));
            keys.push(KeyEntry { usage });
        }
        sort(&mut keys);
        let sites = all.into_iter().map(|(_, site)| site).collect();
        Self { keys, sites, by_address, segments: map.into_segments(), objects }
    }

    /// In a process of one thread: has the sites of a key do what they do when it is off. False if one cannot be
    /// written. Allocates nothing.
    pub(crate) fn put_to_sleep(&self, key: &Key) -> bool {
        crate::text::write_alone(self.sites_of(key), &self.segments)
    }

    /// Any site that can be written where anything can, to try things on.
    pub(crate) fn any_site(&self) -> Option<Site> {
        self.sites.iter().copied().find(|site| site.segment.is_some())
    }

    /// Whether any site is changed by int3 whatever the protocol.
    pub(crate) fn needs_int3(&self) -> bool {
        self.sites.iter().any(|site| site.form == crate::arch::Form::Nop)
    }

    /// The sites of a key, in order of address.
    pub(crate) fn sites_of(&self, key: &Key) -> &[Site] {
        self.sites_in_order()(key)
    }

    /// Gives the sites of keys, each key's in order of address. The keys must be asked for in order of address too:
    /// a search that starts at the last one finds the next of a large batch at once.
    pub(crate) fn sites_in_order<'a>(&'a self) -> impl FnMut(&Key) -> &'a [Site] {
        let mut rest = &self.by_address[..];
        move |key| {
            let address = key.address();
            // By steps of growing length to beyond the key, then back by halves.
            let mut step = 1;
            while rest.get(step).is_some_and(|k| k.0 < address) {
                step *= 2;
            }
            let near = &rest[..rest.len().min(step + 1)];
            rest = &rest[near.partition_point(|k| k.0 < address)..];
            match rest.first() {
                Some((found, sites)) if *found == address => &self.sites[sites.clone()],
                _ => &[],
            }
        }
    }
}

#[cfg(not(dormouse_patching))]
impl Index {
    /// Nothing to do for a site that reads its key.
    #[expect(clippy::unused_self, reason = "the same shape as where text is patched")]
    pub(crate) fn put_to_sleep(&self, _: &Key) -> bool {
        true
    }
}

impl Index {
    /// Every key that a site names, by name.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &'static Key> {
        self.keys.iter().map(|k| k.usage.key)
    }
}

/// A site where sites are not patched.
#[cfg(not(dormouse_patching))]
#[doc(hidden)]
#[derive(Debug)]
pub struct PortableSite {
    key: &'static Key,
}

#[cfg(not(dormouse_patching))]
impl PortableSite {
    /// For the macros.
    pub const fn new(key: &'static Key) -> Self {
        Self { key }
    }
}

#[cfg(not(dormouse_patching))]
inventory::collect!(PortableSite);

#[cfg(not(dormouse_patching))]
fn count_objects() -> usize {
    inventory::iter::<PortableSite>.into_iter().count()
}

#[cfg(not(dormouse_patching))]
impl Index {
    fn build(objects: usize) -> Self {
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
        Self { keys, objects }
    }

    /// How many sites a key has.
    #[cfg(not(all(test, loom)))]
    pub(crate) fn site_count_of(&self, key: &Key) -> usize {
        self.keys.iter().find(|k| k.usage.key.address() == key.address()).map_or(0, |k| k.usage.sites)
    }
}

#[cfg(all(test, dormouse_patching))]
mod tests {
    use super::*;
    use crate::StaticKey;

    #[test]
    fn the_sites_of_any_keys_are_found_in_one_walk_and_keys_without_sites_have_none() {
        let keys: Vec<_> = (0..100).map(|_| StaticKey::<false>::new("k", file!(), line!())).collect();
        let keys: &'static [StaticKey<false>] = Vec::leak(keys);
        // Every third has no site, the others have one or two.
        let counts: Vec<usize> = (0..keys.len()).map(|n| n % 3).collect();
        let mut index = Index::default();
        for (key, &count) in keys.iter().zip(&counts).filter(|(_, count)| **count > 0) {
            let from = index.sites.len();
            let site = |n| Site {
                code: key.address() + n,
                target: 0,
                branch: false,
                form: crate::arch::Form::Test,
                segment: None,
            };
            index.sites.extend((0..count).map(site));
            index.by_address.push((key.address(), from..from + count));
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
