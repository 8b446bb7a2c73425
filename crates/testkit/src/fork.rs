//! Forked children, which have one thread and end without the harness.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

use crate::wait::HANG;

/// Runs `body` in a fork of this process, and waits for its end: code 0, or 101 if `body` panicked.
/// SIGALRM ends a child that hangs.
pub fn fork(body: impl FnOnce()) -> ExitStatus {
    // SAFETY: the child has the thread that runs this test and needs no other; it leaves by
    // `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(HANG.as_secs() as u32) };
        let ended = catch_unwind(AssertUnwindSafe(body));
        // SAFETY: ends the child without the exit handlers of its parent.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 101 }) };
    }
    join(child)
}

/// Waits for the end of a child that the test forked by itself.
pub fn join(child: libc::pid_t) -> ExitStatus {
    let mut status = 0;
    // SAFETY: `status` is a valid place.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child, "{}", io::Error::last_os_error());
    ExitStatus::from_raw(status)
}
