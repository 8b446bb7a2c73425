//! Keeping the host's signals off the threads that dormouse starts in it, so that the host's handlers run on the
//! host's threads.
//!
//! # Safety
//!
//! Plain calls of `sigfillset`, `sigdelset` and `pthread_sigmask` on local sets.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Signals that a thread raises by what it does; blocked, they would kill the process all the same, but
/// without the host's crash handler.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// Runs `f` with all signals but the synchronous ones blocked: a thread that it starts inherits that.
pub fn with_all_blocked<T>(f: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises `all`; the other calls read it, and write `before` if they succeed.
    let masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    let result = f();
    if masked {
        // SAFETY: the first call succeeded, so `before` is what it stored.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    result
}
