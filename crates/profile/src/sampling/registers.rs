//! The registers of interrupted code, the only part that differs between architectures.
//!
//! # Safety
//!
//! The unsafe code reads the context that the kernel passes to a signal handler.
#![allow(unsafe_code)]

use std::ffi::c_void;

use dormouse_unwind::CallFrame;

/// The registers of the code that a signal has interrupted.
///
/// # Safety
///
/// `context` is the third argument of a handler that was installed with `SA_SIGINFO`.
pub(super) unsafe fn interrupted(context: *const c_void) -> CallFrame {
    // SAFETY: the caller's promise.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    CallFrame {
        instruction: registers[libc::REG_RIP as usize] as usize,
        frame: registers[libc::REG_RBP as usize] as usize,
        stack: registers[libc::REG_RSP as usize] as usize,
    }
}
