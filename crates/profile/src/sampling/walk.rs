//! The stack of the interrupted code, by the unwind tables of what has been learned so far
//! ([`dormouse_unwind::walk`]), and from the first function on of which nothing is known, by frame
//! pointers.
//!
//! # Async-signal-safety
//!
//! That of [`dormouse_unwind::walk`] and of [`own_stack::callers`].
//!
//! # Safety
//!
//! The unsafe code passes on what its caller promises.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_sys::own_stack::{self, WalkEnd};
use dormouse_unwind::{CallFrame, ThreadCache, Walk};

use super::registers::Registers;

/// The most frames of a stack: the interrupted function and 127 callers.
pub(super) const DEPTH: usize = 128;

/// How a walk went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walked {
    /// How many frames were filled in.
    pub(super) depth: usize,
    pub(super) end: WalkEnd,
    /// Whether tables have not led to that end: nothing had been learned about a function.
    pub(super) is_missed: bool,
}

/// Fills in the interrupted address, and for each caller an address inside of its call. `cache` is
/// the thread's.
///
/// # Safety
///
/// `own` is empty, or the calling thread can read it: from the stack pointer on, if that lies in
/// `own`, and in the red zone below, where the interrupted code may have written.
pub(super) unsafe fn walk(
    cache: Option<&ThreadCache>,
    from: Registers,
    own: &Range<usize>,
    into: &mut [usize; DEPTH],
) -> Walked {
    // SAFETY: the caller's promise.
    let Walk { depth, end, last } = unsafe { dormouse_unwind::walk(cache, from.into(), own, into) };
    let end = match end {
        dormouse_unwind::WalkStop::Outermost => WalkEnd::Last,
        dormouse_unwind::WalkStop::Unknown => WalkEnd::Lost,
        dormouse_unwind::WalkStop::Cut => WalkEnd::Cut,
        dormouse_unwind::WalkStop::NotLearned => {
            // The frame of a signal may lead to a lower address, which the thread need not be able
            // to read.
            let lowest = if own.contains(&from.stack) { from.stack } else { 0 };
            // SAFETY: the caller's promise; not below the stack pointer, if that lies in `own`.
            let (depth, end) =
                unsafe { own_stack::callers(last.frame, last.stack.max(lowest), own, into, depth) };
            return Walked { depth, end, is_missed: true };
        }
    };
    Walked { depth, end, is_missed: false }
}

/// Fills in the interrupted address alone.
pub(super) fn stay(from: Registers, into: &mut [usize; DEPTH]) -> Walked {
    into[0] = from.instruction;
    Walked { depth: 1, end: WalkEnd::Lost, is_missed: true }
}

impl From<Registers> for CallFrame {
    fn from(registers: Registers) -> Self {
        let Registers { instruction, frame, stack } = registers;
        Self { instruction, stack, frame }
    }
}
