//! arm64: the virtual counter of the generic timer. It runs at one rate by the architecture, and is
//! coarse: 24 to 100 MHz on most processors, 1 GHz from Armv8.6 on.
//!
//! # Safety
//!
//! `mrs` of the counter faults on a thread that has forbidden it to itself (`PR_SET_TSC`, from
//! Linux 6.12 on). [`tsc_faults`] checks that for the thread of the first stamp, and until
//! `prepare` for each thread whose clock begins. Other threads must not forbid it: their next read
//! ends the process. The other unsafe code is one word of the calling thread.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::tsc_faults;

/// The kernel's name for this counter as a clock source.
pub(crate) const CLOCK_SOURCES: &[&[u8]] = &[b"arch_sys_counter"];

/// The virtual counter. Not serialising: neighbouring instructions may move across it.
#[inline(always)]
pub fn rdtsc() -> u64 {
    let ticks;
    // SAFETY: no memory is touched. Not `nomem`: the compiler keeps it between the loads around it.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Whether the counter may be read here.
pub(crate) fn tsc_readable() -> Result<(), &'static str> {
    if tsc_faults() {
        return Err("reading the counter is forbidden in this process (prctl PR_SET_TSC)");
    }
    Ok(())
}

/// Stores `new` in `cell` if it still holds `old`: a signal handler of this thread comes before it
/// or after it, never in between. Where the processor has no single instruction for it, the return
/// from a handler breaks the pair that is used instead, and the pair is tried again.
#[inline(always)]
pub(crate) fn advance(cell: &Cell<u64>, old: u64, new: u64) -> bool {
    // SAFETY: a valid, aligned word of this thread.
    let word = unsafe { AtomicU64::from_ptr(cell.as_ptr()) };
    word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}
