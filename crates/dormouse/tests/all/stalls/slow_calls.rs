//! System calls that sleep for as long as a test wants, in the kernel as if a disk were slow.
//!
//! # References
//!
//! `seccomp_unotify(2)`

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;
use std::time::Duration;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W};

/// From now on each call of this number sleeps for `time`, and then does its work: on this thread,
/// and on threads that it starts. An error where the kernel has no such thing.
pub(super) fn slow_down(call: i64, time: Duration) -> io::Result<()> {
    let listener = listen(call)?;
    // It waits for calls as long as the process lives.
    thread::spawn(move || {
        // A signal may have ended the call, or interrupt this thread.
        let goes_on = |why: io::Error| matches!(why.raw_os_error(), Some(libc::EINTR | libc::ENOENT));
        while answer_after(&listener, time).map_or_else(goes_on, |()| true) {}
    });
    Ok(())
}

/// A filter of this thread that leaves the call to the thread with the listener.
fn listen(call: i64) -> io::Result<OwnedFd> {
    let call = u32::try_from(call).unwrap();
    let code = |bits: u32| bits as u16;
    // SAFETY: the macros only make values; the kernel reads the program, and copies it.
    unsafe {
        let mut filter = [
            // The number is the first word of `seccomp_data`.
            BPF_STMT(code(BPF_LD | BPF_W | BPF_ABS), 0),
            BPF_JUMP(code(BPF_JMP | BPF_JEQ | BPF_K), call, 0, 1),
            BPF_STMT(code(BPF_RET | BPF_K), libc::SECCOMP_RET_USER_NOTIF),
            BPF_STMT(code(BPF_RET | BPF_K), libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        match i32::try_from(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program)) {
            Ok(fd @ 0..) => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Receives a call, and lets the kernel make it after that time.
fn answer_after(listener: &OwnedFd, time: Duration) -> io::Result<()> {
    let done = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: zeros are values of both structures, which the kernel writes and reads.
    unsafe {
        let mut call: libc::seccomp_notif = std::mem::zeroed();
        done(libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, &raw mut call))?;
        thread::sleep(time);
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        done(libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, &raw mut answer))
    }
}
