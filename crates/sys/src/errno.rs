//! The calling thread's `errno`: a handler may come between a call of the host and the host's check
//! of `errno`.
//!
//! # Safety
//!
//! The unsafe code reads and writes this thread's `errno`.
#![allow(unsafe_code)]

/// Runs `run`, and leaves `errno` as it was.
///
/// # Async-signal-safety
///
/// The same as `run`.
pub fn keeping_errno<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's place of this thread.
    let before = unsafe { *libc::__errno_location() };
    let result = run();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
    result
}
