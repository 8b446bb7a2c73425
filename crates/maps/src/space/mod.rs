//! The mappings of a process, this one or another, and look-ups of addresses in them.
//!
//! A [`RangeMap`] contains what the kernel's list last showed. A look-up reads the list again when
//! the loader's count has changed, and asks the kernel about an address for which no mapping is
//! known; [`AddressSpace::refresh`] reads the list on request.
//!
//! # The worth of an answer
//!
//! A process can map and unmap without any notification, and no cache in user space notices.
//!
//! - [`AddressSpace::resolve_now`] asks the kernel: its answer was true at some moment between call
//!   and return.
//! - [`AddressSpace::resolve`] answers from memory: the mapping was there when the kernel was last
//!   asked about it. In this process, a mapping of a loaded object still is there, except for the
//!   moment between unmapping by the loader and the change of its count. Other mappings may have
//!   been unmapped or replaced since.
//!
//! # Locking
//!
//! `objects` is held while the kernel is asked and until its answer is published, so that no older
//! answer comes after a newer one. Look-ups of addresses take no lock of ours. In this process they
//! read the loader's count (`dl_iterate_phdr`), which takes the loader's lock: they wait for a
//! `dlopen` that is under way. That lock is taken inside `objects` too, so a constructor or
//! destructor of an object, which runs under it, must not use a space that other threads use.

mod error;
mod kernel;
mod loader;
mod region;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mapping::Extent;
use crate::{Cache, Edit, Mapping, MapsLine, NoSlot, RangeMap};

use kernel::{Asked, Source};
use region::Objects;

pub use error::SpaceError;
pub use region::{MappedObject, ObjectId, Region};

/// The mappings of a process.
#[derive(Debug)]
pub struct AddressSpace {
    source: Source,
    seen: RangeMap<Region>,
    /// The loader's count at the last reading of all mappings; 0 of another process.
    loaded: AtomicU64,
    objects: Mutex<Objects>,
}

impl AddressSpace {
    /// The mappings of this process.
    ///
    /// In a child of `fork` it becomes that of the child, unless another thread was changing it at
    /// the moment of the fork.
    pub fn own() -> Result<Self, SpaceError> {
        Self::new(Source::own())
    }

    /// The mappings of process `pid`, as long as it executes the same program. After that every
    /// call returns an error that says so, even when the id is reused.
    pub fn of(pid: u32) -> Result<Self, SpaceError> {
        Self::new(Source::of(pid)?)
    }

    /// Mappings that a process had, as they were recorded. Files are opened by their paths: `file`
    /// of a line must be the id of the file that is at the path now, if that is the one which was
    /// mapped, otherwise `None`.
    pub fn recorded(lines: Vec<MapsLine<'static>>) -> Result<Self, SpaceError> {
        Self::new(Source::recorded(lines))
    }

    fn new(source: Source) -> Result<Self, SpaceError> {
        let space =
            Self { source, seen: RangeMap::new(), loaded: AtomicU64::new(0), objects: Mutex::default() };
        space.refresh()?;
        Ok(space)
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.source.pid()
    }

    /// Reads all mappings.
    ///
    /// # Cost
    ///
    /// Slow: the kernel writes, and this parses, a line of text for each mapping.
    pub fn refresh(&self) -> Result<(), SpaceError> {
        self.look(&mut self.objects()).map(drop)
    }

    /// The mapping that contains `addr`, from `cache` if it has it. Otherwise what the kernel last
    /// reported, or, if no mapping is known there, what it reports now.
    ///
    /// # Cost
    ///
    /// At most a search; in this process also a read of the loader's count. No system call if a
    /// mapping is known.
    pub fn resolve(&self, cache: &Cache<Region>, addr: u64) -> Result<Option<Mapping<Region>>, SpaceError> {
        // A second time after a reading; under a loader that is busy all the while the kernel
        // decides.
        for _ in 0..2 {
            // Before the look-up, which so finds the mappings at that count or later. Acquire,
            // with the store in `look`: the mappings of that look are published.
            let loaded = self.loaded.load(Ordering::Acquire);
            let found = self.seen.find_cached(cache, addr)?;
            if self.source.is_own() && loader::count() != loaded {
                self.refresh()?;
            } else if found.is_some() {
                return Ok(found);
            } else {
                break;
            }
        }
        self.resolve_now(addr)
    }

    /// The mapping that contains `addr`, as the kernel reports it during this call.
    ///
    /// # Cost
    ///
    /// One system call, in this process three. Before Linux 6.11 the cost of
    /// [`AddressSpace::refresh`].
    pub fn resolve_now(&self, addr: u64) -> Result<Option<Mapping<Region>>, SpaceError> {
        let mut objects = self.objects();
        let Asked::Line(line) = self.source.at(addr)? else {
            return Ok(self.look(&mut objects)?.into_iter().find(|mapping| mapping.contains(addr)));
        };
        let now = line.map(|line| objects.mapping(line));
        if self.seen.find(addr)? != now {
            let changed = now.map_or(Extent { start: addr, last: addr }, |mapping| mapping.extent());
            self.publish(&mut objects, |edit| edit.replace(changed, now));
        }
        Ok(now)
    }

    /// All mappings that are known from earlier calls, in order of address.
    pub fn mappings(&self) -> Result<Vec<Mapping<Region>>, NoSlot> {
        self.seen.mappings()
    }

    /// The object with that id; `None` once the space has dropped all its mappings.
    pub fn object(&self, id: ObjectId) -> Option<Arc<MappedObject>> {
        self.objects().get(id)
    }

    /// The build id of the file that a mapping is a part of, as the kernel reads it from the mapped
    /// pages (Linux 6.11).
    pub fn build_id(&self, mapping: &Mapping<Region>) -> Option<Vec<u8>> {
        self.source.build_id(mapping.start, self.object(mapping.value.object)?.file()?)
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        // A thread that panicked under it has published something or not; the tables are whole
        // either way.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the kernel for all mappings, and publishes them.
    fn look(&self, objects: &mut Objects) -> Result<Vec<Mapping<Region>>, SpaceError> {
        // Before the list is read: an object that is loaded in between moves the count once more.
        let loaded = if self.source.is_own() { loader::count() } else { 0 };
        let shown = self.source.all(|line| objects.mapping(line))?;
        let is_in = |list: &[Mapping<Region>], one: &Mapping<Region>| {
            list.binary_search_by_key(&one.start, |mapping| mapping.start).is_ok_and(|at| list[at] == *one)
        };
        self.publish(objects, |edit| {
            // Mappings that stay are left alone, so that cached answers about them stay good.
            let there = edit.mappings().to_vec();
            for gone in there.iter().filter(|old| !is_in(&shown, old)) {
                edit.replace(gone.extent(), None);
            }
            for new in shown.iter().filter(|new| !is_in(&there, new)) {
                edit.replace(new.extent(), Some(*new));
            }
        });
        // Release, with the load in `resolve`.
        self.loaded.store(loaded, Ordering::Release);
        Ok(shown)
    }

    fn publish(&self, objects: &mut Objects, change: impl FnOnce(&mut Edit<Region>)) {
        let Ok(()) = self.seen.update(|edit| {
            change(edit);
            objects.sweep(edit.mappings());
            Ok::<_, Infallible>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the kernel's list of mappings")]
    fn kernel_without_queries_is_read_whole() {
        let space = AddressSpace::new(Source::own().without_queries()).unwrap();
        let addr = std::ptr::from_ref(&space) as u64;
        let found = space.resolve_now(addr).unwrap().unwrap();
        assert_eq!(space.resolve(&Cache::new(), addr).unwrap(), Some(found));
        assert_eq!(space.resolve_now(0).unwrap(), None);
    }
}
