//! The events of the rows that are available everywhere: the kernel's and the program's own.

use dormouse_events::{Counter, Error, Event};

pub(super) const HOPS_NAME: &str = "hops";

pub(super) static HOPS: Counter = Counter::new(HOPS_NAME);
pub(super) static BYTES: Counter = Counter::new("bytes");
static RETRIES: Counter = Counter::new("retries");
static REFUSALS: Counter = Counter::new("refusals");

/// The first `count` of them.
pub(super) fn soft(count: usize) -> Result<Vec<Event>, Error> {
    let mut events = vec![
        Event::TASK_CLOCK,
        Event::CONTEXT_SWITCHES,
        Event::CPU_MIGRATIONS,
        Event::PAGE_FAULTS,
        HOPS.event()?,
        BYTES.event()?,
        RETRIES.event()?,
        REFUSALS.event()?,
    ];
    events.truncate(count);
    Ok(events)
}
