//! Hits of breakpoints, as far as events know of them: numbered cells that whoever handles a hit adds to.
//!
//! Who arms a breakpoint names one of the numbers and adds to it, on the thread that ran into it, from the signal
//! handler that it has for that.

use std::sync::OnceLock;

use dormouse_sys::thread::ThreadBlock;

use super::{Event, Pmu, cells};
use crate::error::Error;

/// How many breakpoints can be counted.
pub const MAX_BREAKPOINTS: usize = 16;

static NAMES: [OnceLock<&'static str>; MAX_BREAKPOINTS] = [const { OnceLock::new() }; MAX_BREAKPOINTS];

/// The calling thread has run into breakpoint `number`.
///
/// # Async-signal-safety
///
/// Signal-safe: one addition in thread-local storage.
#[inline]
pub fn hit(number: u32) {
    cells::own(|cells| {
        if let Some(count) = cells.hits.get(number as usize) {
            count.add(1);
        }
    });
}

/// Makes the hits of breakpoint `number` an event, known by that name from now on.
///
/// # Errors
///
/// [`Error::Unavailable`] if there is no such number, or if it has another name.
pub fn event(name: &'static str, number: u32) -> Result<Event, Error> {
    let refuse = |reason| Err(Error::Unavailable { event: name.to_owned(), reason });
    let Some(place) = NAMES.get(number as usize) else {
        return refuse(format!("breakpoints have the numbers 0 to {}", MAX_BREAKPOINTS - 1));
    };
    match *place.get_or_init(|| name) {
        there if there == name => Ok(Event::new(name, &Breakpoints, number)),
        there => refuse(format!("breakpoint {number} is {there}")),
    }
}

/// Those that have names.
pub(super) fn known() -> impl Iterator<Item = Event> {
    let named = NAMES.iter().zip(0..).filter_map(|(name, number)| Some((*name.get()?, number)));
    named.map(|(name, number)| Event::new(name, &Breakpoints, number))
}

#[derive(Debug)]
struct Breakpoints;

impl Pmu for Breakpoints {
    fn name(&self) -> &'static str {
        "breakpoint"
    }

    #[inline]
    fn read(&self, events: &[u32], values: &mut [u64]) {
        cells::shown(|cells| cells::gather(&cells.hits, events, values));
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        cells::of(thread, |cells| cells::gather(&cells.hits, events, values)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_breakpoint_counts_its_hits_under_the_name_that_it_was_given() {
        let balance = event("balance-writes", 3).unwrap();
        let read = || {
            let mut value = [0];
            balance.pmu().read(&[balance.number()], &mut value);
            value[0]
        };
        let before = read();
        (0..5).for_each(|_| hit(3));
        hit(4);
        assert_eq!(read() - before, 5);
        assert_eq!(Event::by_name("balance-writes"), Ok(balance));
        assert!(event("other", 3).unwrap_err().to_string().contains("breakpoint 3 is balance-writes"));
        assert!(event("other", 99).unwrap_err().to_string().contains("0 to 15"));
        hit(99);
    }
}
