//! Files of `/proc` that are opened once and stay open: a process that has become undumpable or has
//! lost access to `/proc` can no longer open them. They are closed on `exec`, and in a forked
//! child, because they belong to its parent.
//!
//! # Invariants
//!
//! 1. A file that is read or written through is this process's own. The host may close any
//!    descriptor, whose number then becomes another file's, and a child that was made without the C
//!    library has its parent's file. So [`ProcFile::get`] checks the file behind the descriptor and
//!    the process. It is called before each read and write of the memory, and once in a batch for
//!    the list of mappings, which is only read.
//!
//! # Locking
//!
//! The patch lock is held, or the process has one thread.
//!
//! # Async-signal-safety
//!
//! [`ProcFile::close`] allocates nothing and waits for nothing.
//!
//! # Safety
//!
//! A descriptor is borrowed by its number, and only closed while it still is the file that was
//! opened.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::Errno;

/// A file of `/proc`, once it was opened.
#[derive(Debug)]
pub(super) struct ProcFile {
    /// The path is that of the calling thread, because the first thread may have ended and then has
    /// none.
    path: &'static CStr,
    flags: OFlags,
    /// The descriptor; negative: none.
    number: AtomicI32,
    /// The file's device, which tells it from another file with the same inode number.
    device: AtomicU64,
    inode: AtomicU64,
    /// The process that opened it.
    owner: AtomicU64,
    /// Returns the number of the calling process.
    own_number: fn() -> u64,
}

impl ProcFile {
    pub(super) const fn closed(path: &'static CStr, flags: OFlags, own_number: fn() -> u64) -> Self {
        Self {
            own_number,
            path,
            flags: flags.union(OFlags::CLOEXEC),
            number: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            owner: AtomicU64::new(0),
        }
    }

    /// The file, opened for a caller that closes it.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(rustix::fs::CWD, self.path, self.flags, Mode::empty())
    }

    /// The file, opened unless it is open.
    pub(super) fn get(&self) -> Result<BorrowedFd<'static>, Errno> {
        if let Some(file) = self.checked() {
            if self.owner.load(Ordering::Relaxed) == (self.own_number)() {
                return Ok(file);
            }
            self.close();
        }
        // From here on by its number: in debug builds std ends the process if the host has closed a
        // file of std's.
        let number = self.open()?.into_raw_fd();
        // SAFETY: open, and it stays so; if the host closes it, what is done with it is an error.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let seen = fstat(file).inspect_err(|&error| {
            if error != Errno::BADF {
                // SAFETY: opened just now, and in no other use.
                unsafe { rustix::io::close(number) };
            }
        })?;
        self.device.store(seen.st_dev, Ordering::Relaxed);
        self.inode.store(seen.st_ino, Ordering::Relaxed);
        self.owner.store((self.own_number)(), Ordering::Relaxed);
        self.number.store(number, Ordering::Relaxed);
        Ok(file)
    }

    /// The descriptor, if it is still the file that was opened.
    fn checked(&self) -> Option<BorrowedFd<'static>> {
        let number = self.number.load(Ordering::Relaxed);
        if number < 0 {
            return None;
        }
        // SAFETY: whatever the number is now, it is only asked; if it is closed, the answer is an
        // error.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let is_it = fstat(file).is_ok_and(|f| {
            f.st_dev == self.device.load(Ordering::Relaxed) && f.st_ino == self.inode.load(Ordering::Relaxed)
        });
        is_it.then_some(file)
    }

    /// Closes the file, if it is open. Where a filter refuses the check, it stays open, because the
    /// number may be a file of the host's by now.
    pub(super) fn close(&self) {
        if let Some(file) = self.checked() {
            // SAFETY: it is ours, and in no other use: the patch lock is held, or there is no other
            // thread.
            unsafe { rustix::io::close(file.as_raw_fd()) };
        }
        self.number.store(-1, Ordering::Relaxed);
    }
}
