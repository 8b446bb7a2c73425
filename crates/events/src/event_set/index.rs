//! The index of an event: its number in this process, the same for every context.
//!
//! A context keeps its counts by index, and a set of events is a set of bits, one for each index.
//! An event gets its index when it is first counted, and no other event ever gets that index: a
//! count keeps its place however often the set of counted events changes. No lock is needed: an
//! event takes the first free entry of a table, and a thread that finds an entry taken checks
//! whether the same event took it.
//!
//! (The *number* of an event is a different thing: its number within its PMU.)

use dormouse_sys::sync::OnceBox;

use crate::error::Error;
use crate::pmu::Event;

/// How many different events a process can count in its life.
pub const MAX_EVENTS: usize = 64;

/// The index of task-clock, which every process that counts anything counts.
pub(crate) const CLOCK: usize = 0;

static EVENTS: [OnceBox<Event>; MAX_EVENTS] = [const { OnceBox::new() }; MAX_EVENTS];

/// The index of `event`.
pub(crate) fn index_of(event: Event) -> Result<usize, Error> {
    if event == Event::TASK_CLOCK {
        return Ok(CLOCK);
    }
    // The first entry that is free or holds the event already.
    let index =
        (CLOCK + 1..MAX_EVENTS).find(|&index| *EVENTS[index].get_or_init(|| Box::new(event)) == event);
    index.ok_or(Error::TooManyEvents { event: event.name(), limit: MAX_EVENTS })
}

fn event_at(index: usize) -> Option<Event> {
    if index == CLOCK { Some(Event::TASK_CLOCK) } else { EVENTS[index].get().copied() }
}

/// The events of `mask` with their indices, in order of index.
pub(crate) fn events(mask: u64) -> impl Iterator<Item = (usize, Event)> {
    indices(mask).filter_map(|index| Some((index, event_at(index)?)))
}

/// The indices in `mask`.
pub(crate) fn indices(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(index)
    })
}

/// The bits of these events.
pub(crate) fn mask_of(events: &[Event]) -> Result<u64, Error> {
    events.iter().try_fold(0, |mask, &event| Ok(mask | 1 << index_of(event)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_its_index() {
        let faults = index_of(Event::PAGE_FAULTS).unwrap();
        assert_ne!(faults, CLOCK);
        assert_eq!(index_of(Event::TASK_CLOCK), Ok(CLOCK));
        assert_eq!(index_of(Event::PAGE_FAULTS), Ok(faults));
        let mask = mask_of(&[Event::PAGE_FAULTS, Event::TASK_CLOCK]).unwrap();
        let mut names: Vec<_> = events(mask).map(|(_, event)| event.name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["page-faults", "task-clock"]);
    }
}
