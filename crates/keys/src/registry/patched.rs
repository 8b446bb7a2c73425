//! The index of sites, and objects that come and leave.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use dormouse_sys::loader;
use dormouse_sys::rendezvous::{self, Table};

use super::{KeyEntry, KeyUse, LOCAL, Registry, sort};
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
    /// Index into [`Index::segments`]; `None`: not in any object's code.
    pub(crate) segment: Option<usize>,
}

impl Site {
    fn of(entry: &Entry, segments: &[Segment]) -> Self {
        let (code, target) = (entry.code(), entry.target());
        Self { code, target, branch: entry.branch(), segment: text::segment_of(segments, code) }
    }
}

/// Everything that is known, at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    /// By name.
    keys: Vec<KeyEntry>,
    /// Sites, those of one key together, in order of address.
    sites: Vec<Site>,
    /// Addresses of keys, with the ranges of their sites, in order.
    by_address: Vec<(usize, Range<usize>)>,
    /// Of all objects with sites, by address.
    segments: Vec<Segment>,
    /// That of the list of objects.
    generation: u64,
    /// Why the sites of some objects are not in step with their keys, and not in here.
    waiting: Vec<String>,
}

impl Index {
    pub(super) const NOTHING: Self = Self {
        keys: Vec::new(),
        sites: Vec::new(),
        by_address: Vec::new(),
        segments: Vec::new(),
        generation: 0,
        waiting: Vec::new(),
    };

    fn build(objects: List, generation: u64) -> Self {
        let mut parts: Vec<(Segment, Arc<str>)> = Vec::new();
        for one in objects.iter() {
            let name = Arc::from(&*one.name);
            parts.extend(one.segments.iter().map(|segment| (segment.clone(), Arc::clone(&name))));
        }
        parts.sort_unstable_by_key(|(segment, _)| segment.start());
        let (segments, names): (Vec<Segment>, Vec<Arc<str>>) = parts.into_iter().unzip();
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
        let sites = all.into_iter().map(|(_, site)| site).collect();
        Self { keys, sites, by_address, segments, generation, waiting: Vec::new() }
    }

    pub(super) fn keys(&self) -> &[KeyEntry] {
        &self.keys
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Any site, to try things on.
    pub(crate) fn first_site(&self) -> Option<Site> {
        self.sites.first().copied()
    }

    /// The sites of a key, in order of address.
    pub(crate) fn sites_of(&self, key: &Key) -> &[Site] {
        self.by_address
            .binary_search_by_key(&key.address(), |k| k.0)
            .map_or(&[], |at| &self.sites[self.by_address[at].1.clone()])
    }

    /// Why some objects' sites do not follow their keys; for the capability report.
    pub(crate) fn waiting(&self) -> &[String] {
        &self.waiting
    }
}

impl Registry {
    /// Sees that the index is true.
    pub(super) fn refresh(&mut self) {
        let (objects, waiting) = lists(self.table);
        let mut refused = Vec::new();
        if !waiting.is_empty() {
            // What could not be done when they came may be possible now.
            for one in waiting.iter().map(|one| one.object).collect::<Vec<_>>() {
                let Some(one) = waiting.remove(one) else { continue };
                if let Err(error) = bring_up(&one) {
                    refused.push(format!("{}: {error}", one.name));
                    waiting.push(one);
                } else {
                    objects.push(one);
                    self.table.generation.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let generation = self.table.generation.load(Ordering::Relaxed);
        if self.index().generation != generation {
            self.local.index = Some(Index::build(objects, generation));
        }
        if let Some(index) = &mut self.local.index {
            index.waiting = refused;
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
/// flip, whatever the process has chosen: its code is not run yet, or only by constructors.
fn bring_up(one: &Registered) -> Result<(), Error> {
    let entries = one.object.entries().iter();
    let patch = |entry: &Entry| {
        let key = entry.key();
        Patch::new(Site::of(entry, &one.segments), key.name(), key.is_enabled())
    };
    let mut patches: Vec<Patch> =
        entries.filter(|entry| entry.key().is_enabled() != entry.initial()).filter_map(patch).collect();
    text::write(&mut patches, &one.segments, Protocol::Flip).map(|_| ())
}
