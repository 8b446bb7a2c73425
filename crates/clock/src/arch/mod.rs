//! The parts that differ between processors: the counter, and the store that is atomic with respect
//! to signal handlers. A new processor is a file here.
//!
//! # Safety
//!
//! The unsafe code asks the kernel for one number.
#![allow(unsafe_code)]

#[cfg_attr(all(target_arch = "x86_64", not(miri)), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", not(miri)), path = "aarch64.rs")]
#[cfg_attr(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))), path = "portable.rs")]
mod processor;

pub use processor::rdtsc;
pub(crate) use processor::{CLOCK_SOURCES, advance, tsc_readable};

/// Whether reading the counter is forbidden here, and would end the process.
pub(crate) fn tsc_faults() -> bool {
    const PR_GET_TSC: i32 = 25;
    const PR_TSC_SIGSEGV: i32 = 2;
    if cfg!(miri) {
        return false;
    }
    let mut mode = 0i32;
    // SAFETY: PR_GET_TSC writes one int. On arm64 before Linux 6.12, where nothing can forbid it,
    // the call is refused.
    let asked = unsafe { libc::prctl(PR_GET_TSC, &raw mut mode) };
    asked == 0 && mode == PR_TSC_SIGSEGV
}
