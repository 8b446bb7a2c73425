//! x86-64: the time stamp counter.
//!
//! # Safety
//!
//! `rdtsc` faults on a thread that has forbidden it to itself (`PR_SET_TSC`). [`tsc_faults`] checks
//! that for the thread of the first stamp, and until `prepare` for each thread whose clock begins.
//! Other threads must not forbid it: their next read ends the process. The other unsafe code is one
//! instruction on one word of the calling thread, and a hint.
#![allow(unsafe_code)]

use std::cell::Cell;

use dormouse_sys::arch::cpuid;

use super::tsc_faults;

/// The kernel's names for this counter as a clock source. `tsc-early` is it, too, until it has been
/// measured against another clock.
pub(crate) const CLOCK_SOURCES: &[&[u8]] = &[b"tsc", b"tsc-early"];

/// The time stamp counter. Not serialising: neighbouring instructions may move across it.
#[inline(always)]
pub fn rdtsc() -> u64 {
    // SAFETY: no memory is touched.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one rate in all states of the processor, and may be read here.
pub(crate) fn tsc_readable() -> Result<(), &'static str> {
    if tsc_faults() {
        return Err("reading the TSC is forbidden in this process (prctl PR_SET_TSC)");
    }
    // CPUID Fn8000_0007 EDX bit 8, "invariant TSC": Intel SDM vol. 3, AMD APM vol. 3.
    if cpuid(0x8000_0000).eax < 0x8000_0007 || cpuid(0x8000_0007).edx & (1 << 8) == 0 {
        return Err("the processor has no invariant TSC");
    }
    Ok(())
}

/// Stores `new` in `cell` if it still holds `old`, in one instruction: a signal handler of this
/// thread comes before it or after it, never in between. Without `lock`, because no other thread is
/// involved.
#[inline(always)]
pub(crate) fn advance(cell: &Cell<u64>, old: u64, new: u64) -> bool {
    let stored: u8;
    // SAFETY: `cell` is a valid word of this thread.
    unsafe {
        std::arch::asm!(
            "cmpxchg qword ptr [{cell}], {new}",
            "sete {stored}",
            cell = in(reg) cell.as_ptr(),
            new = in(reg) new,
            stored = out(reg_byte) stored,
            inout("rax") old => _,
            options(nostack),
        );
    }
    stored != 0
}
