//! A table of descriptors of a thread's own.
//!
//! A descriptor's number in the process's table is the host's: it may close every number that it
//! finds, open others at them, and fork in between. The host can neither close nor inherit what a
//! thread opens in a table of its own, and has all its own numbers left. `close_range` with
//! `CLOSE_RANGE_UNSHARE` (Linux 5.9) gives a thread its table in one step, and an empty one: it
//! keeps nothing of the host's open, no pipe and no lock. A thread that is there for a while, and
//! allocates, keeps the standard error: the reason why it aborts the process goes there, by Rust's
//! or the C library's hand, when nothing can be opened any more. If the host gives its standard
//! error another file meanwhile, the thread keeps the one that it had.
//!
//! # References
//!
//! `close_range(2)`; `fs/file.c`: `__close_range`, `unshare_fd`.
//!
//! # Safety
//!
//! The unsafe code is `close_range`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::AsRawFd as _;

/// Has the calling thread, which is one of dormouse's, begin a table of its own, with nothing in it
/// but standard streams that lead nowhere: else a file would get the number of one, and what a hook
/// of the host's prints of a panic would go there.
///
/// # Errors
///
/// Those of `close_range`: `ENOSYS` on older kernels, and where a filter refuses it.
pub fn leave_the_hosts_table() -> io::Result<()> {
    begin_table(0)
}

/// As [`leave_the_hosts_table`], with the host's standard error, if it has one.
///
/// # Errors
///
/// The same.
pub fn leave_the_hosts_table_but_stderr() -> io::Result<()> {
    begin_table(libc::STDERR_FILENO as u32 + 1)?;
    // SAFETY: closes descriptors of a table that is this thread's.
    let is_left = unsafe { libc::syscall(libc::SYS_close_range, 0_u32, libc::STDOUT_FILENO as u32, 0) };
    if is_left != 0 {
        return Err(io::Error::last_os_error());
    }
    fill_standard_streams();
    Ok(())
}

/// A table with the descriptors below `first`, and standard streams.
fn begin_table(first: u32) -> io::Result<()> {
    // SAFETY: closes descriptors of a table that the call itself makes for this thread.
    let is_left = unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_uint)
    };
    if is_left != 0 {
        return Err(io::Error::last_os_error());
    }
    fill_standard_streams();
    Ok(())
}

/// Has each standard stream that is closed lead nowhere.
fn fill_standard_streams() {
    // The lowest number comes first.
    while let Ok(null) = std::fs::File::open("/dev/null") {
        if null.as_raw_fd() > libc::STDERR_FILENO {
            break;
        }
        std::mem::forget(null);
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    fn open() -> usize {
        // SAFETY: looks at numbers.
        (0..64).filter(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0).count()
    }

    #[test]
    fn other_threads_keep_their_table() {
        let (reader, writer) = io::pipe().unwrap();
        let before = open();
        assert!(before > 3);
        let own = std::thread::spawn(|| leave_the_hosts_table().map(|()| open())).join().unwrap();
        match own {
            Ok(own) => assert_eq!(own, 3),
            Err(error) => dormouse_testkit::skip(format!("close_range: {error}")),
        }
        assert!(open() > 3);
        drop((reader, writer));
    }
}
