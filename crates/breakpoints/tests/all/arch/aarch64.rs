//! arm64: a watch stops before the access.

use std::arch::{asm, global_asm};
use std::sync::atomic::AtomicU64;

/// Whether the cause of a debug exception may be lost.
pub(crate) const LOSES_CAUSES: bool = false;

/// Whether watches of instructions are possible in the own process.
pub(crate) const WATCHES_INSTRUCTIONS: bool = false;

/// Whether a watch must rest for a pair of exclusive instructions.
pub(crate) const LEAVES_EXCLUSIVE_PAIRS: bool = true;

/// The hits of two threads without room that write twice, and those for which there was none. The
/// first write of each hits twice, and then the thread blocks the signal.
pub(crate) const LOST_AND_CRAMPED: (u64, u64) = (6, 2);

/// One write to anywhere.
#[inline(always)]
pub(crate) fn write_to(word: *mut u64, value: u64) {
    // SAFETY: the caller's word, of which no reference is held that would be confused.
    unsafe { asm!("str {}, [{}]", in(reg) value, in(reg) word, options(nostack)) };
}

/// Raises a SIGTRAP, for a handler of the program's own. (It would return to the instruction
/// `brk`.)
pub(crate) fn trap() {
    // SAFETY: a signal of this thread.
    unsafe { libc::raise(libc::SIGTRAP) };
}

/// There is no such instruction.
pub(crate) fn raise_exception() {}

/// Adds 1 by a pair of exclusive instructions.
pub(crate) fn add_exclusively(word: &AtomicU64) {
    // SAFETY: an atomic addition.
    unsafe {
        asm!("2:", "ldxr {value}, [{at}]", "add {value}, {value}, #1", "stxr {failed:w}, {value}, [{at}]",
            "cbnz {failed:w}, 2b", value = out(reg) _, failed = out(reg) _, at = in(reg) word.as_ptr(),
            options(nostack));
    }
}

global_asm!(
    ".globl dormouse_test_outer, dormouse_test_returned, dormouse_test_stopped",
    "dormouse_test_outer: stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "bl dormouse_test_inner",
    "dormouse_test_returned: ldp x29, x30, [sp], #16",
    "ret",
    "dormouse_test_inner: stp x29, x30, [sp, #-16]!",
    "mov x29, sp",
    "dormouse_test_stopped: str x1, [x0]",
    "ldp x29, x30, [sp], #16",
    "ret",
);
