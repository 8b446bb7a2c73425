//! The mappings of a process, this one or another: what lies at an address, now or at the time of a record.
//!
//! What looks at the kernel's list have shown stands in a [`RangeMap`], and what its owner registers, generated code
//! above all, in a second one that goes first. The list is looked at again when the loader's count moves, when an
//! address is not in it, and when somebody asks for it.
//!
//! # What an answer is worth
//!
//! A process can map and unmap without telling anybody, and no cache in user space notices. So each answer says what it
//! rests on ([`Basis`]):
//!
//! - [`Basis::Asked`]: the kernel was asked, and the answer was true at some moment between call and return.
//! - [`Basis::Told`]: whoever changes it says so, and has not. For registered code, the answer was true at some
//!   moment between call and return. For an object of the loader's, that holds but for the moment between its
//!   unmapping of an object and its counting that.
//! - [`Basis::Seen`]: it was there at that time; since then it may have been unmapped or replaced.
//!   [`AddressSpace::resolve_now`] asks.
//!
//! # Locking
//!
//! `books` is held for a whole look, and while something is registered; what the kernel said is published before it is
//! released, so that no older answer comes after a newer one. Look-ups of addresses take no lock. The loader's lock is
//! taken inside it, so a constructor or destructor of an object, which runs under that, must not use a space that other
//! threads use.

mod history;
mod kernel;
mod loader;
mod parse;
mod region;

use std::collections::{HashMap, HashSet};
use std::ops::RangeBounds;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::mapping::Extent;
use crate::{Cache, Mapping, NoSlot, Overlap, RangeMap, SpaceError};

use history::{Fit, History, Span};
use kernel::{Asked, Source, now_ns};
use loader::Count;
use parse::Line;
use region::Identity;

pub use history::Keep;
pub use parse::ParseError;
pub use region::{FileId, Kind, Object, ObjectId, Perms, Region};

/// The mappings of a process.
#[derive(Debug)]
pub struct AddressSpace {
    source: Source,
    seen: RangeMap<Region>,
    registered: RangeMap<Region>,
    /// When the last whole look began; what it has shown is published.
    looked_ns: AtomicU64,
    /// The loader's count at that look.
    loader: AtomicU64,
    books: Mutex<Books>,
}

/// What an answer rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The kernel was asked.
    Asked,
    /// Whoever changes it would have said so.
    Told,
    /// It was seen at that time, in nanoseconds of the monotonic clock. What it says of another time is likely, not sure.
    Seen {
        /// When.
        at_ns: u64,
    },
}

/// What lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The mapping.
    pub mapping: Mapping<Region>,
    /// What says so.
    pub basis: Basis,
}

impl Found {
    /// Where in its file `addr`, which lies in the mapping, stands; without a file, where in the mapping.
    pub fn offset(&self, addr: u64) -> u64 {
        (addr - self.mapping.start).wrapping_add(self.mapping.value.offset)
    }
}

/// What only those who change something need.
#[derive(Debug)]
struct Books {
    objects: Objects,
    history: History,
}

/// All objects that a mapping, present or past, belongs to.
#[derive(Debug, Default)]
struct Objects {
    known: HashMap<ObjectId, Arc<Object>>,
    by_identity: HashMap<Identity, ObjectId>,
    /// How many there may be before those that nothing belongs to are looked for.
    most: usize,
}

impl AddressSpace {
    /// Of this process.
    ///
    /// In a child of `fork` it goes on as that of the child, unless another thread was changing it at the moment of the
    /// fork.
    pub fn own() -> Result<Self, SpaceError> {
        Self::new(Source::own())
    }

    /// Of the process `pid`, as long as it executes the same program; then all but old answers are errors that say what has
    /// become of it, also when its number is given again.
    pub fn of(pid: u32) -> Result<Self, SpaceError> {
        Self::new(Source::of(pid)?)
    }

    fn new(source: Source) -> Result<Self, SpaceError> {
        let space = Self {
            source,
            seen: RangeMap::new(),
            registered: RangeMap::new(),
            looked_ns: AtomicU64::new(0),
            loader: AtomicU64::new(0),
            books: Mutex::new(Books { objects: Objects::default(), history: History::new(Keep::default()) }),
        };
        space.refresh()?;
        Ok(space)
    }

    /// The same space, with so much kept of what is gone.
    #[must_use]
    pub fn keeping(self, keep: Keep) -> Self {
        self.books().history = History::new(keep);
        self
    }

    /// Whose it is.
    pub fn pid(&self) -> u32 {
        self.source.pid()
    }

    /// Looks at all mappings.
    ///
    /// # Cost
    ///
    /// An absolute slow path: the kernel writes, and this reads, a line of text for each.
    pub fn refresh(&self) -> Result<(), SpaceError> {
        self.look(&mut self.books())
    }

    /// What lies at `addr`.
    ///
    /// Looks anew if the loader has brought or taken away something, and asks the kernel if nothing is known to lie there.
    ///
    /// # Cost
    ///
    /// A search; in the own process also the loader's count. No system call where something is known.
    pub fn resolve(&self, addr: u64) -> Result<Option<Found>, SpaceError> {
        self.resolve_by(addr, || self.seen.find(addr))
    }

    /// [`AddressSpace::resolve`], from `cache` if it has it.
    pub fn resolve_cached(&self, cache: &Cache<Region>, addr: u64) -> Result<Option<Found>, SpaceError> {
        self.resolve_by(addr, || self.seen.find_cached(cache, addr))
    }

    // What was read before the look-up is no newer than what that finds.
    fn resolve_by(
        &self,
        addr: u64,
        find: impl Fn() -> Result<Option<Mapping<Region>>, NoSlot>,
    ) -> Result<Option<Found>, SpaceError> {
        // A second time after a look; a loader that is busy all the while has the kernel asked.
        for _ in 0..2 {
            // Pairs with the stores in `look`: what that look has shown is there to be found.
            let looked_ns = self.looked_ns.load(Ordering::Acquire);
            let loader = self.loader.load(Ordering::Acquire);
            // Past the cache: it keeps no "nothing there", which is the answer about most addresses here.
            if let Some(mapping) = self.registered.find(addr)? {
                return Ok(Some(Found { mapping, basis: Basis::Told }));
            }
            let found = find()?;
            if self.source.is_own() && loader::count() != Count(loader) {
                self.refresh()?;
                continue;
            }
            let Some(mapping) = found else { break };
            let at_ns = looked_ns.max(mapping.value.since_ns);
            let basis = if mapping.value.is_loaded { Basis::Told } else { Basis::Seen { at_ns } };
            return Ok(Some(Found { mapping, basis }));
        }
        self.resolve_now(addr)
    }

    /// What lies at `addr`, as the kernel says during this call, unless it is registered.
    ///
    /// # Cost
    ///
    /// A system call, and three in the own process; before Linux 6.11 as [`AddressSpace::refresh`].
    pub fn resolve_now(&self, addr: u64) -> Result<Option<Found>, SpaceError> {
        if let Some(mapping) = self.registered.find(addr)? {
            return Ok(Some(Found { mapping, basis: Basis::Told }));
        }
        let mut books = self.books();
        let began_ns = now_ns();
        match self.source.at(addr)? {
            Asked::Line(line) => {
                let line = line.filter(|line| line.start <= addr && addr <= line.last);
                let scope = line.as_ref().map_or(Extent { start: addr, last: addr }, Line::extent);
                let parts = if self.source.is_own() { loader::parts().1 } else { Vec::new() };
                self.take_in(&mut books, scope, line.into_iter().collect(), &parts, began_ns)?;
            }
            Asked::Unsupported => self.look(&mut books)?,
        }
        let found = self.seen.find(addr)?;
        Ok(found.map(|mapping| Found { mapping, basis: Basis::Asked }))
    }

    /// What lay at `addr` at `time_ns` of the monotonic clock.
    ///
    /// [`Basis::Seen`] says which look at the mapping was nearest to that time: the time itself if it was seen before
    /// and after.
    pub fn resolve_at(&self, addr: u64, time_ns: u64) -> Result<Option<Found>, SpaceError> {
        // No end of time is later than that of what has none.
        let time_ns = time_ns.min(u64::MAX - 1);
        let mut books = self.books();
        let is_news = |space: &Self| time_ns > space.looked_ns.load(Ordering::Relaxed);
        if is_news(self) && self.source.is_own() && loader::count() != self.loader() {
            self.look(&mut books)?;
        }
        let mut found = self.look_back(&books, addr, time_ns)?;
        if found.is_none() && is_news(self) {
            self.look(&mut books)?;
            found = self.look_back(&books, addr, time_ns)?;
        }
        let forgotten_ns = books.history.forgotten_ns();
        let is_sure = found.is_some_and(|(mapping, fit)| {
            fit == Fit::Inside && matches!(mapping.value.kind, Kind::Jit | Kind::File | Kind::Deleted)
        });
        if time_ns < forgotten_ns && !is_sure {
            return Err(SpaceError::Forgotten { addr, time_ns, forgotten_ns });
        }
        Ok(found.map(|(mapping, fit)| Found {
            mapping,
            basis: match fit {
                Fit::Inside if mapping.value.kind == Kind::Jit => Basis::Told,
                Fit::Inside => Basis::Seen { at_ns: time_ns },
                Fit::Near { seen_ns, .. } => Basis::Seen { at_ns: seen_ns },
            },
        }))
    }

    fn look_back(
        &self,
        books: &Books,
        addr: u64,
        time_ns: u64,
    ) -> Result<Option<(Mapping<Region>, Fit)>, NoSlot> {
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let present = [self.registered.find(addr)?, self.seen.find(addr)?];
        let spans = present.into_iter().flatten().map(|mapping| Span::present(mapping, looked_ns));
        Ok(books.history.find(addr, time_ns, spans))
    }

    /// All mappings that the last looks have shown, by address.
    pub fn mappings(&self) -> Result<Vec<Mapping<Region>>, NoSlot> {
        self.seen.mappings()
    }

    /// The object of that number; `None` once all that belonged to it is forgotten.
    pub fn object(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.books().objects.known.get(&id).cloned()
    }

    /// The build id of the file that a mapping is a part of, as the kernel reads it from the mapped pages (Linux 6.11).
    pub fn build_id(&self, mapping: &Mapping<Region>) -> Option<Vec<u8>> {
        let object = self.object(mapping.value.object)?;
        let known = object.build_id.get().cloned();
        known.or_else(|| {
            let id = self.source.build_id(mapping.start, object.file()?)?;
            Some(object.build_id.get_or_init(|| id).clone())
        })
    }

    /// Code named `name` lies at `range` from `from_ns` of the monotonic clock on. What was registered of these
    /// addresses ends then, whole: generated code that something was written over is no longer there.
    ///
    /// # Cost
    ///
    /// A slow path: the list of what is registered is copied.
    pub fn register(&self, range: impl RangeBounds<u64>, name: &str, from_ns: u64) -> Result<(), SpaceError> {
        let extent = Extent::of(&range)?;
        let mut books = self.books();
        let object = books.objects.add(Identity { name: PathBuf::from(name), file: None });
        let region = Region {
            kind: Kind::Jit,
            perms: Perms::READ.union(Perms::EXECUTE),
            offset: 0,
            object,
            since_ns: from_ns,
            unseen_ns: 0,
            is_loaded: false,
        };
        let mut ended = Vec::new();
        self.registered.update(|edit| {
            ended.extend(edit.mappings().iter().filter(|there| extent.overlaps(there.extent())));
            edit.insert(extent.start..=extent.last, region, Overlap::Replace)
        })?;
        books.end(ended, from_ns);
        self.sweep(&mut books)?;
        Ok(())
    }

    /// What was registered of these addresses ends at `until_ns` of the monotonic clock, whole; how many it were.
    pub fn unregister(&self, range: impl RangeBounds<u64>, until_ns: u64) -> Result<usize, SpaceError> {
        let extent = Extent::of(&range)?;
        let mut books = self.books();
        let mut ended = Vec::new();
        self.registered.update(|edit| {
            ended.extend(edit.mappings().iter().filter(|there| extent.overlaps(there.extent())));
            ended
                .iter()
                .try_for_each(|there: &Mapping<Region>| edit.remove(there.start..=there.last).map(drop))
        })?;
        let count = ended.len();
        books.end(ended, until_ns);
        Ok(count)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Whoever panicked under it has published something or not; neither leaves what is here in pieces.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loader(&self) -> Count {
        Count(self.loader.load(Ordering::Relaxed))
    }

    /// Takes in what a look at everything shows.
    fn look(&self, books: &mut Books) -> Result<(), SpaceError> {
        let began_ns = now_ns();
        // Before the list is read: what is loaded in between moves the count once more.
        let (count, parts) =
            if self.source.is_own() { loader::parts() } else { (Count::default(), Vec::new()) };
        let lines = self.source.all()?;
        self.take_in(books, Extent::ALL, lines, &parts, began_ns)?;
        // Release, with the loads in `resolve_by`.
        self.looked_ns.store(began_ns, Ordering::Release);
        self.loader.store(count.0, Ordering::Release);
        self.sweep(books)?;
        Ok(())
    }

    /// Between the addresses of `scope` there is what `lines` say and nothing else.
    fn take_in(
        &self,
        books: &mut Books,
        scope: Extent,
        lines: Vec<Line>,
        parts: &[Extent],
        began_ns: u64,
    ) -> Result<(), SpaceError> {
        let looked_ns = self.looked_ns.load(Ordering::Relaxed);
        let shown: Vec<Mapping<Region>> = lines
            .into_iter()
            .map(|line| {
                let extent = line.extent();
                let Line { start, last, perms, offset, kind, identity } = line;
                let is_loaded = kind.has_file() && parts.iter().any(|part| part.overlaps(extent));
                let object = books.objects.intern(identity);
                let value = Region {
                    kind,
                    perms,
                    offset,
                    object,
                    since_ns: began_ns,
                    unseen_ns: looked_ns,
                    is_loaded,
                };
                Mapping { start, last, value }
            })
            .collect();
        let is_in = |list: &[Mapping<Region>], one: &Mapping<Region>| {
            let at = list.partition_point(|mapping| mapping.start < one.start);
            list.get(at)
                .is_some_and(|m| (m.start, m.last) == (one.start, one.last) && m.value.is_same(&one.value))
        };
        let mut gone = Vec::new();
        self.seen.update(|edit| {
            let there: Vec<_> =
                edit.mappings().iter().filter(|there| scope.overlaps(there.extent())).copied().collect();
            for mapping in there.iter().filter(|mapping| !is_in(&shown, mapping)) {
                edit.remove(mapping.start..=mapping.last)?;
                gone.push(*mapping);
            }
            shown
                .iter()
                .filter(|mapping| !is_in(&there, mapping))
                .try_for_each(|new| edit.insert(new.start..=new.last, new.value, Overlap::Reject))
        })?;
        let ended_ns = now_ns();
        for mapping in gone {
            let last_ns = looked_ns.max(mapping.value.since_ns);
            books.history.push(Span { mapping, last_ns, gone_ns: ended_ns }, ended_ns);
        }
        Ok(())
    }

    /// Forgets objects that nothing belongs to any more, when there may be many.
    fn sweep(&self, books: &mut Books) -> Result<(), NoSlot> {
        if books.objects.known.len() <= books.objects.most {
            return Ok(());
        }
        let present = [self.seen.mappings()?, self.registered.mappings()?];
        let used = present.iter().flatten().map(|mapping| mapping.value.object);
        books.objects.retain(&used.chain(books.history.objects()).collect());
        Ok(())
    }
}

impl Books {
    /// What was registered has ended.
    fn end(&mut self, ended: Vec<Mapping<Region>>, until_ns: u64) {
        let now_ns = now_ns().max(until_ns);
        for mapping in ended {
            self.history.push(Span { mapping, last_ns: until_ns, gone_ns: until_ns }, now_ns);
        }
    }
}

impl Line {
    fn extent(&self) -> Extent {
        Extent { start: self.start, last: self.last }
    }
}

impl Objects {
    /// The object that is that.
    fn intern(&mut self, identity: Identity) -> ObjectId {
        if let Some(&id) = self.by_identity.get(&identity) {
            return id;
        }
        let id = self.add(identity.clone());
        self.by_identity.insert(identity, id);
        id
    }

    /// Another object, whatever it is called.
    fn add(&mut self, identity: Identity) -> ObjectId {
        let id = ObjectId::next();
        self.known.insert(id, Arc::new(Object::new(identity)));
        id
    }

    fn retain(&mut self, used: &HashSet<ObjectId>) {
        self.known.retain(|id, _| used.contains(id));
        self.by_identity.retain(|_, id| used.contains(id));
        // So that the next time is after as many new ones as it looked at.
        self.most = 2 * self.known.len() + 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_gives_all_or_nothing_is_read_whole() {
        let space = AddressSpace::new(Source::own().without_queries()).unwrap();
        let addr = std::ptr::from_ref(&space) as u64;
        let found = space.resolve_now(addr).unwrap().unwrap();
        assert_eq!(found.basis, Basis::Asked);
        assert_eq!(space.resolve(0).unwrap(), None);
    }
}
