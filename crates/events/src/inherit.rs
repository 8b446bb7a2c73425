//! A parent's counters, and the clones of them that its tasks have.
//!
//! A clone remembers its parent by a counted reference, the generation that the parent had, and which
//! counters are enabled. So it can be told without looking at a counter whether two clones count the
//! same for the same parent: then it does not matter which of them counts for which task, and a switch
//! exchanges them (origin: Linux 564c2b210add, "`perf_counter`: Optimize context switch between identical
//! inherited contexts").
//!
//! # Invariants
//!
//! 1. As long as a clone lives, no other parent has its parent's address: the reference is counted.
//! 2. Clones of one parent with one generation have one layout.
//! 3. A clone whose own counters were changed has a generation that no other clone has.
//! 4. `base` holds what the counters of thread `on` showed when what `counts` lacks began; nobody reads it
//!    while `on` is [`NOWHERE`].

use std::sync::{Arc, PoisonError};

use crate::error::Error;
use crate::layout::{Layout, Place, Readings};
use crate::ledger::{Count, Counts, Ledger};
use crate::pmu::Event;
use crate::primitive::Mutex;
use crate::swap::{NOWHERE, stray, this_thread};

/// A set of counters that tasks inherit, and the place where their counts add up.
///
/// The parent may go before its clones: they count on, and whoever holds the [`Ledger`] reads it.
#[derive(Debug)]
pub struct Parent(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    ledger: Arc<Ledger>,
    current: Mutex<Version>,
}

/// What the next clone gets.
#[derive(Debug)]
struct Version {
    generation: u64,
    layout: Arc<Layout>,
}

impl Parent {
    /// A parent of these counters.
    pub fn new(events: &[Event]) -> Result<Self, Error> {
        let version = Version { generation: 0, layout: Arc::new(Layout::default()) };
        let parent = Self(Arc::new(Shared { ledger: Arc::default(), current: Mutex::new(version) }));
        for &event in events {
            parent.add(event)?;
        }
        Ok(parent)
    }

    /// One counter more, for clones from now on. Those that there are keep theirs, and are no longer
    /// equivalent to new ones.
    pub fn add(&self, event: Event) -> Result<(), Error> {
        self.change(|layout, ledger| {
            // Tried without an account first: a refusal must leave none behind.
            layout.with(Place { event, account: None })?;
            layout.with(Place { event, account: Some(ledger.add_account(event)) })
        })
    }

    /// One counter less, for clones from now on. The ledger shows its count no longer.
    pub fn remove(&self, event: Event) -> Result<(), Error> {
        self.change(|layout, ledger| {
            let less = layout.without(event)?;
            let place = layout.place_of(event).and_then(|place| layout.places()[place].account);
            if let Some(account) = place {
                ledger.close_account(account);
            }
            Ok(less)
        })
    }

    fn change(&self, to: impl FnOnce(&Layout, &Ledger) -> Result<Layout, Error>) -> Result<(), Error> {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.layout = Arc::new(to(&current.layout, &self.0.ledger)?);
        current.generation += 1;
        Ok(())
    }

    /// A context for a new task.
    ///
    /// # Cost
    ///
    /// Two allocations and two locks that the parent's tasks share; its end takes one of them.
    pub fn context(&self) -> TaskContext {
        TaskContext(Some(Inherited::of(&self.0)))
    }

    /// Where the counts add up.
    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.0.ledger)
    }
}

/// The counters of one task: a clone of a [`Parent`], or none.
///
/// It is the task's, not a thread's: a task that is switched out on one thread may be switched in on another.
/// Dropping it ends it; on the thread that it counts on, nothing of its count is lost.
#[derive(Debug, Default)]
pub struct TaskContext(pub(crate) Option<Box<Inherited>>);

/// What a task has of its parent.
#[derive(Debug)]
pub(crate) struct Inherited {
    parent: Arc<Shared>,
    generation: u64,
    /// The enabled set: all or none, because nothing can switch a single counter of a clone.
    enabled: bool,
    pinned: bool,
    /// The thread whose counters it follows now, or [`NOWHERE`].
    on: u64,
    /// Its key in the parent's ledger.
    key: usize,
    pub(crate) layout: Arc<Layout>,
    counts: Arc<Counts>,
    base: Readings,
}

/// The generation of clones whose own counters were changed: equivalent to none, not even to each other.
const CHANGED: u64 = u64::MAX;

impl TaskContext {
    /// The context of a task that counts nothing.
    pub const fn none() -> Self {
        Self(None)
    }

    /// A context for a task that this one starts, from the same parent and with the parent's counters of
    /// today. (As in the origin, a clone of a clone is a clone of the parent. Counters that this task has added
    /// for itself are not inherited; a task that has all disabled has children that have, too.)
    #[must_use]
    pub fn inherit(&self) -> Self {
        let child = self.0.as_deref().map(|own| {
            let mut child = Inherited::of(&own.parent);
            child.enabled = own.enabled;
            child
        });
        Self(child)
    }

    /// One counter more for this task alone: from now on its context is equivalent to no other.
    pub fn add(&mut self, event: Event) -> Result<(), Error> {
        self.change(|layout| layout.with(Place { event, account: None }))
    }

    /// One counter less for this task alone: from now on its context is equivalent to no other. What it has
    /// counted of its parent's stays with the parent.
    pub fn remove(&mut self, event: Event) -> Result<(), Error> {
        self.change(|layout| layout.without(event))
    }

    fn change(&mut self, to: impl FnOnce(&Layout) -> Result<Layout, Error>) -> Result<(), Error> {
        let Some(own) = self.0.as_deref_mut() else { return Ok(()) };
        let layout = Arc::new(to(&own.layout)?);
        let was_on = own.pause();
        own.counts = own.parent.ledger.change(own.key, Arc::clone(&layout));
        own.layout = layout;
        own.generation = CHANGED;
        own.resume(was_on);
        Ok(())
    }

    /// Stops all counters of this task. Nothing else changes: with all enabled again, the context is
    /// equivalent to what it was equivalent to.
    pub fn disable_all(&mut self) {
        self.enable(false);
    }

    /// Starts all counters of this task.
    pub fn enable_all(&mut self) {
        self.enable(true);
    }

    fn enable(&mut self, enabled: bool) {
        let Some(own) = self.0.as_deref_mut() else { return };
        let was_on = own.pause();
        own.enabled = enabled;
        own.resume(was_on);
    }

    /// Keeps this context with its task, so that its own counts are the task's and nobody else's: every
    /// switch from or to it reads. Does not separate what an earlier exchange has brought together.
    pub fn pin(&mut self) {
        if let Some(own) = self.0.as_deref_mut() {
            own.pinned = true;
        }
    }

    /// Undoes [`TaskContext::pin`].
    pub fn unpin(&mut self) {
        if let Some(own) = self.0.as_deref_mut() {
            own.pinned = false;
        }
    }

    /// Makes what the running task has counted until now visible to readers.
    ///
    /// # Cost
    ///
    /// One read of every counter.
    pub fn publish(&mut self) {
        if let Some(own) = self.0.as_deref_mut() {
            let was_on = own.pause();
            own.resume(was_on);
        }
    }

    /// What this context has counted. Its task's own share only if it was pinned from the beginning or
    /// switched with [`switch_eager`](crate::switch_eager): an exchange passes counts on.
    pub fn counts(&self) -> Vec<Count> {
        let own = self.0.as_deref();
        own.into_iter()
            .flat_map(|own| {
                own.layout.places().iter().enumerate().map(move |(place, at)| (own, place, at.event))
            })
            .map(|(own, place, event)| Count { event, value: own.counts.value(place) })
            .collect()
    }

    /// Whether the two could be exchanged without anybody's noticing: same parent, same generation, same
    /// enabled counters, neither pinned. A context without counters is equivalent to none.
    pub fn is_equivalent(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) => a.is_equivalent(b),
            _ => false,
        }
    }
}

impl Inherited {
    fn of(parent: &Arc<Shared>) -> Box<Self> {
        let current = parent.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (generation, layout) = (current.generation, Arc::clone(&current.layout));
        drop(current);
        let counts = Arc::new(Counts::default());
        Box::new(Self {
            parent: Arc::clone(parent),
            generation,
            enabled: true,
            pinned: false,
            on: NOWHERE,
            key: parent.ledger.begin(Arc::clone(&layout), Arc::clone(&counts)),
            layout,
            counts,
            base: Readings::default(),
        })
    }

    #[inline]
    pub(crate) fn is_equivalent(&self, other: &Self) -> bool {
        // The cheapest way to say no comes first; in a yes all are looked at.
        Arc::ptr_eq(&self.parent, &other.parent)
            && self.generation == other.generation
            && self.generation != CHANGED
            && self.enabled == other.enabled
            && !(self.pinned | other.pinned)
    }

    #[inline]
    pub(crate) fn on(&self) -> u64 {
        self.on
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Begins to follow the counters of thread `here`, which show `readings`.
    pub(crate) fn begin(&mut self, here: u64, readings: &Readings) {
        debug_assert_eq!(self.on, NOWHERE, "ended before it begins again");
        self.on = here;
        self.base = *readings;
    }

    /// Counts what has happened since it began; true if `readings` hold what the counters show now.
    ///
    /// A context that followed another thread's counters cannot be brought up to date from here: what it lacks
    /// is lost, and the loss counted.
    pub(crate) fn end(&mut self, here: u64, readings: &mut Readings) -> bool {
        let on = std::mem::replace(&mut self.on, NOWHERE);
        if on != here {
            if on != NOWHERE {
                stray();
            }
            return false;
        }
        if !self.enabled {
            return false;
        }
        self.layout.read(readings);
        let places = self.layout.places().len();
        for (place, (now, base)) in readings.iter().zip(&self.base).take(places).enumerate() {
            // Saturating: in a fork child all counters of its thread begin again.
            self.counts.add(place, now.saturating_sub(*base));
        }
        true
    }

    /// Stands still; says for [`Inherited::resume`] where it was counting.
    fn pause(&mut self) -> u64 {
        let (on, here) = (self.on, this_thread());
        self.end(here, &mut Readings::default());
        if on == here { here } else { NOWHERE }
    }

    fn resume(&mut self, was_on: u64) {
        if was_on == NOWHERE {
            return;
        }
        let mut readings = Readings::default();
        if self.enabled {
            self.layout.read(&mut readings);
        }
        self.begin(was_on, &readings);
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.pause();
        self.parent.ledger.end(self.key);
    }
}
