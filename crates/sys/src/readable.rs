//! Whether memory can be read, found out by a system call instead of a fault.
//!
//! A page that is mapped from a file is gone when the file was cut short in place (`cp new.so
//! plugin.so` begins so, and nothing refuses it for libraries), when its file system is out of
//! reach, or when its disk fails. A load from it ends the process by SIGBUS. A system call that
//! reads from it returns EFAULT.
//!
//! The call is `rt_sigprocmask` with an operation that does not exist: the kernel copies the new
//! mask in before it checks the operation (`kernel/signal.c`), so the result is EFAULT or EINVAL,
//! and nothing changes. It needs no descriptor and no `/proc`, and no filter of system calls
//! refuses it, because every C library makes it whenever it starts a thread.
//!
//! # Limits
//!
//! The answer holds for that moment: a page may go between it and the load. And bringing a page in
//! may take as long as its file system takes, for ever if a server is dead: then the calling thread
//! waits, as it would for its own code.
//!
//! # Async-signal-safety
//!
//! One system call for each page, which leaves `errno` as it was.

use std::ops::Range;

use crate::arch;

/// Whether every page of a range of memory can be read now.
pub fn is_readable(range: Range<usize>) -> bool {
    let page = rustix::param::page_size();
    (range.start & !(page - 1)..range.end).step_by(page).all(is_page_readable)
}

/// Checks pages, and remembers the last one, so that repeated checks of one page make one system
/// call.
#[derive(Debug, Default)]
pub struct Pages {
    /// The last page that could be read.
    last: Range<usize>,
}

impl Pages {
    /// A checker that has not checked a page yet.
    pub const fn new() -> Self {
        Self { last: 0..0 }
    }

    /// Whether every page of a range can be read. A page that was checked last is not checked
    /// again.
    #[inline]
    pub fn are_readable(&mut self, range: Range<usize>) -> bool {
        range.start >= self.last.start && range.end.max(range.start + 1) <= self.last.end || self.check(range)
    }

    fn check(&mut self, range: Range<usize>) -> bool {
        let page = rustix::param::page_size();
        let last = range.end.saturating_sub(1).max(range.start) & !(page - 1);
        let answer = is_readable(range);
        if answer {
            self.last = last..last + page;
        }
        answer
    }
}

fn is_page_readable(page: usize) -> bool {
    // Not the page's first bytes: at address 0 there would be no mask to read.
    const INTO_THE_PAGE: usize = 8;
    arch::refused_mask(page + INTO_THE_PAGE) != -(libc::EFAULT as isize)
}

#[cfg(all(test, target_os = "linux", not(miri)))]
#[allow(unsafe_code)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn pages_lost_by_a_file_are_not_readable() {
        let page = rustix::param::page_size();
        let path = std::env::temp_dir().join(format!("dormouse-readable-{}", std::process::id()));
        let mut file =
            std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(&vec![7; 3 * page]).unwrap();
        // SAFETY: a new private mapping, wherever the kernel likes.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * page,
                libc::PROT_READ,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        } as usize;
        assert_ne!(start as *mut libc::c_void, libc::MAP_FAILED);
        assert!(is_readable(start..start + 3 * page));
        file.set_len(page as u64).unwrap();
        assert!(is_readable(start..start + page) && is_readable(start + 5..start + 6));
        assert!(!is_readable(start + page - 1..start + page + 1));
        assert!(!is_readable(start + page..start + page + 1) && !is_readable(8..9));

        let mut pages = Pages::default();
        assert!(pages.are_readable(start + 8..start + 16) && pages.are_readable(start..start + 1));
        assert!(!pages.are_readable(start + page - 1..start + page + 1));
        assert!(pages.are_readable(start + 100..start + 101));
        // SAFETY: mapped above, and no other code has it.
        unsafe { libc::munmap(start as *mut _, 3 * page) };
    }

    #[test]
    fn asking_changes_no_mask_and_no_error_number() {
        // SAFETY: reads this thread's mask into a local set, and its own error number.
        let mask = || unsafe {
            let mut mask = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
            (1..32).map(|signal| libc::sigismember(&raw const mask, signal)).collect::<Vec<_>>()
        };
        let all_blocked = [0xff_u8; 4096];
        let before = mask();
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = 77 };
        assert!(is_readable(all_blocked.as_ptr() as usize..all_blocked.as_ptr() as usize + 4096));
        assert!(!is_readable(8..16));
        // SAFETY: as above.
        assert_eq!((mask(), unsafe { *libc::__errno_location() }), (before, 77));
    }
}
