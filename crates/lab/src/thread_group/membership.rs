//! The members of a group: the state that all clones of a group share, and the calling thread's
//! memberships.
//!
//! There are two thread-locals, because a read must not touch a thread-local with a destructor. The
//! memberships are plain cells that a signal handler may read. Only joining and leaving touch the
//! list by which the thread leaves its groups when it ends.
//!
//! # Invariants
//!
//! 1. A slot whose `group` is not 0 is filled, and the record at its place in that group belongs to
//!    this thread.
//! 2. A thread leaves all its groups before it ends, even if its guards were leaked.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

use dormouse_clock::lab::asked_ns;
use dormouse_clock::stamp;
use dormouse_sys::process::identity;

use super::record::{Baseline, PLACES, Record, Records, Total};
use crate::error::Error;

/// Groups that a thread can be in at once.
pub(super) const MOST_GROUPS: usize = 4;

/// How readers bring the records of other members up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refresh {
    /// A reader refreshes the records if the last refresh is at least this old; with zero every
    /// read does.
    pub tolerance: Duration,
    /// The most members whose clocks one refresh reads from the kernel. It visits at most twice as
    /// many places of the table; the next refresh continues after them.
    pub most: usize,
    /// Whether the next record is fetched into the cache while the kernel reads the present one.
    pub prefetch: bool,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { tolerance: Duration::from_millis(1), most: 64, prefetch: true }
    }
}

/// The state that all clones of a group share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Never reused in a process, and not 0.
    pub(super) id: u64,
    pub(super) refresh: Refresh,
    pub(super) cpus: u64,
    pub(super) records: Records,
    pub(super) total: Total,
    /// The stamp of the last walk's beginning.
    pub(super) refreshed: AtomicU64,
    /// The tolerance as a difference between stamps.
    pub(super) tolerance: AtomicU64,
    /// The place where the next walk begins.
    pub(super) cursor: AtomicUsize,
}

impl Shared {
    fn take(&self) -> Result<Membership, Error> {
        let (place, record) = self.records.take().ok_or(Error::Full { places: PLACES })?;
        Ok(Membership::begin(place, record))
    }

    /// Gives the calling thread's place back, with a count that is settled by the kernel's clock.
    fn free(&self, membership: Membership) {
        let Some(record) = self.records.get(membership.place) else { return };
        record.begin_leaving();
        // The time since a fork is not known apart from the parent's, and it is little.
        let used = if membership.forks == identity::forks() { asked_ns() } else { 0 };
        let count = membership.baseline.count(used);
        self.total.add(membership.place, record.advance(count));
        record.settle(if used > 0 { count } else { record.counted() });
        record.release();
    }
}

/// The calling thread's part in a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Membership {
    pub(super) place: usize,
    pub(super) baseline: Baseline,
    /// [`identity::forks`] when the place was taken: a membership from before a fork is the
    /// parent's.
    forks: u32,
}

struct Slot {
    /// The group's number, 0: free.
    group: Cell<u64>,
    membership: Cell<Membership>,
    /// Guards that keep the thread in the group.
    joins: Cell<u32>,
}

/// The groups that the thread leaves when it ends.
struct Joined(RefCell<Vec<Arc<Shared>>>);

thread_local! {
    static SLOTS: [Slot; MOST_GROUPS] = const {
        const EMPTY: Membership = Membership { place: 0, baseline: Baseline { start: 0, base: 0 }, forks: 0 };
        [const { Slot { group: Cell::new(0), membership: Cell::new(EMPTY), joins: Cell::new(0) } }; MOST_GROUPS]
    };
    static JOINED: Joined = const { Joined(RefCell::new(Vec::new())) };
}

impl Membership {
    /// Makes the calling thread the member of a place that it has taken.
    pub(super) fn begin(place: usize, record: &Record) -> Self {
        let forks = identity::forks();
        let now = stamp();
        let baseline = record.hold(identity::tid(), forks, asked_ns(), now);
        Self { place, baseline, forks }
    }

    /// Whether it began in this process.
    #[inline]
    pub(super) fn is_own(&self) -> bool {
        self.forks == identity::forks()
    }
}

/// Runs `look` with the calling thread's slot for `group`, if it has one.
#[inline]
fn with_slot<R>(group: u64, look: impl FnOnce(&Slot) -> R) -> Option<R> {
    SLOTS.with(|slots| slots.iter().find(|slot| slot.group.get() == group).map(look))
}

/// The calling thread's membership in `group`.
#[inline]
pub(super) fn find(group: u64) -> Option<Membership> {
    with_slot(group, |slot| slot.membership.get())
}

/// Changes the calling thread's membership in `group`, if it has one.
pub(super) fn replace(group: u64, membership: Membership) {
    with_slot(group, |slot| slot.membership.set(membership));
}

/// Makes the calling thread a member: one more guard, or a new membership.
pub(super) fn join(shared: &Arc<Shared>) -> Result<(), Error> {
    if with_slot(shared.id, |slot| slot.joins.set(slot.joins.get() + 1)).is_some() {
        return Ok(());
    }
    let join = |slot: &Slot| {
        let filled = JOINED.try_with(|joined| {
            slot.membership.set(shared.take()?);
            slot.joins.set(1);
            // A signal handler that finds the number finds the rest.
            compiler_fence(Ordering::SeqCst);
            slot.group.set(shared.id);
            joined.0.borrow_mut().push(Arc::clone(shared));
            Ok(())
        });
        filled.unwrap_or(Err(Error::Ended))
    };
    with_slot(0, join).unwrap_or(Err(Error::TooManyGroups { groups: MOST_GROUPS }))
}

/// Drops one guard of the calling thread; with the last one the thread leaves the group.
pub(super) fn leave(shared: &Shared) {
    // None: the thread is ending, and has left already.
    let is_last = with_slot(shared.id, |slot| {
        slot.joins.set(slot.joins.get() - 1);
        slot.joins.get() == 0
    });
    if is_last == Some(true) {
        end(shared);
        let _ending = JOINED.try_with(|joined| joined.0.borrow_mut().retain(|other| other.id != shared.id));
    }
}

fn end(shared: &Shared) {
    with_slot(shared.id, |slot| {
        slot.group.set(0);
        // A signal handler that finds the number finds a membership.
        compiler_fence(Ordering::SeqCst);
        shared.free(slot.membership.get());
    });
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.get_mut().iter().for_each(|shared| end(shared));
    }
}
