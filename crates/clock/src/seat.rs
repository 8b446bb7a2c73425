//! Which groups the calling thread is in, and where: what a read needs to find its own record.
//!
//! Two thread-locals, because the reads may not meet a destructor: the seats are plain cells that a signal
//! handler may look at; the list that has the thread leave its groups when it ends is touched by joining and
//! leaving alone.
//!
//! # Invariants
//!
//! 1. A seat whose `group` is not 0 is filled, and the group's record there is this thread's.
//! 2. A thread gives all its seats back before it ends, whatever became of its guards.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use crate::error::Error;
use crate::group::Shared;
use crate::record::Terms;

/// Groups that a thread can be in at once.
pub(crate) const SEATS: usize = 4;

/// How often this process is the child of a fork: seats from before it are its parent's.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A thread's place in a group.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) place: usize,
    pub(crate) terms: Terms,
    /// [`forks`] when the place was taken.
    pub(crate) forks: u32,
}

struct Slot {
    /// The group's number, 0: free.
    group: Cell<u64>,
    seat: Cell<Seat>,
    /// Guards that hold it.
    joins: Cell<u32>,
}

/// Leaves what is in it when the thread ends.
struct Joined(RefCell<Vec<Arc<Shared>>>);

thread_local! {
    static SLOTS: [Slot; SEATS] = const {
        const EMPTY: Seat = Seat { place: 0, terms: Terms { start: 0, base: 0 }, forks: 0 };
        [const { Slot { group: Cell::new(0), seat: Cell::new(EMPTY), joins: Cell::new(0) } }; SEATS]
    };
    static JOINED: Joined = const { Joined(RefCell::new(Vec::new())) };
}

/// How many forks lie between this process and its first ancestor that had groups.
#[inline]
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// The calling thread's seat in `group`.
#[inline]
pub(crate) fn find(group: u64) -> Option<Seat> {
    SLOTS.with(|slots| slots.iter().find(|slot| slot.group.get() == group).map(|slot| slot.seat.get()))
}

/// Changes the calling thread's seat in `group`, if it has one.
pub(crate) fn replace(group: u64, seat: Seat) {
    SLOTS.with(|slots| {
        if let Some(slot) = slots.iter().find(|slot| slot.group.get() == group) {
            slot.seat.set(seat);
        }
    });
}

/// Joins the calling thread to a group: one more guard on its seat, or a seat at the place that `take` gives.
pub(crate) fn join(shared: &Arc<Shared>, take: impl FnOnce() -> Result<Seat, Error>) -> Result<(), Error> {
    let group = shared.id();
    SLOTS.with(|slots| {
        if let Some(slot) = slots.iter().find(|slot| slot.group.get() == group) {
            slot.joins.set(slot.joins.get() + 1);
            return Ok(());
        }
        let slot = slots.iter().find(|slot| slot.group.get() == 0);
        let slot = slot.ok_or(Error::TooManyGroups { groups: SEATS })?;
        dormouse_sys::thread::on_fork_child(forked);
        JOINED
            .try_with(|joined| {
                slot.seat.set(take()?);
                slot.joins.set(1);
                // A signal handler that finds the number finds the rest.
                compiler_fence(Ordering::SeqCst);
                slot.group.set(group);
                joined.0.borrow_mut().push(Arc::clone(shared));
                Ok(())
            })
            .unwrap_or(Err(Error::Ended))
    })
}

/// Drops one guard of `group`; the last one has `free` give the place back.
pub(crate) fn leave(group: u64, free: impl FnOnce(Seat)) {
    SLOTS.with(|slots| {
        // None: the thread is ending, and has left already.
        let Some(slot) = slots.iter().find(|slot| slot.group.get() == group) else { return };
        slot.joins.set(slot.joins.get() - 1);
        if slot.joins.get() > 0 {
            return;
        }
        slot.group.set(0);
        compiler_fence(Ordering::SeqCst);
        free(slot.seat.get());
        let _ending = JOINED.try_with(|joined| joined.0.borrow_mut().retain(|shared| shared.id() != group));
    });
}

impl Drop for Joined {
    fn drop(&mut self) {
        for shared in self.0.get_mut() {
            SLOTS.with(|slots| {
                if let Some(slot) = slots.iter().find(|slot| slot.group.get() == shared.id()) {
                    slot.group.set(0);
                    compiler_fence(Ordering::SeqCst);
                    shared.free(slot.seat.get());
                }
            });
        }
    }
}

fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
