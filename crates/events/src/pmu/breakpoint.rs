//! Hits of breakpoints as events: numbered cells to which the handler of a hit adds.
//!
//! A program [registers](register) a breakpoint under a name. Its signal handler calls [`hit`] with
//! the [number](Registration::number) on the thread that ran into the breakpoint. There are two
//! events of that name. [`Registration::event`] counts the hits. [`Registration::arming`] counts
//! them, too, and also has the breakpoint armed on threads in the contexts that count it: its unit
//! calls the program ([`schedule_by`]) when a thread enters or leaves such a context. So a client
//! that counts the first event everywhere arms nothing.
//!
//! # Invariants
//!
//! 1. A number has a place, where its hits are stored, and a name, which is never freed. No two
//!    names have one number. So the counts of a breakpoint that has ended never become those of
//!    another name, even if both had one place.
//! 2. A place has one name at a time, and keeps it while the name is registered or counted.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::sync::OnceBox;
use dormouse_sys::thread::ThreadBlock;

use super::cells;
use super::event::{Event, Pmu};
use crate::error::Error;

pub use super::cells::MAX_BREAKPOINTS;

/// How many names breakpoints can have in a process's life.
pub const MAX_BREAKPOINT_NAMES: usize = 256;

/// By place: its name, in bits as [`name_of`] reads them, with [`REGISTERED`], and how many count
/// it. 0 if it never had a name.
static PLACES: [AtomicU64; MAX_BREAKPOINTS] = [const { AtomicU64::new(0) }; MAX_BREAKPOINTS];
const NAME_SHIFT: u32 = 48;
const REGISTERED: u64 = 1 << 32;
const COUNTED: u64 = REGISTERED - 1;

static NAMES: [OnceBox<String>; MAX_BREAKPOINT_NAMES] = [const { OnceBox::new() }; MAX_BREAKPOINT_NAMES];

/// The program's functions that arm and disarm.
static HOOKS: OnceBox<Hooks> = OnceBox::new();

#[derive(Debug)]
struct Hooks {
    sched_in: fn(u32),
    sched_out: fn(u32),
}

/// A breakpoint's name and number, reserved as long as this lives.
#[derive(Debug)]
#[must_use = "the name is known as long as this lives"]
pub struct Registration {
    number: u32,
}

/// Counts a hit of breakpoint `number` by the calling thread.
///
/// # Async-signal-safety
///
/// Signal-safe: one addition in thread-local storage.
#[inline]
pub fn hit(number: u32) {
    cells::own(|cells| cells.hits[place_of(number)].add(1));
}

/// Sets the functions that are called with the number of a breakpoint whenever the calling thread
/// enters or leaves a context that counts [`Registration::arming`]; see [`Pmu::sched_in`] and
/// [`Pmu::sched_out`]. They are called in the middle of a switch, also in signal handlers: they
/// must take no lock, allocate nothing and not panic. Only the first call has an effect.
pub fn schedule_by(sched_in: fn(u32), sched_out: fn(u32)) {
    HOOKS.get_or_init(|| Box::new(Hooks { sched_in, sched_out }));
}

/// Registers a breakpoint under `name` and gives it a number: the one that the name had last, if
/// that is free.
///
/// # Errors
///
/// [`Error::Unavailable`] if a breakpoint of that name exists, if another thread registers one at
/// the same moment (then perhaps both fail), if as many are registered or counted as there are
/// numbers ([`MAX_BREAKPOINTS`]), or if the process has used up its names
/// ([`MAX_BREAKPOINT_NAMES`]).
pub fn register(name: &str) -> Result<Registration, Error> {
    let refuse = |reason| Err(Error::Unavailable { event: name.to_owned(), reason });
    let is = |place: &OnceBox<String>| *place.get_or_init(|| Box::new(name.to_owned())) == name;
    let Some(index) = NAMES.iter().position(is) else {
        return refuse(format!("a process can name {MAX_BREAKPOINT_NAMES} breakpoints in its life"));
    };
    let named = (index as u64 + 1) << NAME_SHIFT;
    let is_named = |word: u64| word >> NAME_SHIFT == named >> NAME_SHIFT;
    let is_unused = |word: u64| word & (REGISTERED | COUNTED) == 0;
    let take = |may: &dyn Fn(u64) -> bool| {
        let places = PLACES.iter().zip(0..);
        places.into_iter().find_map(|(place, at)| {
            // SeqCst, as the loads in `living`: of two threads with one name at least one sees the
            // other's place.
            let taken = place.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |word| {
                let used = if is_named(word) { word & COUNTED } else { 0 };
                may(word).then_some(named | REGISTERED | used)
            });
            taken.ok().map(|_| Registration { number: index as u32 * PLACES.len() as u32 + at })
        })
    };
    let living = || {
        let words = PLACES.iter().map(|place| place.load(Ordering::SeqCst));
        words.filter(|&word| is_named(word) && word & REGISTERED != 0).count()
    };
    if living() > 0 {
        return refuse("a breakpoint of that name lives".to_owned());
    }
    let last = || take(&|word| is_named(word) && word & REGISTERED == 0);
    let taken = last().or_else(|| take(&|word| word == 0)).or_else(|| take(&is_unused));
    match taken {
        None => refuse(format!("{MAX_BREAKPOINTS} breakpoints are counted")),
        // Dropped, it gives the place back.
        Some(_) if living() > 1 => refuse("another thread registers that name just now".to_owned()),
        Some(taken) => Ok(taken),
    }
}

impl Registration {
    /// The number, for [`hit`].
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The event that counts the breakpoint's hits.
    pub fn event(&self) -> Event {
        Event::new(self.name(), &Breakpoints, self.number)
    }

    /// The event that counts the breakpoint's hits, and arms the breakpoint where it is counted.
    pub fn arming(&self) -> Event {
        Event::new(self.name(), &Arming, self.number)
    }

    fn name(&self) -> &'static str {
        name_of(self.number).unwrap_or_default()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        PLACES[place_of(self.number)].fetch_and(!REGISTERED, Ordering::Relaxed);
    }
}

/// Those that are registered.
pub(super) fn known() -> impl Iterator<Item = Event> {
    PLACES.iter().zip(0..).filter_map(|(place, at)| {
        let word = place.load(Ordering::Relaxed);
        let index = (word >> NAME_SHIFT).checked_sub(1).filter(|_| word & REGISTERED != 0)?;
        let number = index as u32 * PLACES.len() as u32 + at;
        Some(Event::new(name_of(number)?, &Breakpoints, number))
    })
}

/// In a fork child nothing is counted.
pub(super) fn forget() {
    for place in &PLACES {
        place.fetch_and(!COUNTED, Ordering::Relaxed);
    }
}

fn place_of(number: u32) -> usize {
    number as usize % PLACES.len()
}

fn name_of(number: u32) -> Option<&'static str> {
    Some(NAMES.get(number as usize / PLACES.len())?.get()?.as_str())
}

/// The word of the number's place, if the number is the one that has it.
fn of(number: u32, word: u64) -> Option<u64> {
    (word >> NAME_SHIFT == u64::from(number) / PLACES.len() as u64 + 1).then_some(word)
}

fn begin(events: &[u32]) -> Result<(), Error> {
    for (begun, &number) in events.iter().enumerate() {
        let more = |word| of(number, word).filter(|word| word & REGISTERED != 0).map(|word| word + 1);
        if PLACES[place_of(number)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            end(&events[..begun]);
            let event = name_of(number).unwrap_or("breakpoint").to_owned();
            return Err(Error::Unavailable { event, reason: "it has ended".to_owned() });
        }
    }
    Ok(())
}

fn end(events: &[u32]) {
    for &number in events {
        // None: its process was forked from the one that began, and has forgotten.
        let less = |word| of(number, word).filter(|word| word & COUNTED != 0).map(|word| word - 1);
        let _before = PLACES[place_of(number)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

fn gather(hits: &[cells::Count; MAX_BREAKPOINTS], events: &[u32], values: &mut [u64]) {
    for (&number, value) in events.iter().zip(values) {
        *value = hits[place_of(number)].value();
    }
}

/// The half of the two units that is alike.
macro_rules! counts_hits {
    () => {
        fn read(&self, events: &[u32], values: &mut [u64]) {
            cells::shown(|cells| gather(&cells.hits, events, values));
        }

        fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
            cells::of(thread, |cells| gather(&cells.hits, events, values)).is_some()
        }

        fn begin(&self, events: &[u32]) -> Result<(), Error> {
            begin(events)
        }

        fn end(&self, events: &[u32]) {
            end(events);
        }
    };
}

#[derive(Debug)]
struct Breakpoints;

impl Pmu for Breakpoints {
    fn name(&self) -> &'static str {
        "breakpoint"
    }

    counts_hits!();
}

#[derive(Debug)]
struct Arming;

impl Pmu for Arming {
    fn name(&self) -> &'static str {
        "arming"
    }

    fn is_scheduled(&self) -> bool {
        true
    }

    fn sched_in(&self, events: &[u32]) {
        if let Some(hooks) = HOOKS.get() {
            for &number in events {
                (hooks.sched_in)(number);
            }
        }
    }

    fn sched_out(&self, events: &[u32]) {
        if let Some(hooks) = HOOKS.get() {
            for &number in events {
                (hooks.sched_out)(number);
            }
        }
    }

    counts_hits!();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: Event) -> u64 {
        let mut value = [0];
        event.pmu().read(&[event.number()], &mut value);
        value[0]
    }

    /// One test, since the places are the process's.
    #[test]
    fn a_name_has_its_own_counts() {
        let balance = register("balance").unwrap();
        let event = balance.event();
        let before = read(event);
        (0..5).for_each(|_| hit(balance.number()));
        hit(balance.number() + 1);
        assert_eq!(read(event) - before, 5);
        assert_eq!(read(balance.arming()) - before, 5);
        assert_eq!(Event::by_name("balance"), Ok(event));
        assert!(register("balance").unwrap_err().to_string().contains("lives"));

        event.pmu().begin(&[event.number()]).unwrap();
        drop(balance);
        assert!(Event::by_name("balance").is_err() && event.pmu().begin(&[event.number()]).is_err());
        let again = register("balance").unwrap();
        assert_eq!(again.event(), event, "it is counted still");
        drop(again);

        let rest: Vec<_> =
            (1..MAX_BREAKPOINTS).map(|number| register(&format!("rest {number}")).unwrap()).collect();
        assert!(register("late").unwrap_err().to_string().contains("16 breakpoints"));
        event.pmu().end(&[event.number()]);
        let late = register("late").unwrap();
        assert_eq!(place_of(late.number()), place_of(event.number()));
        assert_ne!(late.event(), event);
        drop(rest);
    }
}
