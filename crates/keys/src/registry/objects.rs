//! Objects with sites, when they are loaded and unloaded.
//!
//! [`register`] brings the object's sites to the present state of their keys before it returns, so
//! before `dlopen` does. Code that runs earlier, in constructors of a lower priority or called by
//! those of objects that are loaded together, finds the sites as they were assembled.
//!
//! [`unregister`] waits for a batch that is under way. When it returns, nothing here points into
//! the object any more: an object whose key was handed out is pinned, and a pinned object is not
//! unloaded.
//!
//! # Safety
//!
//! The unsafe code relies on the guarantee of the object that calls.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use dormouse_sys::loader;
use dormouse_sys::rendezvous;

use super::index::Index;
use super::{LOCAL, Registry};
use crate::object::{self, List, Object, ObjectPtr, Registered, Site};
use crate::patch_lock::PatchLock;
use crate::room::{collect, extend};
use crate::text::{self, Patch};
use crate::{Error, Protocol};

/// Registers an object and brings its sites to the state of their keys. Called by a constructor of
/// the object.
///
/// # Safety
///
/// `object` must have the layout and lifetime that `src/object/mod.rs` describes.
#[doc(hidden)]
pub unsafe extern "C" fn register(object: *const Object) {
    // SAFETY: the caller's promise.
    let object = unsafe { ObjectPtr::new(object) };
    // A copy that cannot follow the leader leaves its sites as they were assembled; batches return
    // the reason.
    let Ok(table) = rendezvous::table() else { return };
    if !object.has_destructor() && loader::pin(object.address()).is_err() {
        return;
    }
    // Asked before the lock is taken, and for the last time.
    let Some(loaded) = loader::find(object.address()) else { return };
    let one = Box::new(Registered::new(object, &loaded));
    // A handler that loads an object in the middle of a batch of its own thread could only wait for
    // itself.
    let Ok(patch) = table.patch.lock() else { return };
    let lock = PatchLock::new(table, &patch);
    let (following, waiting) = (List::following(lock), List::waiting(lock));
    if following.contains(object) || waiting.contains(object) {
        // The linker has kept several copies of the constructor.
        return;
    }
    // Before the first batch everything is as it was assembled: nothing to look at.
    if !table.switched.load(Ordering::Relaxed) || update_sites(lock, &one).is_ok() {
        one.set_followed(lock);
        following.push(one);
    } else {
        waiting.push(one);
    }
}

/// Unregisters an object. Called by a destructor of the object.
///
/// # Safety
///
/// See [`register`].
#[doc(hidden)]
pub unsafe extern "C" fn unregister(object: *const Object) {
    // SAFETY: the caller's promise.
    let object = unsafe { ObjectPtr::new(object) };
    let Ok(table) = rendezvous::table() else { return };
    // The executable only leaves with the process, whose other threads run on until then.
    if loader::is_in_executable(object.address()) {
        return;
    }
    // A handler that ends the process in the middle of a batch of its own thread: nothing is
    // unloaded.
    let Ok(patch) = table.patch.lock() else { return };
    let lock = PatchLock::new(table, &patch);
    let Ok(mut local) = LOCAL.lock() else { return };
    let one = List::following(lock).remove(object).or_else(|| List::waiting(lock).remove(object));
    if let Some(one) = &one {
        local.pinned.retain(|range| object::find(one.segments(), range.start).is_none());
    }
    // This copy may be in the object, and would leave its files and its memory behind. One that
    // stays keeps its files: it may not be able to open them again.
    let own = (&raw const LOCAL).addr();
    if one.is_none_or(|one| object::find(one.segments(), own).is_some()) {
        text::close_files();
    }
    local.index = Index::NOTHING;
}

/// Brings the sites of an object, which are as they were assembled, to the state of their keys: all
/// or none. By flip, whatever the process has chosen: its code is not run yet, or only by
/// constructors.
fn update_sites(lock: PatchLock<'_>, one: &Registered) -> Result<(), Error> {
    let entries = one.entries().ok_or_else(|| one.unreadable())?;
    let segments = one.segments();
    // An object that was set aside because it could not be read holds what its keys were then.
    let has_followed = one.has_followed(lock);
    let differ = entries.iter().filter(|e| has_followed || e.key().is_enabled() != e.initial());
    let patch = |key: &'static crate::Key, site: Site| Patch::new(&site, key, key.is_enabled());
    let mut patches = collect(differ.filter_map(|entry| patch(entry.key(), Site::of(entry, segments))))?;
    text::write(lock, &mut patches, segments, Protocol::Flip).map(|_| ())
}

impl Registry {
    /// Sees that the index is true, and that objects which wait follow their keys if they can by
    /// now.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        let (mut refused, mut follow) = (Vec::new(), Vec::new());
        let lock = PatchLock::new(self.table, &self.patch);
        for one in List::waiting(lock).iter() {
            match update_sites(lock, one) {
                Ok(()) => extend(&mut follow, [one.object])?,
                Err(Error::NoMemory) => return Err(Error::NoMemory),
                Err(error) => extend(&mut refused, [format!("{}: {error}", one.name())])?,
            }
        }
        for one in follow.into_iter().filter_map(|object| List::waiting(lock).remove(object)) {
            one.set_followed(lock);
            List::following(lock).push(one);
        }
        self.local.refresh_index(lock)?;
        self.local.index.waiting = refused;
        Ok(())
    }
}
