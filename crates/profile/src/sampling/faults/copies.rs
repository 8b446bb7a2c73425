//! Copies of stacks of faults, from handlers that had no room for a walk
//! ([`dormouse_unwind::has_room`]): the sampler finds the callers in them.
//!
//! # Async-signal-safety
//!
//! [`leave`]: system calls that copy memory.
//!
//! # Safety
//!
//! The unsafe code writes a record.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_unwind::{CallFrame, MAY_LACK_ROOM};

use crate::sampling::copy::StackCopy;
use crate::sampling::queue::{self, Queue, QueueOf};
use crate::sampling::walk::Frames;

/// Copies that wait for the sampler, each of 37 KiB.
const COPIES: usize = 64;

/// A copy, and the number by which the record of the fault names it.
#[derive(Debug, Clone, Copy)]
struct CopiedFault {
    number: u64,
    stack: StackCopy,
}

static QUEUE: QueueOf<CopiedFault> = QueueOf::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Copies the stack of a fault: the number of the copy, or 0 if there is no room for one.
pub(super) fn leave(from: CallFrame) -> u64 {
    let Some(queue) = QUEUE.get() else { return 0 };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let write = |record: *mut queue::Record<CopiedFault>| {
        // SAFETY: a place for a record, in which every byte is a number. Of the stack's bounds
        // nothing is known.
        unsafe {
            (*record).of_kind.number = number;
            StackCopy::fill(&raw mut (*record).of_kind.stack, from, &(0..0));
        }
    };
    // SAFETY: writes all fields that are read, and returns.
    if unsafe { queue.push(write) } { number } else { 0 }
}

/// The copies, as the sampler reads them.
#[derive(Debug)]
pub(super) struct Copies {
    queue: &'static Queue<CopiedFault>,
    /// The functions in those that were read before the records of their faults.
    waiting: Vec<(u64, Frames)>,
    /// Room for the functions in one copy.
    room: Vec<u64>,
}

impl Copies {
    /// `None` where handlers have room, and if there is no memory.
    pub(super) fn begin() -> Option<Self> {
        let queue = MAY_LACK_ROOM.then(|| QUEUE.begin(COPIES).ok()).flatten()?;
        Some(Self { queue, waiting: Vec::new(), room: Vec::new() })
    }

    /// The functions in the copy with this number.
    pub(super) fn take(&mut self, number: u64) -> Option<Frames> {
        let Self { queue, waiting, room } = self;
        if let Some(at) = waiting.iter().position(|(of, _)| *of == number) {
            return Some(waiting.swap_remove(at).1);
        }
        // One whose record was dropped is never asked for.
        if waiting.len() as u64 >= queue.capacity() {
            waiting.clear();
        }
        loop {
            let next = |record: &mut queue::Record<CopiedFault>| {
                (record.of_kind.number, record.of_kind.stack.functions(room))
            };
            let (of, functions) = queue.pop(next)?;
            if of == number {
                return Some(functions);
            }
            if waiting.try_reserve(1).is_ok() {
                waiting.push((of, functions));
            }
        }
    }
}
