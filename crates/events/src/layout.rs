//! Which counters a context has, and in which order they are read.
//!
//! A layout never changes: adding or removing a counter makes another one. So a clone shares its
//! parent's, and "the same counters" is mostly one comparison of pointers.
//!
//! # Invariants
//!
//! Places of one PMU are neighbours, so that a PMU is asked once.

use std::ops::Range;

use crate::error::Error;
use crate::pmu::{self, Event, Pmu};

/// How many counters a context can have.
pub const MAX_COUNTERS: usize = 16;

/// One value a place.
pub(crate) type Readings = [u64; MAX_COUNTERS];

/// One counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) event: Event,
    /// The parent's account that it is summed up in; none for a counter that a task has added for itself.
    pub(crate) account: Option<usize>,
}

#[derive(Debug)]
struct Run {
    pmu: &'static dyn Pmu,
    places: Range<usize>,
}

/// The counters of a context.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    places: Vec<Place>,
    /// What `runs` hand to their PMUs, one number a place.
    numbers: Vec<u32>,
    runs: Vec<Run>,
}

impl Layout {
    fn of(mut places: Vec<Place>) -> Self {
        // Stable, so that counters of one PMU stay in the order in which they were added.
        places.sort_by_key(|place| {
            let pmu = place.event.pmu();
            (std::ptr::from_ref(pmu).addr(), pmu.name())
        });
        let mut runs: Vec<Run> = Vec::new();
        for (index, place) in places.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if pmu::same(run.pmu, place.event.pmu()) => run.places.end = index + 1,
                _ => runs.push(Run { pmu: place.event.pmu(), places: index..index + 1 }),
            }
        }
        Self { numbers: places.iter().map(|place| place.event.number()).collect(), places, runs }
    }

    /// These and one more.
    pub(crate) fn with(&self, place: Place) -> Result<Self, Error> {
        let event = place.event.name();
        if self.place_of(place.event).is_some() {
            return Err(Error::Twice { event });
        }
        if self.places.len() == MAX_COUNTERS {
            return Err(Error::TooMany { event, limit: MAX_COUNTERS });
        }
        Ok(Self::of(self.places.iter().copied().chain([place]).collect()))
    }

    /// These without that of `event`.
    pub(crate) fn without(&self, event: Event) -> Result<Self, Error> {
        let place = self.place_of(event).ok_or(Error::NotCounted { event: event.name() })?;
        let mut places = self.places.clone();
        places.remove(place);
        Ok(Self::of(places))
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    pub(crate) fn place_of(&self, event: Event) -> Option<usize> {
        self.places.iter().position(|place| place.event == event)
    }

    /// Reads every counter.
    pub(crate) fn read(&self, readings: &mut Readings) {
        for Run { pmu, places } in &self.runs {
            pmu.read(&self.numbers[places.clone()], &mut readings[places.clone()]);
        }
    }

    /// Whether a reading of one is a reading of the other.
    pub(crate) fn reads_as(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || (self.numbers == other.numbers
                && self.runs.len() == other.runs.len()
                && self
                    .runs
                    .iter()
                    .zip(&other.runs)
                    .all(|(a, b)| a.places == b.places && pmu::same(a.pmu, b.pmu)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmu::CountingPmu;

    static FIRST: CountingPmu = CountingPmu::new();
    static SECOND: CountingPmu = CountingPmu::new();

    fn layout(events: &[Event]) -> Layout {
        let places = events.iter().map(|&event| Place { event, account: None });
        places.fold(Layout::default(), |layout, place| layout.with(place).unwrap())
    }

    #[test]
    fn a_pmu_is_asked_once_for_all_of_its_counters_in_whatever_order_they_came() {
        let mixed = [FIRST.event("a", 0), SECOND.event("b", 1), FIRST.event("c", 2), SECOND.event("d", 3)];
        let mixed = layout(&mixed);
        assert_eq!(mixed.runs.len(), 2);
        for number in 0..4 {
            CountingPmu::happen(number, 10 + u64::from(number));
        }
        let mut readings = Readings::default();
        mixed.read(&mut readings);
        for (place, reading) in mixed.places().iter().zip(readings) {
            assert_eq!(reading, 10 + u64::from(place.event.number()));
        }
        let again = [SECOND.event("d", 3), FIRST.event("a", 0)];
        assert!(!mixed.reads_as(&layout(&again)));
        assert!(layout(&again).reads_as(&layout(&[FIRST.event("a", 0), SECOND.event("d", 3)])));
    }

    #[test]
    fn a_full_layout_refuses_and_accepts_again_after_a_removal() {
        let events: Vec<Event> = (0..MAX_COUNTERS as u32).map(|n| FIRST.event("x", n)).collect();
        let full = layout(&events);
        let more = Place { event: SECOND.event("more", 0), account: None };
        assert_eq!(full.with(more).unwrap_err(), Error::TooMany { event: "more", limit: MAX_COUNTERS });
        let less = full.without(events[3]).unwrap();
        assert_eq!(less.without(events[3]).unwrap_err(), Error::NotCounted { event: "x" });
        assert!(less.with(more).is_ok());
        assert_eq!(
            full.with(Place { event: events[0], account: None }).unwrap_err(),
            Error::Twice { event: "x" }
        );
    }
}
