//! A descriptor table that belongs to one thread.
//!
//! The numbers in the process's descriptor table belong to the host: it may close every number that
//! it finds, open others at them, and fork in between. The host can neither close nor inherit
//! descriptors that a thread opens in a table of its own, and all of the host's numbers stay free
//! for it. `close_range` with `CLOSE_RANGE_UNSHARE` (Linux 5.9) gives a thread its table in one
//! step, and an empty one: it keeps nothing of the host's open, no pipe and no lock.
//!
//! A thread that lives for a while, and allocates, borrows the host's standard error
//! ([`LentStderr`]): if it aborts the process, Rust or the C library writes the reason to
//! descriptor 2, when nothing can be opened any more. But the reader of a pipe or socket waits
//! until every copy of its other end is closed. So while the thread has such a copy it checks once
//! a second whether the host still has that pipe at descriptor 2, and closes its copy if not. A
//! terminal or a file it keeps, because nothing waits for their end.
//!
//! # References
//!
//! `close_range(2)`; `fs/file.c`: `__close_range`, `unshare_fd`.
//!
//! # Safety
//!
//! The unsafe code calls `close_range`.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use crate::{Capability, clock};

/// How often a thread looks whether the host still has the standard error that it lent.
const EVERY: Duration = Duration::from_secs(1);

/// The error number with which the kernel has refused a thread its table; 0: it has not.
static REFUSED: AtomicI32 = AtomicI32::new(0);

/// The refusal of a table, if a thread has met one. Makes no call itself: a filter may kill for it.
pub fn capability() -> Option<Capability> {
    let errno = REFUSED.load(Ordering::Relaxed);
    (errno != 0).then(|| {
        let why = io::Error::from_raw_os_error(errno);
        let missing = "no profiles, watches, recorder, triggers, long polls or stalls";
        Capability::unavailable("host.descriptors", format!("close_range was refused ({why}): {missing}"))
            .with_fix("allow close_range in the seccomp profile, or run on Linux 5.9 or later")
    })
}

/// Gives the calling thread, which must be one of dormouse's, a table of its own. It contains only
/// standard streams that lead nowhere: otherwise a file would get one of their numbers, and what a
/// panic hook of the host prints would go into it.
///
/// # Errors
///
/// The error of `close_range`: `ENOSYS` on older kernels, and where a filter refuses it.
pub fn leave_the_hosts_table() -> io::Result<()> {
    begin_table(0)
}

/// The host's standard error, as a copy in the table of a thread of ours.
#[derive(Debug)]
pub struct LentStderr {
    /// The pipe or socket that it is, until the host closes it; `None`: nothing to look at.
    stream: Option<FileId>,
    looked_ns: u64,
}

impl LentStderr {
    /// Does what [`leave_the_hosts_table`] does, but keeps the host's standard error if there is
    /// one.
    ///
    /// # Errors
    ///
    /// See [`leave_the_hosts_table`].
    pub fn leave_the_rest() -> io::Result<Self> {
        begin_table(libc::STDERR_FILENO as u32 + 1)?;
        // SAFETY: closes descriptors of a table that is this thread's.
        let is_left = unsafe { libc::syscall(libc::SYS_close_range, 0_u32, libc::STDOUT_FILENO as u32, 0) };
        if is_left != 0 {
            return Err(io::Error::last_os_error());
        }
        fill_standard_streams();
        let stream = FileId::of(libc::STDERR_FILENO).filter(|own| own.is_stream);
        Ok(Self { stream, looked_ns: clock::monotonic_ns() })
    }

    /// Sleeps for `at_most` by calls of `sleep`, which returns whether the whole time that it was
    /// given has passed. Checks the host's standard error in between.
    pub fn sleep(&mut self, mut at_most: Duration, mut sleep: impl FnMut(Duration) -> bool) {
        loop {
            self.look();
            let part = if self.stream.is_some() { at_most.min(EVERY) } else { at_most };
            if !sleep(part) || part == at_most {
                return;
            }
            at_most -= part;
        }
    }

    /// Gives the standard error back if the host has another one, or none.
    fn look(&mut self) {
        let now_ns = clock::monotonic_ns();
        let is_time = now_ns.saturating_sub(self.looked_ns) >= EVERY.as_nanos() as u64;
        if self.stream.is_none() || !is_time {
            return;
        }
        self.looked_ns = now_ns;
        if FileId::of_hosts_stderr() != self.stream {
            self.stream = None;
            // SAFETY: closes a descriptor of a table that is this thread's.
            unsafe { libc::close(libc::STDERR_FILENO) };
            fill_standard_streams();
        }
    }
}

/// An open file, as the kernel numbers it.
#[derive(Debug, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
    /// A pipe or a socket.
    is_stream: bool,
}

impl FileId {
    fn of(descriptor: libc::c_int) -> Option<Self> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: a valid place for the answer. The call by its number: the C library's function
        // may make another one, which a filter need not allow.
        let answer = unsafe { libc::syscall(libc::SYS_fstat, descriptor, status.as_mut_ptr()) };
        // SAFETY: zeros are a status, too.
        let status = unsafe { status.assume_init() };
        let is_stream = matches!(status.st_mode & libc::S_IFMT, libc::S_IFIFO | libc::S_IFSOCK);
        (answer == 0).then_some(Self { device: status.st_dev, inode: status.st_ino, is_stream })
    }

    /// The first thread's descriptor 2, and so the host's. `O_PATH` opens no end of a pipe.
    fn of_hosts_stderr() -> Option<Self> {
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: a string that ends with NUL.
        let path = unsafe { libc::open(c"/proc/self/fd/2".as_ptr(), flags) };
        let file = (path >= 0).then(|| Self::of(path))?;
        // SAFETY: opened above.
        unsafe { libc::close(path) };
        file
    }
}

/// A table with the descriptors below `first`, and standard streams.
fn begin_table(first: u32) -> io::Result<()> {
    // SAFETY: closes descriptors of a table that the call itself makes for this thread.
    let is_left = unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_UNSHARE as libc::c_uint)
    };
    if is_left != 0 {
        let refusal = io::Error::last_os_error();
        REFUSED.store(refusal.raw_os_error().unwrap_or_default(), Ordering::Relaxed);
        return Err(refusal);
    }
    // It may have lacked memory.
    REFUSED.store(0, Ordering::Relaxed);
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
