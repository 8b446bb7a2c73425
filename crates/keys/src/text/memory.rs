//! Writing code through `/proc/thread-self/mem`, which ignores the permissions of the page: the
//! kernel gives the process its own copy of it, as it does for a debugger. It is refused where the
//! mapping is shared with a file, and where a page is gone the result is an error, not a fault.
//!
//! The file is opened once, early if [`crate::prepare`] is called early, and stays open
//! ([`super::proc_file`]). Its number is checked before each read and write, which costs an `fstat`
//! each: a host may close it, and open a file of its own, in the middle of a batch. Then the file
//! is opened anew.
//!
//! # Invariants
//!
//! 1. Every page of a batch's sites was tried: one unit of it was written back unchanged. It is a
//!    site's last on the page: of longer sites that is where no debugger sets a breakpoint.
//!
//! # Async-signal-safety
//!
//! [`Memory::alone`] allocates nothing and waits for nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::{Errno, pread, pwrite};

use super::patch::Patch;
use super::proc_file::ProcFile;
use crate::arch::{LENGTH, UNIT};

/// Not by the process's id: a child in a namespace of its own may have its parent's.
pub(super) static FILE: ProcFile =
    ProcFile::closed(c"/proc/thread-self/mem", OFlags::RDWR, dormouse_sys::process::identity::id);

/// Memory that code can be written through.
#[derive(Debug)]
pub(super) struct Memory<F = &'static ProcFile>(F);

/// A file that can be used now.
pub(super) trait Source {
    fn file(&self) -> Result<BorrowedFd<'_>, Errno>;
}

impl Source for &'static ProcFile {
    fn file(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.get()
    }
}

impl Source for OwnedFd {
    fn file(&self) -> Result<BorrowedFd<'_>, Errno> {
        Ok(self.as_fd())
    }
}

impl Memory {
    /// The file, if every page that holds the first `length` bytes of these (sorted) patches can be
    /// written through it.
    pub(super) fn open<'a>(patches: impl Iterator<Item = &'a Patch>, length: usize) -> io::Result<Self> {
        let memory = Self(&FILE);
        memory.0.file()?;
        let page = rustix::param::page_size();
        let mut tried = None;
        for patch in patches {
            let first = patch.code;
            let end_of_page = first | (page - 1);
            let last = first + LENGTH - UNIT;
            // The second only where the whole site is written, and it crosses the end of its page.
            let second = Some(last).filter(|&last| last > end_of_page && length > UNIT);
            for address in [Some(last.min(end_of_page)), second].into_iter().flatten() {
                if tried.replace(address & !(page - 1)) != Some(address & !(page - 1)) {
                    let mut unit = [0; UNIT];
                    memory.read(address, &mut unit)?;
                    memory.write(address, &unit)?;
                }
            }
        }
        Ok(memory)
    }
}

impl Memory<OwnedFd> {
    /// In a process of one thread, which keeps no file: one of its own.
    pub(super) fn alone() -> Result<Self, Errno> {
        FILE.open().map(Self)
    }
}

impl<F: Source> Memory<F> {
    pub(super) fn read(&self, address: usize, bytes: &mut [u8]) -> Result<(), Errno> {
        whole(bytes.len(), pread(self.0.file()?, bytes, address as u64))
    }

    pub(super) fn write(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        whole(bytes.len(), pwrite(self.0.file()?, bytes, address as u64))
    }
}

fn whole(wanted: usize, done: Result<usize, Errno>) -> Result<(), Errno> {
    match done {
        Ok(done) if done == wanted => Ok(()),
        // The kernel's answer to a write of nothing at all.
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
