//! arm64.
//!
//! # Safety
//!
//! The unsafe code is single instructions, each with its reason.
#![allow(unsafe_code)]

use std::arch::asm;

use crate::stack::CallFrame;

/// This processor's code is here.
pub(crate) const IS_KNOWN: bool = true;

/// The signature that glibc registers for restartable sequences (`RSEQ_SIG`): `brk #0x45e0`.
pub(crate) const RSEQ_SIGNATURE: u32 = 0xd428_bc00;

/// Whether a register of the performance unit can be read. The kernel refuses it unless it is told
/// otherwise (`kernel.perf_user_access`), so counters are read by system calls.
pub(crate) const READS_COUNTERS: bool = false;

/// `PERF_REG_*` as bits, in the order in which a sample has them.
pub(crate) const UNWIND_REGISTERS: u64 = 1 << 29 | 1 << 30 | 1 << 31 | 1 << 32;

/// The place of each of these in `UserStack::registers`.
pub(crate) const REGISTER_PLACES: &[usize] = &[2, 3, 1, 0];

/// The address of the thread's control block.
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: copies a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// The registers of the calling function.
#[inline(always)]
pub(crate) fn registers() -> CallFrame {
    let (instruction, stack, frame);
    // SAFETY: copies three registers.
    unsafe {
        asm!("adr {}, .", "mov {}, sp", "mov {}, x29",
            out(reg) instruction, out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    CallFrame { instruction, stack, frame }
}

/// `rt_sigprocmask` with an operation that does not exist, and `mask`: a negative error number.
pub(crate) fn refused_mask(mask: usize) -> isize {
    const NO_OPERATION: usize = usize::MAX;
    const MASK_BYTES: usize = 8;
    let answer: isize;
    // SAFETY: the call reads eight bytes, if it can, and changes nothing.
    unsafe {
        asm!(
            "svc 0",
            in("x8") libc::SYS_rt_sigprocmask,
            inlateout("x0") NO_OPERATION => answer,
            in("x1") mask,
            in("x2") 0_usize,
            in("x3") MASK_BYTES,
            options(nostack),
        );
    }
    answer
}

/// Fetches a cache line into all caches, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Fetches a cache line that will be written.
#[inline(always)]
pub(crate) fn prefetch_for_write(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// No register can be read.
///
/// # Safety
///
/// None is needed.
#[inline(always)]
pub(crate) unsafe fn counter(_: u32) -> u64 {
    0
}

/// The address of the calling thread's instance of a thread-local symbol, by a TLS descriptor.
macro_rules! address_of_thread_local {
    ($symbol:expr) => {{
        let address;
        // SAFETY: the sequence of the processor's ABI supplement. The loader may allocate the
        // thread's storage in the call, so it is a call of C's.
        unsafe {
            std::arch::asm!(
                concat!("adrp x0, :tlsdesc:", $symbol),
                concat!("ldr x1, [x0, :tlsdesc_lo12:", $symbol, "]"),
                concat!("add x0, x0, :tlsdesc_lo12:", $symbol),
                concat!(".tlsdesccall ", $symbol),
                "blr x1",
                "mrs x1, tpidr_el0",
                "add x0, x0, x1",
                out("x0") address,
                clobber_abi("C"),
            );
        }
        address
    }};
}
pub(crate) use address_of_thread_local;
