//! The events that all countings want, the sets that contexts get for them, and for how long each
//! event was counted.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::process::fork::{Mutex, MutexGuard, Phase};

use crate::error::Error;
use crate::event_set::{CLOCK, EMPTY, EventSet, events, indices};
use crate::generation::Generation;
use crate::ledger::{self, Context, NEAR};
use crate::pmu::{Event, Times};
use crate::thread;

/// The process is a fork child that has not dropped its parent's countings yet.
static FORKED: AtomicBool = AtomicBool::new(false);

static WANTED: Mutex<Wanted> = Mutex::with_child(
    Phase::Countings,
    Wanted {
        requests: Vec::new(),
        is_suspended: false,
        contexts: Vec::new(),
        applied: Events { mask: 0, exact: false },
    },
    |_| charge_others(),
);

pub(super) struct Wanted {
    /// One for each counting.
    requests: Vec<Request>,
    /// Nothing is counted for any of them.
    pub(super) is_suspended: bool,
    /// By number less one; `None` where the table showed no context yet.
    contexts: Vec<Option<Entry>>,
    /// The events of everywhere that contexts were given last.
    applied: Events,
}

/// The request of one counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// The number of the context, 0 for everywhere.
    pub(super) context: u32,
    pub(super) events: Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Events {
    /// By index.
    pub(super) mask: u64,
    /// Whether every task counts for itself, too.
    pub(super) exact: bool,
}

struct Entry {
    context: &'static Context,
    /// The events that it counts.
    mask: u64,
    /// For each event that it has ever counted, by index, in no order.
    times: Vec<(usize, Time)>,
}

/// For how long an event is counted, in nanoseconds of [`now_ns`].
#[derive(Debug, Clone, Copy, Default)]
struct Time {
    before: u64,
    since: Option<NonZeroU64>,
}

/// For how long an event of a context was to be counted, and was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventTime {
    pub(crate) index: usize,
    pub(crate) event: Event,
    pub(crate) enabled_ns: u64,
    pub(crate) running_ns: u64,
}

/// For each of `contexts`, the times of every event that it has ever counted.
pub(crate) fn times(contexts: &[&Context]) -> Vec<Vec<EventTime>> {
    let Ok(mut wanted) = Wanted::lock() else { return Vec::new() };
    wanted.catch_up();
    let now = monotonic_ns();
    let times: Vec<Vec<(usize, Time)>> = contexts
        .iter()
        .map(|context| wanted.entry(context.id()).map_or(Vec::new(), |entry| entry.times.clone()))
        .collect();
    drop(wanted);
    let ever = times.iter().flatten().fold(0, |mask, (index, _)| mask | 1 << index);
    // The PMU's share of an event is the same for all contexts.
    let events: Vec<_> =
        events(ever).map(|(index, event)| (index, event, event.pmu().share(event.number()))).collect();
    let of = |times: Vec<(usize, Time)>| {
        let of_event = |&(index, event, share): &(usize, Event, Option<Times>)| {
            let (_, time) = times.iter().find(|(there, _)| *there == index)?;
            let enabled_ns = time.until(now);
            let running_ns = share.map_or(enabled_ns, |share| share.of(enabled_ns));
            Some(EventTime { index, event, enabled_ns, running_ns })
        };
        events.iter().filter_map(of_event).collect()
    };
    times.into_iter().map(of).collect()
}

impl Wanted {
    pub(super) fn lock() -> Result<MutexGuard<Self>, Error> {
        let mut wanted = WANTED.lock().map_err(|_| Error::Reentrant)?;
        if FORKED.swap(false, Ordering::Relaxed) {
            wanted.begin_in_child();
        }
        Ok(wanted)
    }

    fn entry(&self, id: u32) -> Option<&Entry> {
        self.contexts.get((id as usize).checked_sub(1)?)?.as_ref()
    }

    /// Makes entries for contexts that have come since.
    fn catch_up(&mut self) {
        let mask = self.applied.mask;
        self.contexts.resize_with(ledger::count().max(self.contexts.len()), || None);
        for (index, place) in self.contexts.iter_mut().enumerate().filter(|(_, place)| place.is_none()) {
            if let Some(context) = ledger::context(index as u32 + 1) {
                let entry = place.insert(Entry { context, mask: 0, times: Vec::new() });
                entry.note(mask, context.born_ns());
            }
        }
    }

    /// Drops the requests of the parent's countings.
    fn begin_in_child(&mut self) {
        self.catch_up();
        self.requests.clear();
        self.applied = Events::default();
        ledger::set_everywhere(&EMPTY, false, false);
        self.catch_up();
        // That of the thread that has forked, which need not be this one; the fork has charged the
        // others'.
        let (now, pending) = (monotonic_ns(), thread::all_pending());
        for entry in self.contexts.iter_mut().flatten() {
            entry.context.set_exact(false);
            entry.note(0, now);
            entry.context.set_events(&EMPTY);
            for &(index, _) in &entry.times {
                let its = pending.iter().filter(|of| index == CLOCK && of.context == entry.context.id());
                entry.context.charge_reported(index, its.map(|of| of.ns).sum());
            }
        }
        Generation::advance(false);
    }

    pub(super) fn add(&mut self, request: Request) {
        self.requests.push(request);
    }

    pub(super) fn remove(&mut self, request: Request) {
        // None: a signal handler over this change has forked, and this is the child, which has
        // dropped all requests.
        let place = self.requests.iter().position(|&there| there == request);
        place.map(|place| self.requests.swap_remove(place));
    }

    /// Gives every context the set of the events that are wanted for it now; the new generation, if
    /// anything has changed.
    pub(super) fn apply(&mut self) -> Result<Option<Generation>, Error> {
        let mut wanted: BTreeMap<u32, Events> = BTreeMap::new();
        let requests = if self.is_suspended { &[][..] } else { &self.requests };
        for Request { context, events } in requests {
            let all = wanted.entry(*context).or_default();
            *all = Events { mask: all.mask | events.mask, exact: all.exact | events.exact };
        }
        let everywhere = wanted.remove(&0).unwrap_or_default();
        // The steps that can be refused come first.
        let set = EventSet::of(everywhere.mask)?;
        let mut sets = BTreeMap::new();
        for (context, events) in wanted {
            let exact = events.exact | everywhere.exact;
            sets.insert(context, (EventSet::of(events.mask | everywhere.mask)?, exact));
        }
        let all = || sets.values().map(|(set, _)| *set).chain([set]);
        let counts = all().any(|set| !set.is_empty());
        let extends = all().any(|set| set.mask() >> NEAR != 0);
        let mut changed = counts != Generation::current().counts() || self.applied != everywhere;
        ledger::set_everywhere(set, everywhere.exact, extends);
        self.applied = everywhere;
        self.catch_up();
        let now = monotonic_ns();
        if extends {
            // All of them first: a task of one may charge an event past NEAR to the one around it.
            self.contexts.iter().flatten().for_each(|entry| entry.context.extend());
        }
        for entry in self.contexts.iter_mut().flatten() {
            let (set, exact) = *sets.get(&entry.context.id()).unwrap_or(&(set, everywhere.exact));
            changed |= entry.mask != set.mask() || exact != entry.context.is_exact();
            entry.context.set_exact(exact);
            entry.note(set.mask(), now);
            entry.context.set_events(set);
        }
        Ok(changed.then(|| Generation::advance(counts)))
    }
}

impl Entry {
    /// The events of `mask` are counted from `now` on, and no others.
    fn note(&mut self, mask: u64, now: u64) {
        for index in indices(mask & !self.mask) {
            let since = NonZeroU64::new(now);
            match self.times.iter_mut().find(|(there, _)| *there == index) {
                Some((_, time)) => time.since = since,
                None => self.times.push((index, Time { before: 0, since })),
            }
        }
        for (_, time) in self.times.iter_mut().filter(|(index, _)| self.mask & !mask & 1 << index != 0) {
            *time = Time { before: time.until(now), since: None };
        }
        self.mask = mask;
    }
}

impl Time {
    fn until(self, now: u64) -> u64 {
        // Saturating: the clock of a context that came into being meanwhile was read after `now`.
        self.before + self.since.map_or(0, |since| now.saturating_sub(since.get()))
    }
}

/// In a fork child, where the fork has the lock: charges what other threads of the parent had
/// pending.
fn charge_others() {
    thread::charge_others(|pending| {
        if let Some(context) = ledger::context(pending.context) {
            context.charge_pending(0, pending);
        }
    });
}

/// In a fork child nothing is counted until the child starts a counting.
pub(super) fn after_fork() {
    Generation::advance(false);
    FORKED.store(true, Ordering::Relaxed);
}
