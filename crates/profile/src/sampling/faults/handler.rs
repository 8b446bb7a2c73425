//! One sample of a page fault, in the handler of SIGTRAP.
//!
//! # Async-signal-safety
//!
//! It takes no lock, allocates nothing, and touches no thread-local but `errno`, which its caller
//! restores. Signals are blocked, so no handler of the host's jumps out of a half-written record.
//! Its system calls read the thread's id and the stack ([`dormouse_unwind::walk`]).
//!
//! # Safety
//!
//! The unsafe code writes a record.
#![allow(unsafe_code)]

use dormouse_sys::process::identity;
use dormouse_sys::thread::{self, ThreadBlock};
use dormouse_sys::trap::PerfTrap;
use dormouse_unwind::{CallFrame, claim, has_room};

use super::copies;
use crate::sampling::queue::{self, Queue, QueueOf};

/// The rest of a record of a fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) tid: u32,
    /// How many faults it stands for.
    pub(super) faults: u32,
    /// The number of the copy of its stack ([`super::copies`]); 0: there is none.
    pub(super) copy: u64,
}

/// A record of a fault.
pub(super) type Record = queue::Record<Fault>;

/// Where records go.
pub(super) static QUEUE: QueueOf<Fault> = QueueOf::new();

/// The watcher of this kind's traps. Their data ends with the number of faults.
pub(super) fn on_trap(trap: &PerfTrap) {
    if let Some(queue) = QUEUE.get() {
        record(queue, trap);
    }
}

fn record(queue: &Queue<Fault>, trap: &PerfTrap) {
    let tid = identity::tid();
    let group = thread::find(tid).map(ThreadBlock::own_current).unwrap_or_default().group;
    let from = CallFrame { instruction: trap.ip, frame: trap.frame, stack: trap.stack, link: trap.link };
    let cache = claim(tid);
    let write = |record: *mut Record| {
        // SAFETY: a place for a record, whose frames are numbers.
        unsafe {
            (*record).of_kind = Fault { tid, faults: trap.data as u32, copy: 0 };
            (*record).at_ns = 0;
            (*record).group = group;
            // A late signal comes at another place than its fault. Whether the stack is the
            // thread's own is unknown, because that would need a thread-local.
            let frames = &mut (*record).frames;
            if trap.is_late != 0 {
                frames.leave_out();
            } else if !has_room(trap.lowest) {
                frames.stay(from);
                (*record).of_kind.copy = copies::leave(from);
            } else {
                frames.walk(cache.as_deref(), from, &(0..0));
            }
        }
    };
    // SAFETY: writes all fields, and returns.
    unsafe { queue.push(write) };
}
