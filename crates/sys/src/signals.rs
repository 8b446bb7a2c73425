//! Keeping the host's signals off the threads that dormouse starts in it, so that the host's
//! handlers run on the host's threads.
//!
//! # Safety
//!
//! Plain calls of `sigfillset`, `sigdelset` and `pthread_sigmask` on local sets.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Signals that a thread raises by its own instructions; blocked, they would kill the process all
/// the same, but without the host's crash handler.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT];

/// The longest wait for a thread that does not begin: a filter may have ended it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts a thread with all signals but the synchronous ones blocked, and returns when it has
/// begun. So the calls that a thread makes at its beginning (for its name, its signal stack) come
/// before a filter that the caller installs next.
pub fn spawn(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (begun, begins) = mpsc::sync_channel(1);
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises `all`; the other calls read it, and write `before` if they
    // succeed.
    let is_masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        for signal in SYNCHRONOUS {
            libc::sigdelset(all.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0
    };
    // The thread inherits the mask.
    let spawned = thread::Builder::new().name(name.to_owned()).stack_size(stack).spawn(move || {
        let _ = begun.send(());
        drop(begun);
        run();
    });
    if is_masked {
        // SAFETY: the first call succeeded, so `before` is the mask that it stored.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    }
    spawned?;
    let _ = begins.recv_timeout(PATIENCE);
    Ok(())
}
