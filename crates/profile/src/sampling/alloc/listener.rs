//! One sample of an allocation, on the thread that allocates, inside of the allocator.
//!
//! # Async-signal-safety
//!
//! A handler of the host's may allocate. So this takes no lock, allocates nothing, and leaves
//! `errno` as it was. It makes two system calls, which block signals so that no handler jumps out
//! of a half-written record; one for the thread's id, if the thread has no block; and those of
//! [`own_stack`] and, on a foreign stack, [`dormouse_unwind::walk`].
//!
//! # Safety
//!
//! The unsafe code writes a record.
#![allow(unsafe_code)]

use dormouse_sys::errno::keeping_errno;
use dormouse_sys::heap::{Allocation, Listener};
use dormouse_sys::own_stack;
use dormouse_sys::process::identity;
use dormouse_sys::signals;
use dormouse_sys::thread::{self, ThreadBlock};
use dormouse_unwind::claim;

use super::live;
use crate::sampling::queue::{self, Queue, QueueOf};

/// The rest of a record of an allocation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picked {
    pub(super) tid: u32,
    /// Its index in the table of live allocations, if it has one.
    pub(super) live: Option<u32>,
    pub(super) allocation: Allocation,
}

/// A record of an allocation.
pub(super) type Record = queue::Record<Picked>;

/// Where records go.
pub(super) static QUEUE: QueueOf<Picked> = QueueOf::new();

/// The process's listener.
pub(super) static LISTENER: Listener = Listener { allocated, freed: live::take_out };

fn allocated(allocation: &Allocation) {
    let Some(queue) = QUEUE.get() else { return };
    let block = thread::try_current();
    let tid = block.map_or_else(identity::tid, ThreadBlock::tid);
    if signals::is_ours(tid) {
        return;
    }
    let group = block.map_or(0, |block| block.own_current().group);
    let picked = Picked { tid, live: None, allocation: *allocation };
    keeping_errno(|| signals::blocked(|| record(queue, picked, group)));
}

fn record(queue: &Queue<Picked>, picked: Picked, group: u32) {
    let Allocation { place, from, .. } = picked.allocation;
    let live = live::enter(place);
    let own = own_stack::from(from.stack);
    let cache = claim(picked.tid);
    let write = |record: *mut Record| {
        // SAFETY: a place for a record, whose frames are numbers; the stack can be read from the
        // stack pointer on.
        unsafe {
            (*record).of_kind = Picked { live, ..picked };
            (*record).at_ns = 0;
            (*record).group = group;
            (*record).frames.walk(cache.as_deref(), from, &own);
        }
    };
    // SAFETY: writes all fields, and returns.
    if !unsafe { queue.push(write) } && live.is_some() {
        // The record of this allocation is lost, so its entry would never be removed.
        live::take_out(place);
    }
}
