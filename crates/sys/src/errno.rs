//! The calling thread's `errno`: a handler may come between a call of the host's and its look.
//!
//! # Safety
//!
//! The unsafe code reads and writes the C library's place of this thread.
#![allow(unsafe_code)]

/// Runs `run`, and leaves `errno` as it was.
///
/// # Async-signal-safety
///
/// That of `run`.
pub fn keeping_errno<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: the C library's place of this thread.
    let before = unsafe { *libc::__errno_location() };
    let result = run();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
    result
}
