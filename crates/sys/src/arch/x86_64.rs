//! x86-64.
//!
//! # Safety
//!
//! The unsafe code is single instructions, each with its reason.
#![allow(unsafe_code)]

use std::arch::asm;

use crate::stack::CallFrame;

/// This processor's code is here.
pub(crate) const IS_KNOWN: bool = true;

/// The signature that glibc registers for restartable sequences (`RSEQ_SIG`).
pub(crate) const RSEQ_SIGNATURE: u32 = 0x5305_3053;

/// Whether a register of the performance unit can be read.
pub(crate) const READS_COUNTERS: bool = true;

/// `PERF_REG_*` as bits, in the order in which a sample has them.
pub(crate) const UNWIND_REGISTERS: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// The place of each of these in `UserStack::registers`.
pub(crate) const REGISTER_PLACES: &[usize] = &[2, 1, 0];

/// The address of the thread's control block.
#[inline(always)]
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: the thread control block's first word is its own address.
    unsafe {
        asm!("mov {}, fs:0", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
    }
    pointer
}

/// The registers of the calling function.
#[inline(always)]
pub(crate) fn registers() -> CallFrame {
    let (instruction, stack, frame);
    // SAFETY: copies three registers.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp",
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
    // SAFETY: the call reads eight bytes, if it can, and changes nothing. The instruction changes
    // the registers that are named here.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") libc::SYS_rt_sigprocmask as isize => answer,
            in("rdi") NO_OPERATION,
            in("rsi") mask,
            in("rdx") 0_usize,
            in("r10") MASK_BYTES,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Fetches a cache line into all caches, without waiting for it.
#[inline(always)]
pub(crate) fn prefetch(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; nothing is accessed, and SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

/// Fetches a cache line that will be written.
#[inline(always)]
pub(crate) fn prefetch_for_write(line: *const u8) {
    // SAFETY: a hint, which changes nothing and faults nowhere.
    unsafe { asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly)) };
}

/// Register `number` of the performance unit, in the numbering of `rdpmc`.
///
/// # Safety
///
/// The kernel permits it to this process.
#[inline(always)]
pub(crate) unsafe fn counter(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: permitted, as the caller promises. Not `nomem`: it stays between the looks at the
    // page.
    unsafe {
        asm!("rdpmc", in("ecx") number, out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The address of the calling thread's instance of a thread-local symbol, by a TLS descriptor.
macro_rules! address_of_thread_local {
    ($symbol:expr) => {{
        let address;
        // SAFETY: the sequence of the processor's ABI supplement. The loader may allocate the
        // thread's storage in the call, so it is a call of C's (not `nostack`, nor the registers
        // that only the constant forms leave alone: glibc before 2.40 lost some).
        unsafe {
            std::arch::asm!(
                concat!("lea rax, [rip + ", $symbol, "@tlsdesc]"),
                concat!("call [rax + ", $symbol, "@tlscall]"),
                "add rax, qword ptr fs:[0]",
                out("rax") address,
                clobber_abi("C"),
            );
        }
        address
    }};
}
pub(crate) use address_of_thread_local;
