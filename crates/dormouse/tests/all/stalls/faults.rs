//! Memory whose page faults last for as long as a test wants.

use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

/// A page.
const PAGE: usize = 4096;

/// Faults of user mode alone: the kernel lets anybody handle these.
const USER_MODE_ONLY: i32 = 1;

// `include/uapi/linux/userfaultfd.h`.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MISSING: u64 = 1;

/// Pages that are not there until somebody fills them in: a thread that reads one waits.
pub(super) struct Faulting {
    /// The kernel's file of faults.
    file: File,
    start: usize,
    pages: usize,
}

impl Faulting {
    /// A mapping of that number of pages; an error where the kernel or a filter has no such thing.
    pub(super) fn new(pages: usize) -> std::io::Result<Self> {
        let length = pages * PAGE;
        // SAFETY: calls that make a file and a mapping; the structures are the kernel's.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
            let Ok(fd @ 0..) = i32::try_from(fd) else { return Err(std::io::Error::last_os_error()) };
            let file = File::from_raw_fd(fd);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(ptr::null_mut(), length, access, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let start = start as usize;
            let faulting = Self { file, start, pages };
            faulting.ioctl(UFFDIO_API, &mut [UFFD_API, 0, 0])?;
            faulting.ioctl(UFFDIO_REGISTER, &mut [start as u64, length as u64, MISSING, 0])?;
            Ok(faulting)
        }
    }

    fn ioctl(&self, request: libc::c_ulong, words: &mut [u64]) -> std::io::Result<()> {
        // SAFETY: the kernel reads and writes as many words as the request has.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads a byte of a page, which waits until the page is there.
    pub(super) fn touch(&self, page: usize) {
        assert!(page < self.pages);
        // SAFETY: in the mapping, which lives as long as this.
        unsafe { &*((self.start + page * PAGE) as *const AtomicU8) }.load(Ordering::Relaxed);
    }

    /// Has a page be there.
    pub(super) fn fill(&self, page: usize) {
        let mut words = [(self.start + page * PAGE) as u64, PAGE as u64, 0, 0];
        self.ioctl(UFFDIO_ZEROPAGE, &mut words).expect("a page of zeros");
    }
}

impl Drop for Faulting {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.pages * PAGE) };
    }
}
