//! Sleeping until another thread of the process changes a word: `futex(2)`.
//!
//! Miri takes this call only with pointers that have their own types, which those of `rustix` have
//! not.
//!
//! # Safety
//!
//! The unsafe code makes the call for Miri, with a word and a time that are borrowed meanwhile.
#![cfg_attr(miri, allow(unsafe_code))]

use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::thread::Timespec;

/// Sleeps while the word is `seen`, until a [`wake`] or the end of the time; without one, for as
/// long as it takes.
///
/// # Errors
///
/// [`Errno::AGAIN`]: the word is another; [`Errno::TIMEDOUT`]: the time is over; [`Errno::INTR`]: a
/// signal came; or the refusal of a filter.
///
/// # Async-signal-safety
///
/// One system call.
#[cfg(not(miri))]
pub fn wait(word: &AtomicU32, seen: u32, timeout: Option<&Timespec>) -> Result<(), Errno> {
    use rustix::thread::futex;
    futex::wait(word, futex::Flags::PRIVATE, seen, timeout)
}

/// Wakes threads that sleep at the word, at most `most` of them.
///
/// # Async-signal-safety
///
/// One system call.
#[cfg(not(miri))]
pub fn wake(word: &AtomicU32, most: u32) {
    use rustix::thread::futex;
    // Refused by a filter, it would be so at a second call.
    let _ = futex::wake(word, futex::Flags::PRIVATE, most);
}

#[cfg(miri)]
#[allow(missing_docs)]
pub fn wait(word: &AtomicU32, seen: u32, timeout: Option<&Timespec>) -> Result<(), Errno> {
    let timeout =
        timeout.map(|time| libc::timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec as libc::c_long });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word and a time, or none.
    let answer = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, seen, timeout) };
    // SAFETY: the C library's place of this thread.
    if answer == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() })) }
}

#[cfg(miri)]
#[allow(missing_docs)]
pub fn wake(word: &AtomicU32, most: u32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, most) };
}
