//! Counters of the program's own: rows read, bytes sent.
//!
//! A counter is a static with a number; its counts are cells in thread-local storage at that number. So
//! [`Counter::add`] is one addition to memory that no other thread writes.
//!
//! # Invariants
//!
//! A counter's number is given once and never to another.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::thread::ThreadBlock;

use super::{Event, Pmu, cells};
use crate::error::Error;

/// How many counters a process can have. What is added to further ones is not counted, and
/// [`Counter::event`] says so.
pub const MAX_USER_COUNTERS: usize = 64;

/// Not numbered yet.
const NEW: u32 = u32::MAX;
/// There was no number left.
const REFUSED: u32 = u32::MAX - 1;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Those that have a number.
static NUMBERED: [OnceLock<&'static Counter>; MAX_USER_COUNTERS] =
    [const { OnceLock::new() }; MAX_USER_COUNTERS];

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
        cells::own(|cells| {
            if let Some(count) = cells.user.get(number as usize) {
                count.add(n);
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
    fn numbered(&'static self) -> u32 {
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
            Ok(_) => {
                if let Some(place) = NUMBERED.get(next as usize) {
                    // Nobody else has this number, so the place is empty and nobody waits.
                    let _empty = place.set(self);
                }
                next
            }
            Err(number) => number,
        }
    }
}

/// Those that have been used.
pub(super) fn known() -> impl Iterator<Item = Event> {
    let numbered = NUMBERED.iter().zip(0..).filter_map(|(place, number)| Some((place.get()?.name, number)));
    numbered.map(|(name, number)| Event::new(name, &User, number))
}

#[derive(Debug)]
struct User;

impl Pmu for User {
    fn name(&self) -> &'static str {
        "user"
    }

    #[inline]
    fn read(&self, events: &[u32], values: &mut [u64]) {
        cells::shown(|cells| cells::gather(&cells.user, events, values));
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        cells::of(thread, |cells| cells::gather(&cells.user, events, values)).is_some()
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
    fn a_counter_is_known_by_name_once_it_has_been_used() {
        static SCONES: Counter = Counter::new("scones");
        assert!(Event::by_name("scones").is_err());
        SCONES.add(1);
        assert_eq!(Event::by_name("scones"), SCONES.event());
    }

    #[test]
    fn a_counter_without_a_number_is_refused_by_name_and_adding_to_it_does_nothing() {
        static LATE: Counter = Counter { name: "late", number: AtomicU32::new(REFUSED) };
        LATE.add(1);
        assert!(LATE.event().unwrap_err().to_string().starts_with("late is unavailable"));
    }
}
