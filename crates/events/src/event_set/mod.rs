//! Which events are counted together, and the slot of each event in a reading.
//!
//! An [`EventSet`] never changes and is never freed, and each combination of events that was ever
//! counted exists once. So a pointer to a set stays valid on every thread, and two equal sets have
//! equal pointers. The sets lie in a table that only grows, and which is searched by hash without a
//! lock: a thread also looks a set up in the middle of a switch, when its task counts other events
//! than its context.
//!
//! # Invariants
//!
//! 1. The slots of one PMU are neighbours, so that one call reads all of its events.
//! 2. A set lies in the first entry from its hash on that was free when it was added, and stays
//!    there. So no free entry lies between its hash and it.
//! 3. A [`SetCell`] holds null or a pointer to a set in the table or to [`EMPTY`]. Its owner stores
//!    a set before any thread loads from it.
//!
//! # Safety
//!
//! The unsafe code follows the pointer in a cell, by invariant 3.
#![allow(unsafe_code)]

mod index;

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use dormouse_sys::sync::OnceBox;
use dormouse_sys::thread::ThreadBlock;

pub use self::index::MAX_EVENTS;
#[cfg(feature = "origin")]
pub(crate) use self::index::index_of;
pub(crate) use self::index::{CLOCK, events, indices, mask_of};
use crate::error::Error;
use crate::pmu::{self, Event, Pmu};
use crate::primitive::{AtomicPtr, const_unless_loom};

/// How many events can be counted at once for one task.
#[cfg(not(all(test, loom)))]
pub const MAX_COUNTERS: usize = 16;
/// Smaller under loom, which explores the accesses to every slot.
#[cfg(all(test, loom))]
pub const MAX_COUNTERS: usize = 2;

/// How many different sets of events a process can count in its life: a set is never freed.
pub(crate) const MAX_SETS: usize = 4096;

/// One value for each slot.
pub(crate) type Readings = [u64; MAX_COUNTERS];

/// Neighbouring slots of one PMU.
#[derive(Debug)]
struct Run {
    pmu: &'static dyn Pmu,
    slots: Range<usize>,
}

/// A set of events, and the order in which they are read.
#[derive(Debug)]
pub(crate) struct EventSet {
    mask: u64,
    /// By slot: the index of the event.
    indices: Vec<u8>,
    /// By slot: the number of the event in its PMU.
    numbers: Vec<u32>,
    runs: Vec<Run>,
    /// Whether the set is task-clock alone, as it mostly is: then a switch reads it without a
    /// virtual call.
    is_clock: bool,
    /// Whether one of its PMUs wants to be called when a thread switches to or from the set.
    is_scheduled: bool,
}

/// The set of no events.
pub(crate) static EMPTY: EventSet = EventSet {
    mask: 0,
    indices: Vec::new(),
    numbers: Vec::new(),
    runs: Vec::new(),
    is_clock: false,
    is_scheduled: false,
};

/// Twice as many entries as sets, so that searches are short.
const ENTRIES: usize = 2 * MAX_SETS;
static TABLE: [OnceBox<EventSet>; ENTRIES] = [const { OnceBox::new() }; ENTRIES];
/// How many sets are in the table or about to be.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// The entries in which the set `mask` may be, in the order of the search.
fn probe(mask: u64) -> impl Iterator<Item = &'static OnceBox<EventSet>> {
    let first = (mask.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - ENTRIES.ilog2())) as usize;
    (first..first + ENTRIES).map(|entry| &TABLE[entry % ENTRIES])
}

impl EventSet {
    /// The set of the events whose indices are in `mask`.
    ///
    /// # Cost
    ///
    /// A look-up in a table; some allocations for a set that is new to the process.
    pub(crate) fn of(mask: u64) -> Result<&'static Self, Error> {
        if mask == 0 {
            return Ok(&EMPTY);
        }
        for entry in probe(mask) {
            let mut made = None;
            let make = || Self::reserve(mask).inspect(|own| made = Some(ptr::from_ref(&**own)));
            let set = entry.get_or_try_init(make)?;
            if made.is_some_and(|made| !ptr::eq(made, set)) {
                // Another thread was faster.
                KNOWN.fetch_sub(1, Ordering::Relaxed);
            }
            if set.mask == mask {
                return Ok(set);
            }
        }
        // Not reached: the table has more entries than sets.
        Err(Error::TooManySets { limit: MAX_SETS })
    }

    /// Whether the table holds the set `mask` already.
    pub(crate) fn is_known(mask: u64) -> bool {
        mask == 0 || probe(mask).map_while(OnceBox::get).any(|set| set.mask == mask)
    }

    /// How many sets the table holds.
    pub(crate) fn known() -> usize {
        KNOWN.load(Ordering::Relaxed)
    }

    /// A new set, which has room in the table.
    fn reserve(mask: u64) -> Result<Box<Self>, Error> {
        if mask.count_ones() as usize > MAX_COUNTERS {
            return Err(Error::TooMany { requested: mask.count_ones() as usize, limit: MAX_COUNTERS });
        }
        let one_more = |known| (known < MAX_SETS).then_some(known + 1);
        if KNOWN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return Err(Error::TooManySets { limit: MAX_SETS });
        }
        Ok(Box::new(Self::new(mask)))
    }

    fn new(mask: u64) -> Self {
        let mut events: Vec<(usize, Event)> = events(mask).collect();
        // The sort is stable: events of one PMU stay in the order of their indices.
        events.sort_by_key(|(_, event)| (ptr::from_ref(event.pmu()).addr(), event.pmu().name()));
        let mut runs: Vec<Run> = Vec::new();
        for (slot, (_, event)) in events.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if pmu::same(run.pmu, event.pmu()) => run.slots.end = slot + 1,
                _ => runs.push(Run { pmu: event.pmu(), slots: slot..slot + 1 }),
            }
        }
        Self {
            mask,
            indices: events.iter().map(|&(index, _)| index as u8).collect(),
            numbers: events.iter().map(|(_, event)| event.number()).collect(),
            is_scheduled: runs.iter().any(|run| run.pmu.is_scheduled()),
            runs,
            is_clock: mask == 1 << CLOCK,
        }
    }

    #[inline]
    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.indices.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.mask == 0
    }

    /// Whether the set is task-clock and nothing else.
    #[inline]
    pub(crate) fn is_clock(&self) -> bool {
        self.is_clock
    }

    /// Whether it wants [`EventSet::sched_in`] and [`EventSet::sched_out`].
    #[inline]
    pub(crate) fn is_scheduled(&self) -> bool {
        self.is_scheduled
    }

    /// The calling thread begins to charge by this set.
    pub(crate) fn sched_in(&self) {
        self.scheduled().for_each(|(pmu, numbers)| pmu.sched_in(numbers));
    }

    /// The calling thread comes to another set.
    pub(crate) fn sched_out(&self) {
        self.scheduled().for_each(|(pmu, numbers)| pmu.sched_out(numbers));
    }

    fn scheduled(&self) -> impl Iterator<Item = (&'static dyn Pmu, &[u32])> {
        let runs = self.runs.iter().filter(|run| run.pmu.is_scheduled());
        runs.map(|run| (run.pmu, &self.numbers[run.slots.clone()]))
    }

    /// By slot: the index of the event.
    #[inline]
    pub(crate) fn indices(&self) -> impl Iterator<Item = usize> {
        self.indices.iter().map(|&index| usize::from(index))
    }

    /// Reads every counter of the calling thread.
    #[inline]
    pub(crate) fn read(&self, readings: &mut Readings) {
        for Run { pmu, slots } in &self.runs {
            pmu.read(&self.numbers[slots.clone()], &mut readings[slots.clone()]);
        }
    }

    /// Reads the counters of another thread, as far as its PMUs give them without its help; returns
    /// the bits of the slots that were read. A PMU with no event of `wanted` is not asked.
    pub(crate) fn read_of(&self, thread: &ThreadBlock, wanted: u64, readings: &mut Readings) -> u32 {
        let mut known = 0;
        for Run { pmu, slots } in &self.runs {
            let is_wanted = self.indices[slots.clone()].iter().any(|index| wanted & 1 << index != 0);
            let (numbers, values) = (&self.numbers[slots.clone()], &mut readings[slots.clone()]);
            if is_wanted && pmu.read_of(thread, numbers, values) {
                known |= slots.clone().fold(0, |bits, slot| bits | 1_u32 << slot);
            }
        }
        known
    }
}

impl PartialEq for EventSet {
    fn eq(&self, other: &Self) -> bool {
        self.mask == other.mask
    }
}

/// A place for a pointer to a set, which one thread moves and others read.
#[derive(Debug)]
pub(crate) struct SetCell(AtomicPtr<EventSet>);

impl SetCell {
    const_unless_loom! {
        /// All zeros; see invariant 3.
        pub(crate) const fn unset() -> Self {
            Self(AtomicPtr::new(ptr::null_mut()))
        }
    }

    const_unless_loom! {
        pub(crate) const fn empty() -> Self {
            Self(AtomicPtr::new((&raw const EMPTY).cast_mut()))
        }
    }

    pub(crate) fn is_unset(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    #[inline]
    pub(crate) fn load(&self) -> &'static EventSet {
        // SAFETY: invariant 3. The load pairs with `store`: a thread that sees the pointer sees the
        // set.
        unsafe { &*self.0.load(Ordering::Acquire) }
    }

    /// Release: pairs with `load`, which then also sees the caller's earlier stores.
    #[inline]
    pub(crate) fn store(&self, set: &'static EventSet) {
        self.0.store(ptr::from_ref(set).cast_mut(), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pmu::CountingPmu;

    static FIRST: CountingPmu = CountingPmu::new();
    static SECOND: CountingPmu = CountingPmu::new();

    #[test]
    fn each_pmu_is_asked_once_for_its_events() {
        let events = [FIRST.event("a", 0), SECOND.event("b", 1), FIRST.event("c", 2), SECOND.event("d", 3)];
        let set = EventSet::of(mask_of(&events).unwrap()).unwrap();
        assert_eq!(set.runs.len(), 2);
        for number in 0..4 {
            CountingPmu::happen(number, 10 + u64::from(number));
        }
        let mut readings = Readings::default();
        set.read(&mut readings);
        for (&number, reading) in set.numbers.iter().zip(readings) {
            assert_eq!(reading, 10 + u64::from(number));
        }
        assert!(ptr::eq(set, EventSet::of(set.mask()).unwrap()));
    }

    #[test]
    fn a_set_is_known_once_it_was_counted() {
        let events = [FIRST.event("unknown", 98), SECOND.event("to all", 99)];
        let mask = mask_of(&events).unwrap();
        assert!(!EventSet::is_known(mask));
        let before = EventSet::known();
        EventSet::of(mask).unwrap();
        assert!(EventSet::is_known(mask) && EventSet::known() > before);
    }

    #[test]
    fn threads_that_make_equal_sets_share_them() {
        let events: Vec<Event> = (100..108).map(|n| FIRST.event("x", n)).collect();
        let all = mask_of(&events).unwrap();
        let sets = move || -> Vec<_> {
            let all = (0..256_u64).map(|bits| bits << all.trailing_zeros() & all);
            all.map(|mask| ptr::from_ref(EventSet::of(mask).unwrap()).addr()).collect()
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(sets)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|sets| *sets == made[0]));
    }

    #[test]
    fn more_events_than_slots_are_refused() {
        let events: Vec<Event> = (0..=MAX_COUNTERS as u32).map(|n| FIRST.event("x", n)).collect();
        let refused = EventSet::of(mask_of(&events).unwrap()).unwrap_err();
        assert_eq!(refused, Error::TooMany { requested: MAX_COUNTERS + 1, limit: MAX_COUNTERS });
        assert!(EventSet::of(mask_of(&events[1..]).unwrap()).is_ok());
    }
}
