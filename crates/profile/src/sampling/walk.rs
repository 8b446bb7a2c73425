//! The stack of the interrupted code: through libraries by their unwind tables, then by frame
//! pointers.
//!
//! The C library and the kernel's vDSO keep no frame pointers. If they use the register for
//! something else (glibc's `send` keeps the type of cancellation in it), it leads nowhere. If they
//! do not, it leads past the function that called them. So while the code belongs to a library with
//! a table ([`dormouse_unwind::libraries`]), the table gives the caller.
//!
//! # Async-signal-safety
//!
//! No allocation, lock or thread-local. System calls only outside of the bounds, for two words at
//! each step, and those of [`own_stack::callers`].
//!
//! # Safety
//!
//! The unsafe code reads words of the calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_sys::own_stack::{self, WalkEnd};
use dormouse_sys::peek;
use dormouse_unwind::{CallFrame, CallerStep, RED_ZONE};

use super::registers::Registers;

/// The most frames of a stack: the interrupted function and 127 callers.
pub(super) const DEPTH: usize = 128;

const WORD: usize = size_of::<usize>();

/// How a walk went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walked {
    /// How many frames were filled in.
    pub(super) depth: usize,
    pub(super) end: WalkEnd,
    /// Whether the code belongs to a library, and the function that called that is not known.
    pub(super) lacks_caller: bool,
}

/// Fills in the interrupted address, and for each caller one less than the return address.
///
/// # Safety
///
/// `own` is empty, or the calling thread can read it: from the stack pointer on, if that lies in
/// `own`, and in the red zone below, where the interrupted code may have written.
pub(super) unsafe fn walk(from: Registers, own: &Range<usize>, into: &mut [usize; DEPTH]) -> Walked {
    let libraries = dormouse_unwind::libraries();
    let is_own = own.contains(&from.stack);
    let lowest = from.stack.saturating_sub(RED_ZONE).max(own.start);
    let word = |at: usize| {
        if !is_own {
            return peek::value(at, WORD).map(|word| word as usize);
        }
        let is_there = at >= lowest && at <= own.end - WORD && at.is_multiple_of(WORD);
        // SAFETY: the address lies in the thread's own stack, as the caller guarantees: not below
        // the stack pointer, or where the interrupted code has written according to the table.
        // Volatile: other code of the thread wrote it.
        is_there.then(|| unsafe { std::ptr::with_exposed_provenance::<usize>(at).read_volatile() })
    };
    let Registers { instruction, frame, stack } = from;
    let mut at = CallFrame { instruction, stack, frame };
    let (mut depth, mut lacks_caller) = (0, false);
    while depth < DEPTH {
        into[depth] = at.instruction;
        depth += 1;
        let Some(libraries) = libraries.filter(|it| it.contains(at.instruction)) else { break };
        match libraries.caller(at, word) {
            CallerStep::Found(caller) if !is_own || own.contains(&caller.stack) => at = caller,
            CallerStep::Outermost => return Walked { depth, end: WalkEnd::Last, lacks_caller },
            _ => {
                lacks_caller = true;
                break;
            }
        }
    }
    // SAFETY: the caller's promise; the stack pointer has only gone up.
    let (depth, end) = unsafe { own_stack::callers(at.frame, at.stack, own, into, depth) };
    Walked { depth, end, lacks_caller }
}

/// Fills in the interrupted address alone.
pub(super) fn stay(from: Registers, into: &mut [usize; DEPTH]) -> Walked {
    into[0] = from.instruction;
    let lacks_caller = dormouse_unwind::libraries().is_some_and(|it| it.contains(from.instruction));
    Walked { depth: 1, end: WalkEnd::Lost, lacks_caller }
}
