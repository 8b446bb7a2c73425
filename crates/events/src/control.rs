//! What is counted, and the change from one set of events to another while threads run.
//!
//! Everybody who wants events counted holds a [`Counting`]. What a context counts is what its own countings and those of
//! everywhere ask for, together. A change goes like this:
//!
//! 1. the new layouts are stored, the generation moves on, and every thread passes a barrier: what begins from now on
//!    begins with the new layout, and every stay that began before is either found by the next step or ended by an
//!    owner who sees the new generation;
//! 2. each thread that is in a stay of before, and in a task, is *settled*: its counters are read from outside, what it has
//!    counted is charged, and from there it is counted by the new layout. So a thread that runs one task for hours is
//!    counted from the moment when somebody asks, and until the moment when he stops.
//!
//! A stay that is being changed by its owner just then is waited for, a little. If its owner was descheduled in
//! the middle, it charges the stay to its end when it runs again.
//!
//! # Locking
//!
//! One lock over the changes and over reads; inside it are taken, one at a time, those of sets and of numbers, and what
//! units have for [`crate::pmu::Pmu::read_of`]. A fork takes the first three in this order, so that a child finds them
//! free and what they protect whole. Keys and units have locks of their own that forks may wait for, too, in an order
//! that nobody chooses, because copies install their handlers when they are loaded: so no key is changed and no unit
//! begun or ended under ours.
//!
//! # Fork
//!
//! A forked child drops all leases of keys, and so the hook sleeps in it. It drops its countings as well: nothing is counted
//! in it until it asks. Counts stay what they were: also what the parent's other threads owed is charged in the child.
//!
//! # Safety
//!
//! The unsafe code installs the handlers of the fork.
#![allow(unsafe_code)]

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use dormouse_keys::Lease;
use dormouse_sys::lock::{Guard, Lock};
use dormouse_sys::{barrier, fork};

use crate::account::{self, CLOCK, MAX_EVENTS};
use crate::context::Context;
use crate::error::Error;
use crate::layout::{self, Layout, NOTHING, Readings};
use crate::pmu::Event;
use crate::stay::{self, Part, Seen, Stay};
use crate::switch::{self, SWITCH};

/// Whose counts are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The context's. A switch between its tasks reads nothing.
    #[default]
    GroupExact,
    /// Each task's, too: a switch between two tasks of one context reads every counter once.
    TaskExact,
}

/// How long a thread that is in the middle of a switch is waited for.
const PATIENCE: Duration = Duration::from_millis(20);

/// Moves on with every change. Never [`crate::stay::ASLEEP`]; odd while anything is counted.
static GENERATION: AtomicU64 = AtomicU64::new(2);

/// The process is a fork child that has not dropped its parent's countings yet.
static FORKED: AtomicBool = AtomicBool::new(false);

static LOCK: Lock = Lock::new();
static STATE: Mutex<State> = Mutex::new(State { contexts: Vec::new(), everywhere: Uses::NONE });

struct State {
    contexts: Vec<Entry>,
    everywhere: Uses,
}

struct Entry {
    context: &'static Context,
    uses: Uses,
    /// The events that it counts, and those that it has ever counted.
    mask: u64,
    ever: u64,
    times: Box<[Time; MAX_EVENTS]>,
}

/// For how long an event is counted.
#[derive(Debug, Clone, Copy, Default)]
struct Time {
    before: Duration,
    since: Option<Instant>,
}

/// How many want what.
#[derive(Debug, Clone, Copy)]
struct Uses {
    events: [u32; MAX_EVENTS],
    exact: u32,
}

/// Has events counted as long as it lives: for one context, or for all that are and will be.
///
/// Counts are kept when it ends, and go on from there with the next one.
#[derive(Debug)]
#[must_use = "events are counted as long as it lives"]
pub struct Counting {
    /// `None`: everywhere.
    context: Option<&'static Context>,
    mask: u64,
    mode: Mode,
    /// The process that it is of.
    process: Option<NonZeroU64>,
    /// Keeps the hook awake.
    awake: Option<Lease>,
}

impl Counting {
    /// Counts `events` for all contexts.
    ///
    /// # Errors
    ///
    /// An event that is not to be had here, more events or sets of them than there is room for, a static key that cannot
    /// be switched, or a call by a signal handler over such a change on its own thread. Then nothing has changed.
    ///
    /// # Cost
    ///
    /// The first one wakes the hook: a batch of one static key. Each makes every processor pass a barrier, and costs
    /// one read from outside for each thread that runs a task.
    pub fn everywhere(events: &[Event], mode: Mode) -> Result<Self, Error> {
        Self::begin(None, events, mode)
    }

    /// Counts `events` for one context.
    ///
    /// # Errors
    ///
    /// As of [`Counting::everywhere`].
    ///
    /// # Cost
    ///
    /// As of [`Counting::everywhere`].
    pub fn of(context: &'static Context, events: &[Event], mode: Mode) -> Result<Self, Error> {
        Self::begin(Some(context), events, mode)
    }

    /// Never ends it.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// The events.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        account::events(self.mask).map(|(_, event)| event)
    }

    fn begin(context: Option<&'static Context>, events: &[Event], mode: Mode) -> Result<Self, Error> {
        let mask = account::mask(events)?;
        begin_events(mask)?;
        let lease = Lease::of([SWITCH.key()]).map_err(|why| Error::Asleep { why: why.to_string() });
        let counting = lease.and_then(|awake| {
            let mut state = State::lock()?;
            state.uses(context, mask, mode, |n| n + 1);
            if let Err(why) = state.apply() {
                state.uses(context, mask, mode, |n| n - 1);
                return Err(why);
            }
            Ok(Self { context, mask, mode, process: fork::number(), awake: Some(awake) })
        });
        if counting.is_err() {
            end_events(mask);
        }
        counting
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        if self.process != fork::number() {
            // Its parent's.
            return;
        }
        let done = State::lock().and_then(|mut state| {
            state.uses(self.context, self.mask, self.mode, |n| n - 1);
            state.apply()
        });
        if done.is_ok() {
            end_events(self.mask);
        } else {
            // Dropped by a signal handler over a change on this thread, or what is left is a set that is new to the
            // process and cannot be had: what it asked for goes on being counted.
            std::mem::forget(self.awake.take());
        }
    }
}

/// Tells the PMUs of these events that somebody counts them.
fn begin_events(mask: u64) -> Result<(), Error> {
    let mut begun = 0;
    for (account, event) in account::events(mask) {
        if let Err(why) = event.pmu().begin(&[event.number()]) {
            end_events(begun);
            return Err(why);
        }
        begun |= 1 << account;
    }
    Ok(())
}

/// Tells them that he does not any more.
fn end_events(mask: u64) {
    for (_, event) in account::events(mask) {
        event.pmu().end(&[event.number()]);
    }
}

/// The generation of what is counted now.
#[inline]
pub(crate) fn generation() -> u64 {
    // Pairs with the addition in `apply`: who sees the generation sees the layouts.
    GENERATION.load(Ordering::Acquire)
}

/// Whether anything is counted in `generation`.
#[inline]
pub(crate) fn is_awake_in(generation: u64) -> bool {
    !generation.is_multiple_of(2)
}

/// The next generation, in which anything is counted or not.
fn next_generation(counts: bool) -> u64 {
    // One writer: who has the lock, or the one thread of a fork child.
    let next = ((GENERATION.load(Ordering::Relaxed) | 1) + 1) | u64::from(counts);
    // Pairs with the load in `generation`.
    GENERATION.store(next, Ordering::Release);
    next
}

/// Makes a context known, so that what is counted everywhere is counted for it.
pub(crate) fn register(make: impl FnOnce(u32) -> Context) -> &'static Context {
    // A handler over a change: the context is never known to anybody, so it counts nothing.
    let Ok(mut state) = State::lock() else { return Box::leak(Box::new(make(stay::NUMBERS - 1))) };
    let context: &'static Context = Box::leak(Box::new(make(state.contexts.len() as u32 + 1)));
    let times = Box::new([Time::default(); MAX_EVENTS]);
    let mut entry = Entry { context, uses: Uses::NONE, mask: 0, ever: 0, times };
    // Nobody runs it yet, so there is nothing to settle.
    let mask = state.everywhere.mask();
    if let Ok(layout) = Layout::of(mask) {
        entry.set(mask, layout, Instant::now());
        context.set_exact(state.everywhere.exact > 0);
    }
    state.contexts.push(entry);
    context
}

/// What `look` gives of the events that `context` has ever counted, and for how long each was to be counted and was;
/// nothing changes meanwhile.
pub(crate) fn with_times<R>(
    context: &Context,
    look: impl FnOnce(u64, &dyn Fn(usize) -> (u64, u64)) -> R,
) -> R {
    let Ok(state) = State::lock() else { return look(0, &|_| (0, 0)) };
    let Some(entry) = state.contexts.get((context.id() - 1) as usize) else { return look(0, &|_| (0, 0)) };
    let now = Instant::now();
    look(entry.ever, &|account| {
        let enabled_ns = entry.times[account].until(now).as_nanos() as u64;
        let event = account::events(1 << account).next();
        let share = event.and_then(|(_, event)| event.pmu().share(event.number()));
        (enabled_ns, share.map_or(enabled_ns, |share| share.of(enabled_ns)))
    })
}

/// The state, and the lock over it.
struct Locked {
    state: std::sync::MutexGuard<'static, State>,
    // In this order: a fork that waits for the lock finds the state free.
    _lock: Guard<'static>,
}

impl std::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl State {
    fn lock() -> Result<Locked, Error> {
        static FORKS: Once = Once::new();
        FORKS.call_once(|| {
            // Has the handlers of keys installed, so that they are the older ones.
            let _ = dormouse_keys::site_count();
            // SAFETY: the handlers are plain functions of this object, which does not go: threads' blocks keep it.
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        });
        let lock = LOCK.lock().map_err(|_| Error::Reentrant)?;
        let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        if FORKED.swap(false, Ordering::Relaxed) {
            state.begin_in_child();
        }
        Ok(Locked { state, _lock: lock })
    }

    /// Drops what the parent's countings have asked for.
    fn begin_in_child(&mut self) {
        self.everywhere = Uses::NONE;
        let now = Instant::now();
        for entry in &mut self.contexts {
            entry.uses = Uses::NONE;
            entry.context.set_exact(false);
            entry.set(0, &NOTHING, now);
            entry.context.keep_reported(entry.ever);
        }
        next_generation(false);
    }

    fn uses(
        &mut self,
        context: Option<&'static Context>,
        mask: u64,
        mode: Mode,
        change: impl Fn(u32) -> u32,
    ) {
        let uses = match context {
            None => &mut self.everywhere,
            Some(context) => match self.contexts.get_mut((context.id() - 1) as usize) {
                Some(entry) => &mut entry.uses,
                None => return,
            },
        };
        for account in account::numbers(mask) {
            uses.events[account] = change(uses.events[account]);
        }
        if mode == Mode::TaskExact {
            uses.exact = change(uses.exact);
        }
    }

    /// Brings every context and every thread to what is wanted now.
    fn apply(&mut self) -> Result<(), Error> {
        let everywhere = self.everywhere;
        let wanted = |entry: &Entry| entry.uses.mask() | everywhere.mask();
        // Whatever can be refused comes first.
        let mut layouts = Vec::with_capacity(self.contexts.len());
        for entry in &self.contexts {
            layouts.push(Layout::of(wanted(entry))?);
        }
        Layout::of(everywhere.mask())?;
        let counts = everywhere.mask() != 0 || self.contexts.iter().any(|entry| entry.uses.mask() != 0);
        let now = Instant::now();
        let mut changed = counts != is_awake_in(generation());
        for (entry, &layout) in self.contexts.iter_mut().zip(&layouts) {
            let exact = everywhere.exact + entry.uses.exact > 0;
            changed |= entry.mask != layout.mask() || exact != entry.context.is_exact();
            entry.context.set_exact(exact);
            entry.set(layout.mask(), layout, now);
        }
        if changed {
            let generation = next_generation(counts);
            // The other side of [`crate::primitive::light_barrier`]. Where the kernel refuses, a thread that begins a switch
            // in the very nanoseconds of the change can be counted twice for its stay, or from its next switch on only.
            let _ = barrier::heavy();
            for (block, stay) in switch::all_stays() {
                settle(
                    stay,
                    generation,
                    |seen| {
                        if seen.is_empty() && !block.has_task() {
                            // It will find the generation changed before it has one.
                            return None;
                        }
                        let index = (seen.context.checked_sub(1)?) as usize;
                        let entry = self.contexts.get(index)?;
                        let mask = (layouts[index].mask() | seen.more) & !seen.less;
                        // No room for both: as in `Own::layout`.
                        let layout = Layout::of(mask).unwrap_or(layouts[index]);
                        let mut old = Readings::default();
                        let known = seen.part.layout.read_of(block, &mut old);
                        for (reading, from) in old.iter_mut().zip(&seen.part.readings) {
                            // The owner's clock may be a little ahead of the kernel's; it does not go back.
                            *reading = (*reading).max(*from);
                        }
                        let shared = layouts[index].mask();
                        let mut part = Part { layout, known, shared, readings: old, taken: None };
                        if !std::ptr::eq(layout, seen.part.layout) {
                            part.known = layout.read_of(block, &mut part.readings);
                            // What both count goes on from one reading.
                            part.take_over(seen.part.layout, &old, known);
                        }
                        let mut counts: Vec<_> = seen.part.until(&old, known).collect();
                        part.take(&seen.part, &counts);
                        counts.retain(|&(account, _)| seen.part.is_shared(account));
                        Some((part, entry.context, counts))
                    },
                    block.start(),
                );
            }
        }
        Ok(())
    }
}

type Settlement = (Part, &'static Context, Vec<(usize, u64)>);

/// Settles the stay of one thread, if it is of an older generation.
fn settle(stay: &Stay, generation: u64, part: impl Fn(&Seen) -> Option<Settlement>, start: u64) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        match stay.look() {
            Some(seen) => {
                if seen.context == 0 || seen.generation == generation {
                    return;
                }
                let Some((part, context, counts)) = part(&seen) else { return };
                if !stay.is_still(&seen) {
                    continue;
                }
                if stay.settle(&seen, &part) {
                    for (account, n) in counts {
                        context.charge(start, account, n);
                    }
                    return;
                }
            }
            None if Instant::now() > give_up => return,
            None => std::thread::yield_now(),
        }
    }
}

impl Uses {
    const NONE: Self = Self { events: [0; MAX_EVENTS], exact: 0 };

    fn mask(&self) -> u64 {
        let wanted = self.events.iter().enumerate().filter(|(_, n)| **n > 0);
        wanted.fold(0, |mask, (account, _)| mask | 1 << account)
    }
}

impl Entry {
    fn set(&mut self, mask: u64, layout: &'static Layout, now: Instant) {
        for account in account::numbers(mask & !self.mask) {
            self.times[account].since = Some(now);
        }
        for account in account::numbers(self.mask & !mask) {
            let time = &mut self.times[account];
            *time = Time { before: time.until(now), since: None };
        }
        self.mask = mask;
        self.ever |= mask;
        self.context.set_layout(layout);
    }
}

impl Time {
    fn until(self, now: Instant) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// In the order in which they are taken.
static LOCKS: [&Lock; 3] = [&LOCK, &layout::LOCK, &account::NUMBERING];

extern "C" fn before_fork() {
    for lock in LOCKS {
        lock.before_fork();
    }
}

extern "C" fn in_parent() {
    for lock in LOCKS.into_iter().rev() {
        lock.in_parent();
    }
}

extern "C" fn in_child() {
    for lock in LOCKS.into_iter().rev() {
        lock.in_child();
    }
    next_generation(false);
    // Held: forked by a handler over a change on this thread. Then what the others owed is lost.
    if let Ok(state) = STATE.try_lock() {
        switch::inherit(|context, entries, ns| {
            let index = context.checked_sub(1).map(|index| index as usize);
            if let Some(entry) = index.and_then(|index| state.contexts.get(index)) {
                entry.context.count_entries(0, entries);
                entry.context.charge(0, CLOCK, ns);
            }
        });
    }
    FORKED.store(true, Ordering::Relaxed);
}
