//! All other processors, and checkers that run no machine code: what needs an instruction is not
//! there.
//!
//! # Safety
//!
//! The one unsafe function does nothing.

use crate::stack::CallFrame;

/// This processor's code is not here.
pub(crate) const IS_KNOWN: bool = false;

/// No restartable sequences.
pub(crate) const RSEQ_SIGNATURE: u32 = 0;

/// No register of the performance unit can be read.
pub(crate) const READS_COUNTERS: bool = false;

/// No registers with samples.
pub(crate) const UNWIND_REGISTERS: u64 = 0;

/// No registers with samples.
pub(crate) const REGISTER_PLACES: &[usize] = &[];

/// 0: the thread control block cannot be found.
pub(crate) fn thread_pointer() -> u64 {
    0
}

/// Zeros: a walk from there finds nothing.
pub(crate) fn registers() -> CallFrame {
    CallFrame { instruction: 0, stack: 0, frame: 0 }
}

/// Nothing is read. No code is patched here, so nobody has to know whether it could be.
pub(crate) fn refused_mask(_: usize) -> isize {
    0
}

/// There is no such hint.
pub(crate) fn prefetch(_: *const u8) {}

/// There is no such hint.
pub(crate) fn prefetch_for_write(_: *const u8) {}

/// No register can be read.
///
/// # Safety
///
/// None is needed.
pub(crate) unsafe fn counter(_: u32) -> u64 {
    0
}
