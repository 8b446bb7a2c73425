//! All groups of the process, by name and by number, without a lock.
//!
//! Threads that serve requests look groups up, and the first request of a kind makes its group. So
//! a look-up takes only loads, and a new name never waits: a thread makes the group outside of the
//! table and puts it there by one exchange. If two threads make the same group, the second uses the
//! first one's. Its own context is kept for the next new name.
//!
//! # Invariants
//!
//! 1. A place changes from empty to a group, once, and a group lives as long as the process.
//! 2. A name is in the first place from its hash on that was free when it was added. So no empty
//!    place comes before it.
//! 3. At most [`MAX_GROUPS`] are made: `other`, and one for each of the remaining numbers that a
//!    thread has taken.
//!
//! A thread takes a number before its group is in the table. So if two threads add the last name at
//! the same moment, one of them gets `other` for this one call. Only a wait for the first thread
//! could prevent that, and no thread may wait here.
//!
//! # Safety
//!
//! The unsafe code makes references to a name and a group that are on the heap. It frees them only
//! before another thread has seen them; otherwise they stay (invariant 1).
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use dormouse_events::Context;
use dormouse_sys::otel::ThreadContext;
use dormouse_sys::sync::{OnceBox, OnceRef};

use crate::core::long_lived::Lives;
use crate::core::objectives::{ObjectiveCounts, OfGroup, group_begins};
use crate::core::pool_queue::PoolQueue;
use crate::core::tasks::Tasks;

/// How many groups a process can have. Names beyond that share the group `other`.
pub const MAX_GROUPS: usize = 1024;

/// Twice as many as there can be groups, so that ways are short.
const PLACES: usize = 2 * MAX_GROUPS;

/// The group of names beyond [`MAX_GROUPS`].
pub(crate) const OTHER: &str = "other";

/// A group, behind its handle.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) name: &'static str,
    pub(crate) context: &'static Context,
    pub(crate) tasks: Tasks,
    pub(crate) objectives: OnceBox<ObjectiveCounts>,
    /// Whether its requests live for long.
    pub(crate) lives: Lives,
    pub(crate) pool_queue: PoolQueue,
    /// The bytes that threads publish while the group is current.
    published: ThreadContext,
}

/// A place for a group that comes later.
pub(crate) type Place = OnceRef<Inner>;

#[derive(Debug)]
pub(crate) struct Registry {
    by_name: [Place; PLACES],
    /// By the numbers of contexts, less one. Contexts that are no groups have numbers, too.
    by_id: [Place; MAX_GROUPS],
    /// How many groups beside `other` threads have made, or are about to make.
    taken: AtomicUsize,
    /// A context that a thread has made in vain.
    spare: AtomicPtr<Context>,
}

impl Inner {
    /// The group for objectives.
    pub(crate) fn of_group(&'static self) -> OfGroup {
        OfGroup { id: self.context.id(), name: self.name, counts: &self.objectives }
    }
}

impl Registry {
    pub(crate) const fn new() -> Self {
        Self {
            by_name: [const { Place::new() }; PLACES],
            by_id: [const { Place::new() }; MAX_GROUPS],
            taken: AtomicUsize::new(0),
            spare: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// The group of that name, or `other` if there is room for no more.
    pub(crate) fn intern(&self, name: &str) -> &'static Inner {
        let found = self.find(name).unwrap_or_else(|| self.add(name));
        // Before the caller has it: `by_id` finds every group that a thread runs.
        if let Some(place) = self.by_id.get(found.context.id() as usize - 1) {
            place.get_or_init(|| found);
        }
        found
    }

    fn find(&self, name: &str) -> Option<&'static Inner> {
        self.way(name).map_while(Place::get).find(|inner| inner.name == name)
    }

    /// The places in which a name may be.
    fn way(&self, name: &str) -> impl Iterator<Item = &Place> {
        // FNV-1a.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let (before, from) = self.by_name.split_at(hash as usize % PLACES);
        from.iter().chain(before)
    }

    #[cold]
    fn add(&self, name: &str) -> &'static Inner {
        let is_counted = name != OTHER;
        let more = |taken| (taken < MAX_GROUPS - 1).then_some(taken + 1);
        if is_counted && self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return self.find(OTHER).unwrap_or_else(|| self.add(OTHER));
        }
        let own_name = Box::into_raw(Box::<str>::from(name));
        let context = self.context();
        // SAFETY: just made, and freed below only, where no other thread has seen it.
        let own_name_of = unsafe { &*own_name };
        let (tasks, published, objectives) = (Tasks::new(), ThreadContext::of(name), OnceBox::new());
        let inner = Inner {
            name: own_name_of,
            context,
            tasks,
            objectives,
            lives: Lives::new(),
            pool_queue: PoolQueue::default(),
            published,
        };
        let own = Box::into_raw(Box::new(inner));
        // SAFETY: as above.
        let shown: &'static Inner = unsafe { &*own };
        context.set_shown(Some(&shown.published));
        let there = self.way(name).map(|place| place.get_or_init(|| shown)).find(|there| there.name == name);
        // There are more places than groups, so the way does not end before.
        let there = there.unwrap_or(shown);
        if ptr::eq(there, shown) {
            group_begins(there.of_group(), || self.of_groups());
        } else {
            context.set_shown(None);
            self.spare(context);
            // SAFETY: both are from `into_raw`, and no other thread has them.
            unsafe {
                drop(Box::from_raw(own));
                drop(Box::from_raw(own_name));
            }
            if is_counted {
                self.taken.fetch_sub(1, Ordering::Relaxed);
            }
        }
        there
    }

    fn context(&self) -> &'static Context {
        // SAFETY: null, or a context of `spare`, which is static. Pairs with the exchange there.
        let spare = unsafe { self.spare.swap(ptr::null_mut(), Ordering::Acquire).as_ref() };
        spare.unwrap_or_else(Context::new)
    }

    /// Keeps a context to which nothing was charged for the next new name. A second one is lost.
    fn spare(&self, context: &'static Context) {
        let context = ptr::from_ref(context).cast_mut();
        let _ = self.spare.compare_exchange(ptr::null_mut(), context, Ordering::Release, Ordering::Relaxed);
    }

    /// The group whose context has that number.
    #[inline]
    pub(crate) fn by_id(&self, id: u32) -> Option<&'static Inner> {
        match self.by_id.get((id as usize).checked_sub(1)?) {
            Some(place) => place.get(),
            // Contexts that are no groups have taken numbers, too.
            None => self.all().into_iter().find(|inner| inner.context.id() == id),
        }
    }

    /// How many there are at most.
    pub(crate) fn most(&self) -> usize {
        self.taken.load(Ordering::Relaxed) + 1
    }

    /// All of them, in order of creation.
    pub(crate) fn all(&self) -> Vec<&'static Inner> {
        let mut all: Vec<_> = self.by_name.iter().filter_map(Place::get).collect();
        all.sort_unstable_by_key(|inner| inner.context.id());
        all
    }

    /// All groups, for objectives.
    pub(crate) fn of_groups(&self) -> Vec<OfGroup> {
        self.all().into_iter().map(Inner::of_group).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn names_beyond_the_bound_share_one_group() {
        let registry: &Registry = Box::leak(Box::new(Registry::new()));
        let menu = registry.intern("GET /menu");
        assert!(ptr::eq(registry.intern("GET /menu"), menu));
        for n in 0..2 * MAX_GROUPS {
            registry.intern(&format!("group {n}"));
        }
        assert_eq!(registry.all().len(), MAX_GROUPS);
        assert_eq!(registry.intern("one more").name, OTHER);
        assert_eq!(registry.intern("group 3").name, "group 3");
        assert!(ptr::eq(registry.intern("GET /menu"), menu));
    }

    #[test]
    fn threads_with_one_name_get_one_group() {
        const NAMES: usize = 2 * MAX_GROUPS;
        let registry: &Registry = Box::leak(Box::new(Registry::new()));
        let together = Barrier::new(4);
        let make = || {
            together.wait();
            (0..NAMES).map(|n| registry.intern(&format!("group {n}"))).collect::<Vec<_>>()
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let all = registry.all();
        assert_eq!(all.len(), MAX_GROUPS);
        for names in made {
            for (n, inner) in names.into_iter().enumerate() {
                assert!(inner.name == format!("group {n}") || inner.name == OTHER);
                assert!(all.iter().any(|&there| ptr::eq(there, inner)));
            }
        }
    }
}
