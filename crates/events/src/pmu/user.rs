//! Counters of the program's own: rows read, bytes sent.
//!
//! A counter is a static with a number; its counts are cells in thread-local storage at that number. So
//! [`Counter::add`] is one addition to memory that no other thread looks at.
//!
//! # Invariants
//!
//! A counter's number is given once and never to another.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Event, Pmu};
use crate::error::Error;

/// How many counters a process can have. What is added to further ones is not counted, and
/// [`Counter::event`] says so.
pub const MAX_USER_COUNTERS: usize = 64;

/// Not numbered yet.
const NEW: u32 = u32::MAX;
/// There was no number left.
const REFUSED: u32 = u32::MAX - 1;

static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static COUNTS: [Cell<u64>; MAX_USER_COUNTERS] = const { [const { Cell::new(0) }; MAX_USER_COUNTERS] };
}

/// A counter that the program itself advances.
///
/// ```
/// use dormouse_events::Counter;
///
/// static BYTES: Counter = Counter::new("bytes-sent");
/// BYTES.add(4096);
/// assert_eq!(BYTES.event()?.name(), "bytes-sent");
/// # Ok::<(), dormouse_events::Error>(())
/// ```
#[derive(Debug)]
pub struct Counter {
    name: &'static str,
    number: AtomicU32,
}

impl Counter {
    /// A counter of this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, number: AtomicU32::new(NEW) }
    }

    /// Counts `n` more on the calling thread.
    ///
    /// # Cost
    ///
    /// A load, a comparison and an addition in thread-local storage.
    #[inline]
    pub fn add(&'static self, n: u64) {
        let mut number = self.number.load(Ordering::Relaxed);
        if number >= MAX_USER_COUNTERS as u32 {
            number = self.numbered();
        }
        COUNTS.with(|counts| {
            if let Some(count) = counts.get(number as usize) {
                count.set(count.get().wrapping_add(n));
            }
        });
    }

    /// The event that it is.
    pub fn event(&'static self) -> Result<Event, Error> {
        match self.numbered() {
            REFUSED => Err(Error::Unavailable {
                event: self.name.to_owned(),
                reason: format!("a process can have {MAX_USER_COUNTERS} counters of its own"),
            }),
            number => Ok(Event::new(self.name, &User, number)),
        }
    }

    #[cold]
    fn numbered(&self) -> u32 {
        let number = self.number.load(Ordering::Relaxed);
        if number != NEW {
            return number;
        }
        let next = NEXT
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                (next < MAX_USER_COUNTERS as u32).then_some(next + 1)
            })
            .unwrap_or(REFUSED);
        // Two threads may come here at once; the number of the slower one is never used.
        match self.number.compare_exchange(NEW, next, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => next,
            Err(number) => number,
        }
    }
}

#[derive(Debug)]
struct User;

impl Pmu for User {
    fn name(&self) -> &'static str {
        "user"
    }

    #[inline]
    fn read(&self, events: &[u32], values: &mut [u64]) {
        COUNTS.with(|counts| {
            for (event, value) in events.iter().zip(values) {
                *value = counts.get(*event as usize).map_or(0, Cell::get);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(counter: &'static Counter) -> u64 {
        let event = counter.event().unwrap();
        let mut value = [0];
        event.pmu().read(&[event.number()], &mut value);
        value[0]
    }

    #[test]
    fn a_thread_sees_what_it_has_added_itself() {
        static CUPS: Counter = Counter::new("cups");
        static POTS: Counter = Counter::new("pots");
        CUPS.add(2);
        POTS.add(1);
        CUPS.add(3);
        assert_eq!((read(&CUPS), read(&POTS)), (5, 1));
        assert_eq!(std::thread::spawn(|| read(&CUPS)).join().unwrap(), 0);
    }

    #[test]
    fn a_counter_without_a_number_is_refused_by_name_and_adding_to_it_does_nothing() {
        static LATE: Counter = Counter { name: "late", number: AtomicU32::new(REFUSED) };
        LATE.add(1);
        assert!(LATE.event().unwrap_err().to_string().starts_with("late is unavailable"));
    }
}
