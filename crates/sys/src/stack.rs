//! The registers of running code from which its callers are found.
//!
//! # Safety
//!
//! The unsafe code reads the context that the kernel passes to a signal handler.
#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::arch;

/// The registers of a function that runs or has called another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFrame {
    /// An address inside of an instruction: the next one of code that was interrupted; for a
    /// caller, its call (one less than the return address).
    pub instruction: usize,
    /// The stack pointer.
    pub stack: usize,
    /// The register of the frame pointer, whatever the function uses it for.
    pub frame: usize,
    /// The register in which a call leaves the return address, where the processor has one; 0 if it
    /// is not known, as that of a caller.
    pub link: usize,
}

/// The registers of the function into which this is inlined. (Zeros on other processors.)
#[inline(always)]
pub fn here() -> CallFrame {
    arch::registers()
}

/// The registers of the code that a signal has interrupted.
///
/// # Safety
///
/// `context` is the third argument of a handler that was installed with `SA_SIGINFO`.
#[inline(always)]
pub unsafe fn interrupted(context: *const c_void) -> CallFrame {
    // SAFETY: the caller's promise.
    arch::interrupted(unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext })
}

/// The lowest address of the alternate stack on which a signal handler runs; 0: it runs on the
/// stack of the code that it has interrupted.
///
/// # Safety
///
/// That of [`interrupted`].
#[inline(always)]
pub unsafe fn lowest(context: *const c_void) -> usize {
    // SAFETY: the caller's promise.
    let stack = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_stack };
    let lowest = stack.ss_sp.addr();
    if here().stack.wrapping_sub(lowest) <= stack.ss_size { lowest } else { 0 }
}
