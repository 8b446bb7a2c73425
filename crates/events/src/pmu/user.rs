//! Counters of the program itself: rows read, bytes sent.
//!
//! A counter is a static with a number. Its counts are the cells with that number in each thread's
//! storage. So [`Counter::add`] is one addition to memory that no other thread writes.
//!
//! # Invariants
//!
//! A number is never given to a second counter.

use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::sync::OnceRef;

use dormouse_sys::thread::ThreadBlock;

use super::cells;
use super::event::{Event, Pmu};
use crate::error::Error;

pub use super::cells::MAX_USER_COUNTERS;

/// Not numbered yet.
const NEW: u32 = u32::MAX;
/// There was no number left.
const REFUSED: u32 = u32::MAX - 1;

/// Those that have a number.
static NUMBERED: [OnceRef<Counter>; MAX_USER_COUNTERS] = [const { OnceRef::new() }; MAX_USER_COUNTERS];

/// A counter that the program itself increments.
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

    /// Adds `n` on the calling thread.
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

    /// The event that counts what was added to this counter.
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
        // The first place that is free or holds this counter already: two threads at once find the
        // same one.
        let is_own = |place: &OnceRef<Self>| std::ptr::eq(place.get_or_init(|| self), self);
        let number = NUMBERED.iter().position(is_own).map_or(REFUSED, |number| number as u32);
        self.number.store(number, Ordering::Relaxed);
        number
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

    cells::reads_cells!(user);
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
    #[cfg_attr(miri, ignore = "the processor's counters")]
    fn a_used_counter_is_known_by_name() {
        static SCONES: Counter = Counter::new("scones");
        assert!(Event::by_name("scones").is_err());
        SCONES.add(1);
        assert_eq!(Event::by_name("scones"), SCONES.event());
    }

    #[test]
    fn a_counter_without_number_is_refused_by_name() {
        static LATE: Counter = Counter { name: "late", number: AtomicU32::new(REFUSED) };
        LATE.add(1);
        assert!(LATE.event().unwrap_err().to_string().starts_with("late is unavailable"));
    }
}
