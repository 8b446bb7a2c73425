//! x86-64: a watch stops behind the access.

use std::arch::{asm, global_asm};

/// Whether the cause of a debug exception may be lost.
pub(crate) const LOSES_CAUSES: bool = true;

/// Whether watches of instructions are possible in the own process.
pub(crate) const WATCHES_INSTRUCTIONS: bool = true;

/// Whether a watch must rest for a pair of exclusive instructions.
pub(crate) const LEAVES_EXCLUSIVE_PAIRS: bool = false;

/// The hits of two threads without room that write twice, and those for which there was none.
pub(crate) const LOST_AND_CRAMPED: (u64, u64) = (4, 4);

/// One write to anywhere.
#[inline(always)]
pub(crate) fn write_to(word: *mut u64, value: u64) {
    // SAFETY: the caller's word, of which no reference is held that would be confused.
    unsafe { asm!("mov qword ptr [{}], {}", in(reg) word, in(reg) value, options(nostack)) };
}

/// Raises a SIGTRAP by an instruction of the program, for a handler of its own.
pub(crate) fn trap() {
    // SAFETY: goes on behind the instruction.
    unsafe { asm!("int3") };
}

/// Raises a debug exception.
pub(crate) fn raise_exception() {
    // SAFETY: a signal, which ends the process by default.
    unsafe { asm!(".byte 0xf1") };
}

/// Adds 1 by a pair of exclusive instructions, or what comes closest.
pub(crate) fn add_exclusively(word: &std::sync::atomic::AtomicU64) {
    word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

global_asm!(
    ".globl dormouse_test_outer, dormouse_test_returned, dormouse_test_stopped",
    "dormouse_test_outer: push rbp",
    "mov rbp, rsp",
    "call dormouse_test_inner",
    "dormouse_test_returned: pop rbp",
    "ret",
    "dormouse_test_inner: push rbp",
    "mov rbp, rsp",
    "mov [rdi], rsi",
    "dormouse_test_stopped: pop rbp",
    "ret",
);
