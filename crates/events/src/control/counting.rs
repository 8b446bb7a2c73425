//! [`Counting`], and the change from one set of counted events to another.
//!
//! A program holds a [`Counting`] for the events that it wants counted. A context counts the events
//! of its own countings and of those made by [`Counting::everywhere`]. A change has three steps:
//!
//! 1. It records the wanted events, and stores each context's new set.
//! 2. It moves the generation on, and has every thread pass a barrier. A span that begins from now
//!    on begins with the new set. A span that began before is either found by step 3, or ended by
//!    its thread, which sees the new generation.
//! 3. It flushes the span of each thread ([`super::flush`]).
//!
//! # Locking
//!
//! 1. [`CHANGING`] is held for a whole change, so that only one thread rebases spans at a time.
//!    Forks do not wait for it: it protects rebases in spans of other threads, and a child has no
//!    other threads. A child finds it free.
//! 2. The lock of [`super::wanted`] is taken while `CHANGING` is held, for step 1, which takes
//!    microseconds for any number of threads. Forks wait for it. Readers take it alone, for the
//!    times.
//! 3. No key is changed, and no unit begun or ended, under either lock.
//! 4. A host thread takes one of these locks only when it begins or ends a counting, or reads
//!    counts.
//!
//! # Fork
//!
//! A forked child drops all leases of keys, so the hook sleeps in it. It drops its countings as
//! well: nothing is counted in the child until it starts a counting. Counts keep their values. The
//! child also charges what other threads of its parent had pending.
//!
//! # Safety
//!
//! The unsafe code is a stage of the fork, which uses none of its arguments.
#![allow(unsafe_code)]

use dormouse_keys::{Key, Lease};
use dormouse_sys::barrier;
use dormouse_sys::environment;
use dormouse_sys::process::fork::{Phase, Side, Stage};
use dormouse_sys::process::identity;
use dormouse_sys::process::lock::Lock;

use super::flush::flush_remote_all;
use super::wanted::{self, Events, Request, Wanted};
use crate::error::Error;
use crate::event_set::{EventSet, MAX_SETS, events, mask_of};
use crate::generation::{Generation, SWITCH};
use crate::ledger::Context;
use crate::pmu::{self, Event};

/// For which units of work the counts are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// For each context. A switch between two of its tasks reads no counter.
    #[default]
    GroupExact,
    /// For each task, too: a switch between two tasks of one context reads every counter once.
    TaskExact,
}

/// Held during a change.
static CHANGING: Lock = Lock::new();

// SAFETY: the functions look at statics of their own.
static FORKS: Stage = unsafe { Stage::custom(Phase::Changes, |_| true, |_, side| after_fork(side)) };

/// Keeps events counted as long as it lives, for one context or for all present and future
/// contexts.
///
/// When it ends, the counts are kept. The next counting adds to them.
#[derive(Debug)]
#[must_use = "events are counted as long as it lives"]
pub struct Counting {
    request: Request,
    /// The process that it belongs to.
    process: u64,
    /// Keeps the hook awake.
    awake: Option<Lease>,
}

impl Counting {
    /// Counts `events` for all contexts.
    ///
    /// # Errors
    ///
    /// If an event is unavailable here, if there is no room for the events or for their set, if a
    /// static key cannot be switched, or if the caller is a signal handler that has interrupted a
    /// change on its own thread. In all these cases nothing has changed.
    ///
    /// # Cost
    ///
    /// The first counting wakes the hook: a batch of one static key. Each counting makes every
    /// processor pass a barrier, and reads each thread that runs a task once from outside.
    pub fn everywhere(events: &[Event], mode: Mode) -> Result<Self, Error> {
        Self::begin(0, events, mode)
    }

    /// Counts `events` for one context.
    ///
    /// # Errors
    ///
    /// See [`Counting::everywhere`].
    ///
    /// # Cost
    ///
    /// See [`Counting::everywhere`].
    pub fn of(context: &'static Context, events: &[Event], mode: Mode) -> Result<Self, Error> {
        Self::begin(context.id(), events, mode)
    }

    /// Whether the process, if it counted these events everywhere as well, would still have room
    /// for as many further event sets as it has ever used. For a caller that counts at the request
    /// of others: sets are never freed.
    pub fn leaves_room(events: &[Event]) -> bool {
        EventSet::known() < MAX_SETS / 2 || mask_of(events).is_ok_and(EventSet::is_known)
    }

    /// Whether anything was ever counted in this process, or in one that it was forked from.
    pub fn has_begun() -> bool {
        EventSet::known() > 0
    }

    /// Keeps the events counted for the rest of the process's life.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// The events that this value counts.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        events(self.request.events.mask).map(|(_, event)| event)
    }

    /// The keys that this value keeps on, each once for each lease.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        let units = events(self.request.events.mask).flat_map(|(_, event)| event.pmu().keys());
        self.awake.iter().flat_map(Lease::keys).copied().chain(units)
    }

    fn begin(context: u32, events: &[Event], mode: Mode) -> Result<Self, Error> {
        if environment::is_off() {
            return Err(Error::Asleep { why: environment::OFF.to_owned() });
        }
        let mask = mask_of(events)?;
        // Before the change: a child that a signal handler forks in its middle drops the request.
        let process = identity::id();
        let request = Request { context, events: Events { mask, exact: mode == Mode::TaskExact } };
        begin_events(mask)?;
        let lease = Lease::of([SWITCH.key()]).map_err(|why| Error::Asleep { why: why.to_string() });
        let counting = lease.and_then(|awake| {
            change(|wanted| wanted.add(request), |wanted| wanted.remove(request))?;
            Ok(Self { request, process, awake: Some(awake) })
        });
        if counting.is_err() {
            end_events(mask);
        }
        counting
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if self.process != identity::id() {
            // It belongs to the parent.
            return;
        }
        let done = change(|wanted| wanted.remove(self.request), |_| ());
        if done.is_ok() {
            end_events(self.request.events.mask);
        } else {
            // A signal handler over a change on this thread drops it, or the remaining events are a
            // set that is new to the process, for which there is no room. Its events go on being
            // counted.
            std::mem::forget(self.awake.take());
        }
    }
}

/// Counts nothing from now on, whatever countings there are or begin; or again what they want.
///
/// # Errors
///
/// Those of [`Counting::everywhere`].
///
/// # Cost
///
/// That of [`Counting::everywhere`], without its batch: the hook stays awake.
pub fn suspend(suspended: bool) -> Result<(), Error> {
    let alter = |wanted: &mut Wanted| {
        if std::mem::replace(&mut wanted.is_suspended, suspended) && !suspended {
            pmu::alloc::goes_on();
        }
    };
    change(alter, |wanted| wanted.is_suspended = !suspended)
}

/// Tells the PMUs of these events that somebody counts them.
fn begin_events(mask: u64) -> Result<(), Error> {
    let mut begun = 0;
    for (index, event) in events(mask) {
        if let Err(why) = event.pmu().begin(&[event.number()]) {
            end_events(begun);
            return Err(why);
        }
        begun |= 1 << index;
    }
    Ok(())
}

/// Tells the PMUs of these events that one counting less counts them.
fn end_events(mask: u64) {
    for (_, event) in events(mask) {
        event.pmu().end(&[event.number()]);
    }
}

/// Changes what is wanted by `alter`, and brings every context and every thread to it. If that is
/// refused, `undo` takes the alteration back.
fn change(alter: impl FnOnce(&mut Wanted), undo: impl FnOnce(&mut Wanted)) -> Result<(), Error> {
    FORKS.join();
    let _alone = CHANGING.lock().map_err(|_| Error::Reentrant)?;
    // Step 1.
    let mut wanted = Wanted::lock()?;
    alter(&mut wanted);
    let generation = wanted.apply().inspect_err(|_| undo(&mut wanted))?;
    drop(wanted);
    if let Some(generation) = generation {
        // Step 2. Pairs with the light barriers of `Span::begin` and of cases 5 and 6 of
        // `thread::state`.
        barrier::heavy();
        // Step 3.
        flush_remote_all(generation);
    }
    Ok(())
}

/// Moves the generation on, and changes nothing else: each thread takes the long way at its next
/// event.
pub(super) fn move_on() -> Result<(), Error> {
    FORKS.join();
    let _alone = CHANGING.lock().map_err(|_| Error::Reentrant)?;
    let generation = Generation::advance(Generation::current().counts());
    // As in `change`.
    barrier::heavy();
    flush_remote_all(generation);
    Ok(())
}

/// In a fork child no change is under way, even where a handler forked in the middle of one.
fn after_fork(side: Side) {
    if side != Side::Parent {
        CHANGING.reset();
        pmu::after_fork();
        wanted::after_fork();
    }
}
