//! The index of sites, and objects that come and leave.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use dormouse_sys::loader;
use dormouse_sys::rendezvous::{self, Table};

use super::{KeyEntry, KeyUse, LOCAL, Registry, sort};
use crate::arch::Form;
use crate::key::Key;
use crate::object::{Entry, List, Object, Registered};
use crate::text::{self, Patch, Segment};
use crate::{Error, Protocol};

/// One place in the code that branches on a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site {
    pub(crate) code: usize,
    pub(crate) target: usize,
    pub(crate) branch: bool,
    pub(crate) form: Form,
    /// Index into [`Index::segments`]; `None`: not in any object's code.
    pub(crate) segment: Option<usize>,
}

impl Site {
    fn of(entry: &Entry, segments: &[Segment]) -> Self {
        let (code, target) = (entry.code(), entry.target());
        let (branch, form) = (entry.branch(), entry.form());
        Self { code, target, branch, form, segment: text::segment_of(segments, code) }
    }
}

/// Everything that is known, at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    /// By name.
    keys: Vec<KeyEntry>,
    /// Sites, those of one key together, in order of address.
    sites: Vec<Site>,
    /// Addresses of keys, with the ranges of their sites, in order: a large batch asks in that order, and so walks
    /// through memory from one end to the other.
    by_address: Vec<(usize, Range<usize>)>,
    /// Of all objects with sites, by address.
    segments: Vec<Segment>,
    /// That of the list of objects.
    generation: u64,
    /// Why the sites of some objects are not in step with their keys, and not in here.
    waiting: Vec<String>,
    /// Whether some site, of those that wait too, is changed by int3 whatever the protocol.
    needs_int3: bool,
}

impl Index {
    pub(super) const NOTHING: Self = Self {
        keys: Vec::new(),
        sites: Vec::new(),
        by_address: Vec::new(),
        segments: Vec::new(),
        generation: 0,
        waiting: Vec::new(),
        needs_int3: false,
    };

    fn build(objects: List, generation: u64) -> Self {
        let mut parts: Vec<(Segment, Arc<str>)> = Vec::new();
        for one in objects.iter() {
            let name = Arc::from(&*one.name);
            parts.extend(one.segments.iter().map(|segment| (segment.clone(), Arc::clone(&name))));
        }
        parts.sort_unstable_by_key(|(segment, _)| segment.start());
        let (mut segments, names): (Vec<Segment>, Vec<Arc<str>>) = parts.into_iter().unzip();
        text::mark_shared(&mut segments);
        // Empty for a key in an object without sites.
        let object_of = |key: &Key| {
            text::find(&segments, key.address()).map_or_else(|| "".into(), |at| Arc::clone(&names[at]))
        };
        let mut all: Vec<(&'static Key, Site)> = objects
            .iter()
            .flat_map(|one| one.object.entries())
            .map(|entry| (entry.key(), Site::of(entry, &segments)))
            .collect();
        all.sort_unstable_by_key(|(key, site)| (key.address(), site.code));
        let (mut keys, mut by_address) = (Vec::new(), Vec::new());
        let mut from = 0;
        for group in all.chunk_by(|a, b| a.0.address() == b.0.address()) {
            let (key, sites) = (group[0].0, from..from + group.len());
            from = sites.end;
            by_address.push((key.address(), sites));
            keys.push(KeyEntry { usage: KeyUse { key, sites: group.len(), object: object_of(key) } });
        }
        sort(&mut keys);
        let sites: Vec<Site> = all.into_iter().map(|(_, site)| site).collect();
        let needs_int3 = sites.iter().any(|site| site.form == Form::Nop);
        Self { keys, sites, by_address, segments, generation, waiting: Vec::new(), needs_int3 }
    }

    pub(super) fn entries(&self) -> &[KeyEntry] {
        &self.keys
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// In a process of one thread: has the sites of a key do what they do when it is off. False if one cannot be
    /// written. Allocates nothing.
    pub(crate) fn put_to_sleep(&self, key: &Key) -> bool {
        crate::text::write_alone(self.sites_of(key), &self.segments)
    }

    pub(crate) fn site_count(&self) -> usize {
        self.sites.len()
    }

    /// Any site that can be written where anything can, to try things on.
    pub(crate) fn any_site(&self) -> Option<Site> {
        self.sites.iter().copied().find(|site| site.segment.is_some())
    }

    /// Whether any site is changed by int3 whatever the protocol.
    pub(crate) fn needs_int3(&self) -> bool {
        self.needs_int3
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

    /// Why some objects' sites do not follow their keys; for the capability report.
    pub(crate) fn waiting(&self) -> &[String] {
        &self.waiting
    }
}

impl Registry {
    /// Sees that the index is true, of the objects whose sites are in step; touches no text.
    pub(super) fn refresh_index(&mut self) {
        let generation = self.table.generation.load(Ordering::Relaxed);
        if self.index().generation != generation {
            self.local.index = Some(Index::build(lists(self.table).0, generation));
        }
    }

    /// Sees that the index is true, and that objects which wait come in if they can.
    pub(super) fn refresh(&mut self) {
        let (objects, waiting) = lists(self.table);
        let (mut refused, mut waits_for_int3) = (Vec::new(), false);
        if !waiting.is_empty() {
            // What could not be done when they came may be possible now.
            for one in waiting.iter().map(|one| one.object).collect::<Vec<_>>() {
                let Some(one) = waiting.remove(one) else { continue };
                waits_for_int3 |= one.needs_int3();
                if let Err(error) = bring_up(&one) {
                    refused.push(format!("{}: {error}", one.name));
                    waiting.push(one);
                } else {
                    objects.push(one);
                    self.table.generation.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.refresh_index();
        if let Some(index) = &mut self.local.index {
            index.waiting = refused;
            index.needs_int3 |= waits_for_int3;
        }
    }
}

/// Objects whose sites are in step with their keys, and the others.
fn lists(table: &'static Table) -> (List, List) {
    (List(&table.objects), List(&table.waiting))
}

/// Takes in an object that has come, with its sites brought to the state of their keys. Called by a constructor.
pub(crate) fn add(object: &'static Object) {
    // A copy that is refused lets its sites lie as they are assembled; batches say why.
    let Ok(table) = rendezvous::table() else { return };
    if !object.has_destructor() && loader::pin(object.address()).is_err() {
        return;
    }
    // Asked before the lock is taken, and for the last time.
    let Some((name, segments)) = text::object_of(object.address()) else { return };
    let one = Box::new(Registered::new(object, name, segments));
    // Traps lead back into this copy. Refused, the object waits for a copy that stays.
    let _ = if one.needs_int3() { rendezvous::stay() } else { Ok(()) };
    // A handler that loads an object in the middle of a batch of its own thread could only wait for itself.
    let Ok(_patch) = table.patch.lock() else { return };
    let (objects, waiting) = lists(table);
    if objects.contains(object) || waiting.contains(object) {
        // The linker has kept several copies of the constructor.
        return;
    }
    // Before the first batch everything is as it was assembled: nothing to look at.
    let is_in_step = !table.switched.load(Ordering::Relaxed) || bring_up(&one).is_ok();
    if is_in_step { objects } else { waiting }.push(one);
    table.generation.fetch_add(1, Ordering::Relaxed);
}

/// Lets an object go. Called by a destructor.
pub(crate) fn remove(object: &'static Object) {
    let Ok(table) = rendezvous::table() else { return };
    // The executable only leaves with the process, whose other threads run on until then.
    if loader::is_in_executable(object.address()) {
        return;
    }
    // A handler that ends the process in the middle of a batch of its own thread: nothing is unloaded.
    let Ok(_patch) = table.patch.lock() else { return };
    let (objects, waiting) = lists(table);
    if objects.remove(object).or_else(|| waiting.remove(object)).is_some() {
        table.generation.fetch_add(1, Ordering::Relaxed);
    }
    // This copy may be in the object, and would leave its memory behind.
    LOCAL.lock().unwrap_or_else(PoisonError::into_inner).index = None;
}

/// Brings the sites of an object, which are as they were assembled, to the state of their keys: all or none. By
/// flip where that can be, whatever the process has chosen: its code is not run yet, or only by constructors.
fn bring_up(one: &Registered) -> Result<(), Error> {
    if one.needs_int3() && !rendezvous::stays() {
        return Err(Error::Passing);
    }
    let mut segments = one.segments.to_vec();
    text::mark_shared(&mut segments);
    let patch = |entry: &Entry| {
        let key = entry.key();
        Patch::new(Site::of(entry, &segments), key.name(), key.is_enabled())
    };
    let differ = |entry: &&Entry| entry.key().is_enabled() != entry.initial();
    let mut patches: Vec<Patch> = one.object.entries().iter().filter(differ).filter_map(patch).collect();
    text::write(&mut patches, &segments, Protocol::Flip).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StaticKey;

    #[test]
    fn the_sites_of_any_keys_are_found_in_one_walk_and_keys_without_sites_have_none() {
        let keys: Vec<_> = (0..100).map(|_| StaticKey::<false>::new("k", file!(), line!())).collect();
        let keys: &'static [StaticKey<false>] = Vec::leak(keys);
        // Every third has no site, the others have one or two.
        let counts: Vec<usize> = (0..keys.len()).map(|n| n % 3).collect();
        let mut index = Index::NOTHING;
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
