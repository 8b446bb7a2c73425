//! A table of descriptors of a thread's own.
//!
//! A descriptor's number in the process's table is the host's: it may close every number that it
//! finds, open others at them, and fork in between. The host can neither close nor
//! inherit what a thread opens in a table of its own, and has all its own numbers left.
//! `close_range` with `CLOSE_RANGE_UNSHARE` (Linux 5.9) gives a thread its table in one step, and
//! an empty one: it keeps nothing of the host's open, no pipe and no lock.
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

/// Has the calling thread, which is one of dormouse's, begin a table of its own, with nothing in it
/// but standard streams that lead nowhere: else a file would get the number of one, and what a hook
/// of the host's prints of a panic would go there.
///
/// # Errors
///
/// Those of `close_range`: `ENOSYS` on older kernels, and where a filter refuses it.
pub fn leave_the_hosts_table() -> io::Result<()> {
    // SAFETY: closes every descriptor of a table that the call itself makes for this thread.
    let left = unsafe {
        libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_uint)
    };
    if left != 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..3 {
        std::mem::forget(std::fs::File::open("/dev/null"));
    }
    Ok(())
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
