//! Numbers for events, the same in every context of the process.
//!
//! A context keeps its counts in places by these numbers, and a set of events is the set of their bits. A number
//! is given to an event when it is first asked for, and never to another: a count stays where it is however often what
//! is counted changes.

use std::sync::OnceLock;

use dormouse_sys::lock::Lock;

use crate::error::Error;
use crate::pmu::Event;

/// How many different events a process can count in its life.
pub const MAX_EVENTS: usize = 64;

/// The number of task-clock, which every process that counts anything counts.
pub(crate) const CLOCK: usize = 0;

static EVENTS: [OnceLock<Event>; MAX_EVENTS] = [const { OnceLock::new() }; MAX_EVENTS];
/// Held while a number is given, and by forks.
pub(crate) static NUMBERING: Lock = Lock::new();

/// The number of `event`.
pub(crate) fn of(event: Event) -> Result<usize, Error> {
    let _one_at_a_time = NUMBERING.lock().map_err(|_| Error::Reentrant)?;
    EVENTS[CLOCK].get_or_init(|| Event::TASK_CLOCK);
    for (number, place) in EVENTS.iter().enumerate() {
        if *place.get_or_init(|| event) == event {
            return Ok(number);
        }
    }
    Err(Error::TooManyEvents { event: event.name(), limit: MAX_EVENTS })
}

/// The events whose numbers are in `mask`, in order.
pub(crate) fn events(mask: u64) -> impl Iterator<Item = (usize, Event)> {
    numbers(mask).filter_map(|number| Some((number, *EVENTS[number].get()?)))
}

/// The numbers in `mask`.
pub(crate) fn numbers(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(number)
    })
}

/// The set of these events.
pub(crate) fn mask(events: &[Event]) -> Result<u64, Error> {
    events.iter().try_fold(0, |mask, &event| Ok(mask | 1 << of(event)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_its_number() {
        let faults = of(Event::PAGE_FAULTS).unwrap();
        assert_ne!(faults, CLOCK);
        assert_eq!(of(Event::TASK_CLOCK), Ok(CLOCK));
        assert_eq!(of(Event::PAGE_FAULTS), Ok(faults));
        let mask = mask(&[Event::PAGE_FAULTS, Event::TASK_CLOCK]).unwrap();
        let mut names: Vec<_> = events(mask).map(|(_, event)| event.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["page-faults", "task-clock"]);
    }
}
