//! The stack of the interrupted code, by frame pointers.
//!
//! # Async-signal-safety
//!
//! That of [`own_stack::callers`].
//!
//! # Safety
//!
//! The unsafe code reads words of the calling thread's own stack.
#![allow(unsafe_code)]

use std::ops::Range;

use dormouse_sys::own_stack::{self, WalkEnd};

use super::registers::Registers;

/// The most frames of a stack: the interrupted function and 127 callers.
pub(super) const DEPTH: usize = 128;

/// Fills in the interrupted address, and for each caller one less than the return address: how
/// many, and how the walk ended.
///
/// # Safety
///
/// `own` is empty, or can be read by the calling thread from the stack pointer on, if that lies in
/// it.
pub(super) unsafe fn walk(
    from: Registers,
    own: &Range<usize>,
    into: &mut [usize; DEPTH],
) -> (usize, WalkEnd) {
    into[0] = from.instruction;
    // SAFETY: the caller's promise.
    unsafe { own_stack::callers(from.frame, from.stack, own, into, 1) }
}
