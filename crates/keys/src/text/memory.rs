//! Writing code through `/proc/self/mem`, which asks for no permission of the page: the kernel makes the process
//! its own copy of it, as it does for a debugger.
//!
//! The file is opened once, early if [`crate::prepare`] is called early, and kept: a process that has become
//! undumpable or has left `/proc` behind can no longer open it. It is closed on `exec`, and in a forked child, for
//! whom it would be the parent's memory.
//!
//! # Invariants
//!
//! 1. What is written through is this process's memory. A number that is kept for long may be closed by the host (which
//!    may close whatever it finds) and become another file's; a child that was made behind the C library's back has
//!    its parent's file. So before each batch the descriptor is asked which file it is, and the process who it is.
//! 2. The page of a batch's site can be written: a byte of it has been, with what it held. The byte is the
//!    site's last on the page, where no debugger sets a breakpoint.
//!
//! # Locking
//!
//! The patch lock is held, or the process has one thread.
//!
//! # Async-signal-safety
//!
//! [`close`] and [`write_alone`] allocate nothing and wait for nothing.
//!
//! # Safety
//!
//! A descriptor is borrowed by the number that [`open`] has kept, and only while it is the file that was opened.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags, fstat};
use rustix::io::{Errno, pwrite};

use super::Patch;
use crate::arch::LENGTH;

/// The descriptor; negative: none.
static KEPT: AtomicI32 = AtomicI32::new(-1);
/// Of the file, so that another one of the same number is not taken for it.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
/// The process that opened it.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// Memory that a batch's sites can be written through.
#[derive(Debug)]
pub(super) struct Memory(BorrowedFd<'static>);

impl Memory {
    /// The file, if every page of the (sorted) patches can be written through it.
    pub(super) fn open(patches: &[Patch]) -> io::Result<Self> {
        let memory = Self(open()?);
        let page = rustix::param::page_size();
        let mut tried = None;
        for patch in patches {
            let first = patch.site.code;
            let end_of_page = first | (page - 1);
            let last = first + LENGTH - 1;
            // The second only where the whole site is written, and it crosses the end of its page.
            let second = Some(last).filter(|&last| last > end_of_page && patch.length() > 1);
            for address in [Some(last.min(end_of_page)), second].into_iter().flatten() {
                if tried.replace(address & !(page - 1)) != Some(address & !(page - 1)) {
                    // SAFETY: inside a site, which lies in a readable segment.
                    let byte = unsafe { std::ptr::read_volatile(address as *const u8) };
                    memory.write(address, &[byte])?;
                }
            }
        }
        Ok(memory)
    }

    pub(super) fn write(&self, address: usize, bytes: &[u8]) -> Result<(), Errno> {
        write(self.0, address, bytes)
    }
}

/// Opens the file, unless it is open.
pub(crate) fn open() -> io::Result<BorrowedFd<'static>> {
    if let Some(kept) = kept() {
        if OWNER.load(Ordering::Relaxed) == own_number() {
            return Ok(kept);
        }
        close();
    }
    let memory = open_anew()?;
    let file = fstat(&memory)?;
    DEVICE.store(file.st_dev, Ordering::Relaxed);
    INODE.store(file.st_ino, Ordering::Relaxed);
    OWNER.store(own_number(), Ordering::Relaxed);
    let number = memory.into_raw_fd();
    KEPT.store(number, Ordering::Relaxed);
    // SAFETY: open, and kept open.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

fn open_anew() -> Result<OwnedFd, Errno> {
    rustix::fs::open(c"/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Not the process's id: a child in a namespace of its own may have its parent's.
fn own_number() -> u64 {
    let pid = || u64::MAX - u64::from(rustix::process::getpid().as_raw_pid().cast_unsigned());
    dormouse_sys::fork::number().map_or_else(pid, NonZeroU64::get)
}

/// The descriptor that was kept, if it is still the file that was opened.
fn kept() -> Option<BorrowedFd<'static>> {
    let number = KEPT.load(Ordering::Relaxed);
    if number < 0 {
        return None;
    }
    // SAFETY: whatever the number is now, it is only asked what it is; if it is closed, the answer is an error.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let is_it = fstat(file).is_ok_and(|f| {
        f.st_dev == DEVICE.load(Ordering::Relaxed) && f.st_ino == INODE.load(Ordering::Relaxed)
    });
    is_it.then_some(file)
}

/// Closes the file, if it is open.
pub(super) fn close() {
    if let Some(kept) = kept() {
        // SAFETY: it is ours, and nobody else holds it: the patch lock is held, or there is no other thread.
        unsafe { rustix::io::close(kept.as_raw_fd()) };
    }
    KEPT.store(-1, Ordering::Relaxed);
}

/// Writes some bytes in a process of one thread, by a file of its own.
pub(super) fn write_alone(address: usize, bytes: &[u8]) -> Result<(), Errno> {
    write(open_anew()?.as_fd(), address, bytes)
}

fn write(memory: BorrowedFd<'_>, address: usize, bytes: &[u8]) -> Result<(), Errno> {
    match pwrite(memory, bytes, address as u64) {
        Ok(written) if written == bytes.len() => Ok(()),
        // What the kernel says for nothing at all.
        Ok(_) => Err(Errno::IO),
        Err(errno) => Err(errno),
    }
}
