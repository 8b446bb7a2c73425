//! What is counted for one group of tasks.
//!
//! # Invariants
//!
//! 1. A thread adds to the shard of its start number; shards only grow.
//! 2. A read is what was charged plus what running threads have not charged yet, and never smaller than an earlier
//!    read.
//! 3. A context lives as long as the process, so tasks may outlive whoever made it.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::account::{self, CLOCK, MAX_EVENTS};
use crate::control;
use crate::layout::{Layout, NOTHING, Readings};
use crate::pmu::Event;
use crate::stay::Seen;
use crate::switch;

const SHARDS: usize = 8;

/// Counts of one thread's hash class, on cache lines of their own (in twos, because lines are fetched in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    counts: [AtomicU64; MAX_EVENTS],
    entries: AtomicU64,
}

/// The counts of one group of tasks, and what is to be counted for it.
#[derive(Debug)]
pub struct Context {
    id: u32,
    /// What a task of it has to count; moved by [`control`] alone.
    layout: AtomicPtr<Layout>,
    /// Whether every task counts for itself, too.
    exact: AtomicBool,
    shards: [Shard; SHARDS],
    /// What was counted in contexts that were entered inside of this one.
    nested: [AtomicU64; MAX_EVENTS],
    /// The largest count that a read has given.
    reported: [AtomicU64; MAX_EVENTS],
    entries_reported: AtomicU64,
}

/// What was counted of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// What was counted.
    pub event: Event,
    /// How often, in the event's unit, outside of contexts that were entered inside of this one.
    pub value: u64,
    /// How often in contexts that were entered inside of this one, as of their last switch; of an event that nobody
    /// counts any more, what they have counted since then is left out.
    pub nested: u64,
    /// For how long somebody had the event counted for this context, in nanoseconds of wall time, whether any of its
    /// tasks ran or not.
    pub enabled_ns: u64,
    /// For how much of that it was counted: less where a PMU has fewer counters than it was asked for and takes turns, in the
    /// proportion that all threads of the process have seen together ([`Pmu::share`](crate::Pmu::share)). `value` is scaled
    /// up thread by thread, stretch by stretch.
    pub running_ns: u64,
}

impl Context {
    /// A new context. What is counted everywhere is counted for it, too.
    ///
    /// # Cost
    ///
    /// Some kilobytes that are never given back: make one for a kind of work, not for a piece of it.
    pub fn new() -> &'static Self {
        control::register(|id| Self {
            id,
            layout: AtomicPtr::new((&raw const NOTHING).cast_mut()),
            exact: AtomicBool::new(false),
            shards: [const {
                Shard { counts: [const { AtomicU64::new(0) }; MAX_EVENTS], entries: AtomicU64::new(0) }
            }; SHARDS],
            nested: [const { AtomicU64::new(0) }; MAX_EVENTS],
            reported: [const { AtomicU64::new(0) }; MAX_EVENTS],
            entries_reported: AtomicU64::new(0),
        })
    }

    /// Its number, from 1 in the order of creation; what a thread's block shows while one of its tasks is
    /// current.
    pub fn id(&self) -> u32 {
        self.id
    }

    #[inline]
    pub(crate) fn layout(&self) -> &'static Layout {
        Layout::behind(&self.layout)
    }

    pub(crate) fn set_layout(&self, layout: &'static Layout) {
        // Pairs with the load in `behind`.
        self.layout.store(std::ptr::from_ref(layout).cast_mut(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_exact(&self) -> bool {
        self.exact.load(Ordering::Relaxed)
    }

    pub(crate) fn set_exact(&self, exact: bool) {
        self.exact.store(exact, Ordering::Relaxed);
    }

    fn shard(&self, start: u64) -> &Shard {
        &self.shards[start as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn charge(&self, start: u64, account: usize, n: u64) {
        if n != 0 {
            // Pairs with the load in `charged`: who sees the charge sees that the stay has ended or was settled.
            self.shard(start).counts[account].fetch_add(n, Ordering::Release);
        }
    }

    #[cold]
    pub(crate) fn charge_nested(&self, account: usize, n: u64) {
        self.nested[account].fetch_add(n, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn count_entries(&self, start: u64, n: u64) {
        if n != 0 {
            self.shard(start).entries.fetch_add(n, Ordering::Release);
        }
    }

    /// How often one of its tasks came on while anything was counted.
    ///
    /// # Cost
    ///
    /// A look at every thread's block; no lock.
    pub fn entries(&self) -> u64 {
        let counted = || self.shards.iter().map(|s| s.entries.load(Ordering::Acquire)).sum();
        let entries = consistent(counted, || self.owed().map(|seen| seen.entries).sum());
        self.entries_reported.fetch_max(entries, Ordering::Relaxed).max(entries)
    }

    #[cfg(test)]
    pub(crate) fn forget_reported(&self) {
        for reported in &self.reported {
            reported.store(0, Ordering::Relaxed);
        }
    }

    /// In a fork child: what reads have included of what the parent's threads had not charged stays counted.
    pub(crate) fn keep_reported(&self, mask: u64) {
        for account in account::numbers(mask) {
            let here = self.charged(account) + self.pending(account);
            self.charge(0, account, self.reported[account].load(Ordering::Relaxed).saturating_sub(here));
        }
    }

    fn charged(&self, account: usize) -> u64 {
        // Pairs with the addition in `charge`.
        self.shards.iter().map(|s| s.counts[account].load(Ordering::Acquire)).sum()
    }

    /// What was counted of every event that was ever counted for this context, in the order in which the process came to
    /// count them. What threads spend on its tasks at this moment is included as far as their PMU can be read from
    /// outside.
    ///
    /// # Cost
    ///
    /// A lock that changes of what is counted take; a look at every thread's block, and for each thread that runs one of the
    /// context's tasks now what it costs to read its counters from outside (a system call for task-clock).
    ///
    /// # Async-signal-safety
    ///
    /// Not for handlers. One that has interrupted a read or a change of what is counted is told nothing.
    pub fn read(&self) -> Vec<Count> {
        control::with_times(self, |mask, times| {
            account::events(mask)
                .map(|(account, event)| {
                    let (enabled_ns, running_ns) = times(account);
                    let nested = self.nested[account].load(Ordering::Relaxed);
                    Count { event, value: self.value(account), nested, enabled_ns, running_ns }
                })
                .collect()
        })
    }

    /// CPU time of its tasks while task-clock was counted, in nanoseconds, without that of contexts entered inside of
    /// them; what threads spend on them at this moment is included. 0 if it was never counted.
    ///
    /// # Cost
    ///
    /// As of [`Context::read`].
    ///
    /// # Async-signal-safety
    ///
    /// As of [`Context::read`], where nothing is 0.
    pub fn cpu_ns(&self) -> u64 {
        control::with_times(self, |_, _| self.value(CLOCK))
    }

    /// What threads keep for this context.
    fn owed(&self) -> impl Iterator<Item = Seen> {
        let id = self.id;
        switch::stays().map(|(_, _, seen)| seen).filter(move |seen| seen.owed_to == id)
    }

    /// The lock of [`control`] is held, so that no stay is settled meanwhile.
    fn value(&self, account: usize) -> u64 {
        let value = consistent(|| self.charged(account), || self.pending(account));
        self.reported[account].fetch_max(value, Ordering::Relaxed).max(value)
    }

    /// What running threads have not charged yet.
    fn pending(&self, account: usize) -> u64 {
        switch::stays()
            .map(|(block, stay, seen)| {
                let owed = if seen.owed_to == self.id && account == CLOCK { seen.owed } else { 0 };
                let counts = seen.part.layout.mask() & 1 << account != 0 && seen.part.is_shared(account);
                if seen.context != self.id || !counts {
                    return owed;
                }
                let mut readings = Readings::default();
                let known = seen.part.layout.read_of(block, &mut readings);
                let pending = seen.part.until(&readings, known).find(|&(at, _)| at == account);
                // A thread that has gone on has charged it, or keeps it: `consistent` looks again or sees it next time.
                owed + pending.filter(|_| stay.is_still(&seen)).map_or(0, |(_, n)| n)
            })
            .sum()
    }
}

/// What is charged, and what is not yet. What is pending is looked at after what is charged, so nothing is counted twice;
/// what a thread charges in between is missed, and then we look again. When they never hold still, the most that was
/// seen is behind by what was charged in the shortest of these moments.
fn consistent(charged: impl Fn() -> u64, pending: impl Fn() -> u64) -> u64 {
    let (mut most, mut sum) = (0, charged());
    for _ in 0..8 {
        most = most.max(sum + pending());
        let again = charged();
        if again == sum {
            break;
        }
        sum = again;
    }
    most
}
