//! Which events are counted together, and in which order they are read.
//!
//! A layout never changes and is never given back: there is one for each set of events that was ever counted
//! together, so a pointer to one is good on every thread for ever, and says which set it is.
//!
//! # Invariants
//!
//! Places of one PMU are neighbours, so that a PMU is asked once.
//!
//! # Safety
//!
//! The unsafe code follows a pointer to a layout, which is always to a static one.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use dormouse_sys::lock::Lock;
use dormouse_sys::thread::ThreadBlock;

use crate::account::{self, CLOCK};
use crate::error::Error;
use crate::pmu::{self, Event, Pmu};
use crate::primitive::AtomicPtr;

/// How many events can be counted at once for one task.
#[cfg(not(all(test, loom)))]
pub const MAX_COUNTERS: usize = 16;
/// Checkers look at every place.
#[cfg(all(test, loom))]
pub const MAX_COUNTERS: usize = 2;

/// How many different sets of events a process can count in its life: what they take is never given back.
const MAX_SETS: usize = 4096;

/// One value a place.
pub(crate) type Readings = [u64; MAX_COUNTERS];

#[derive(Debug)]
struct Run {
    pmu: &'static dyn Pmu,
    places: Range<usize>,
}

/// A set of events, in the order in which they are read.
#[derive(Debug)]
pub(crate) struct Layout {
    mask: u64,
    /// The event's number in the process, of each place.
    accounts: Vec<u8>,
    /// What `runs` hand to their PMUs, one number a place.
    numbers: Vec<u32>,
    runs: Vec<Run>,
    /// Whether task-clock is all that there is, as it mostly is: then it is read without a virtual call.
    clock_only: bool,
}

/// Nothing is counted.
pub(crate) static NOTHING: Layout =
    Layout { mask: 0, accounts: Vec::new(), numbers: Vec::new(), runs: Vec::new(), clock_only: false };

/// Held over `SETS`, and by forks.
pub(crate) static LOCK: Lock = Lock::new();
static SETS: Mutex<BTreeMap<u64, &'static Layout>> = Mutex::new(BTreeMap::new());

impl Layout {
    /// The layout of the events with the numbers in `mask`.
    pub(crate) fn of(mask: u64) -> Result<&'static Self, Error> {
        if mask == 0 {
            return Ok(&NOTHING);
        }
        let _lock = LOCK.lock().map_err(|_| Error::Reentrant)?;
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = sets.get(&mask) {
            return Ok(layout);
        }
        if mask.count_ones() as usize > MAX_COUNTERS {
            return Err(Error::TooMany { requested: mask.count_ones() as usize, limit: MAX_COUNTERS });
        }
        if sets.len() == MAX_SETS {
            return Err(Error::TooManySets { limit: MAX_SETS });
        }
        let layout: &'static Self = Box::leak(Box::new(Self::new(mask)));
        sets.insert(mask, layout);
        Ok(layout)
    }

    fn new(mask: u64) -> Self {
        let mut events: Vec<(usize, Event)> = account::events(mask).collect();
        // Stable, so that events of one PMU stay in the order of their numbers.
        events.sort_by_key(|(_, event)| (std::ptr::from_ref(event.pmu()).addr(), event.pmu().name()));
        let mut runs: Vec<Run> = Vec::new();
        for (place, (_, event)) in events.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if pmu::same(run.pmu, event.pmu()) => run.places.end = place + 1,
                _ => runs.push(Run { pmu: event.pmu(), places: place..place + 1 }),
            }
        }
        Self {
            mask,
            accounts: events.iter().map(|&(account, _)| account as u8).collect(),
            numbers: events.iter().map(|(_, event)| event.number()).collect(),
            runs,
            clock_only: mask == 1 << CLOCK,
        }
    }

    /// What a place that holds pointers to layouts points to.
    #[inline]
    pub(crate) fn behind(place: &AtomicPtr<Self>) -> &'static Self {
        // SAFETY: `of` and `NOTHING` are where layouts come from, and both are static; no place for pointers to them holds
        // anything else. Acquire pairs with the store: who sees the pointer sees the layout.
        unsafe { &*place.load(Ordering::Acquire) }
    }

    pub(crate) fn mask(&self) -> u64 {
        self.mask
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.accounts.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.mask == 0
    }

    /// Whether task-clock is counted and nothing else.
    #[inline]
    pub(crate) fn is_clock(&self) -> bool {
        self.clock_only
    }

    /// The numbers of the events, place by place.
    #[inline]
    pub(crate) fn accounts(&self) -> impl Iterator<Item = usize> {
        self.accounts.iter().map(|&account| usize::from(account))
    }

    /// Reads what the calling thread has counted of every event.
    #[inline]
    pub(crate) fn read(&self, readings: &mut Readings) {
        for Run { pmu, places } in &self.runs {
            pmu.read(&self.numbers[places.clone()], &mut readings[places.clone()]);
        }
    }

    /// Reads what another thread has counted, as far as that can be had without its help: the bits of the places that
    /// could be read.
    pub(crate) fn read_of(&self, thread: &ThreadBlock, readings: &mut Readings) -> u32 {
        let mut known = 0;
        for Run { pmu, places } in &self.runs {
            let (numbers, values) = (&self.numbers[places.clone()], &mut readings[places.clone()]);
            if pmu.read_of(thread, numbers, values) {
                known |= places.clone().fold(0, |bits, place| bits | 1_u32 << place);
            }
        }
        known
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pmu::CountingPmu;

    static FIRST: CountingPmu = CountingPmu::new();
    static SECOND: CountingPmu = CountingPmu::new();

    #[test]
    fn a_pmu_is_asked_once_for_all_of_its_events_in_whatever_order_they_came() {
        let events = [FIRST.event("a", 0), SECOND.event("b", 1), FIRST.event("c", 2), SECOND.event("d", 3)];
        let layout = Layout::of(account::mask(&events).unwrap()).unwrap();
        assert_eq!(layout.runs.len(), 2);
        for number in 0..4 {
            CountingPmu::happen(number, 10 + u64::from(number));
        }
        let mut readings = Readings::default();
        layout.read(&mut readings);
        for (&number, reading) in layout.numbers.iter().zip(readings) {
            assert_eq!(reading, 10 + u64::from(number));
        }
        assert!(std::ptr::eq(layout, Layout::of(layout.mask()).unwrap()));
    }

    #[test]
    fn more_events_than_places_are_refused() {
        let events: Vec<Event> = (0..=MAX_COUNTERS as u32).map(|n| FIRST.event("x", n)).collect();
        let refused = Layout::of(account::mask(&events).unwrap()).unwrap_err();
        assert_eq!(refused, Error::TooMany { requested: MAX_COUNTERS + 1, limit: MAX_COUNTERS });
        assert!(Layout::of(account::mask(&events[1..]).unwrap()).is_ok());
    }
}
