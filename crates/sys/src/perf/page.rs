//! The page that the kernel keeps beside an event, used as one number: was this thread descheduled since?
//!
//! An event of the calling thread that counts nothing (`PERF_COUNT_SW_DUMMY`) needs no PMU and no rights,
//! and still the kernel rewrites its page whenever the thread is scheduled in, so that who reads the page
//! in user mode finds a sequence number that has moved. (Linux: `perf_event_update_userpage` in
//! `kernel/events/core.c`.) The kernel may rewrite it at other times too. The mapping alone keeps the
//! event: its descriptor is closed at once.
//!
//! # Safety
//!
//! The kernel does not copy such a page to a fork child, where its address is nothing, or something else by
//! now. So a read first asks whether this is the process that mapped it ([`crate::fork::number`]).
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU64;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Attr, Counted, open_here};
use crate::fork;

/// `struct perf_event_mmap_page`, as far as it is used here.
#[derive(Debug)]
#[repr(C)]
struct Header {
    version: u32,
    compat_version: u32,
    lock: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(Header, lock) == 8);

/// The page of an event of the thread that made it. Unmapped when dropped.
#[derive(Debug)]
pub struct Page {
    header: NonNull<Header>,
    /// The process that mapped it.
    owner: NonZeroU64,
}

impl Page {
    /// Maps a page for the calling thread.
    ///
    /// # Cost
    ///
    /// Twenty microseconds, a page of the user's locked memory (`kernel.perf_event_mlock_kb` for each
    /// processor), a descriptor for the time of the call; and then half a microsecond to one each time the
    /// thread is scheduled in.
    ///
    /// # Errors
    ///
    /// What the kernel says: as for every event; `EPERM` also where the user has locked too much memory.
    ///
    /// # Async-signal-safety
    ///
    /// System calls alone.
    pub fn of_this_thread() -> io::Result<Self> {
        // First: without it no read could be made.
        let owner = fork::number().ok_or(io::ErrorKind::Unsupported)?;
        // More is not given to all, and there is nothing to count anyway.
        let event = open_here(&Attr::count(Counted::Dummy).user_only())?;
        let size = rustix::param::page_size();
        // SAFETY: a new mapping, wherever the kernel likes.
        let page = unsafe { mmap(ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, &event, 0) }?;
        let header = NonNull::new(page.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { header, owner })
    }

    /// A number that has moved if the thread that made the page was scheduled in since; `None` in a fork
    /// child, which has no such page.
    #[inline]
    pub fn sequence(&self) -> Option<u32> {
        // SAFETY: in the process that mapped it the page is there until it is dropped, and aligned.
        self.is_here().then(|| unsafe { self.header.as_ref() }.lock.load(Ordering::Relaxed))
    }

    #[inline]
    fn is_here(&self) -> bool {
        fork::number() == Some(self.owner)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: mapped by `of_this_thread` in this process, and nobody refers to it any more.
            let _unmapped = unsafe { munmap(self.header.as_ptr().cast(), rustix::param::page_size()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_number_moves_whenever_the_thread_was_away() {
        let page = match Page::of_this_thread() {
            Ok(page) => page,
            Err(error) => return println!("1 skipped: no events here: {error}"),
        };
        for _ in 0..20 {
            let before = page.sequence();
            std::thread::sleep(Duration::from_micros(50));
            assert_ne!(page.sequence(), before);
        }
    }

    #[test]
    fn pages_come_and_go_and_leave_no_descriptor_and_no_mapping() {
        let count = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.ends_with("anon_inode:[perf_event]")).count()
        };
        let Ok(one) = Page::of_this_thread() else { return println!("1 skipped: no events here") };
        let with_one = count();
        drop(one);
        for _ in 0..1000 {
            drop(Page::of_this_thread().unwrap());
        }
        // Other tests hold a few.
        assert!(with_one > 0 && count() < with_one + 10);
    }

    #[test]
    fn in_a_fork_child_there_is_no_page_and_nothing_to_unmap() {
        let Ok(page) = Page::of_this_thread() else { return println!("1 skipped: no events here") };
        // SAFETY: a fork without handlers; the child makes system calls and reads atomics until its end.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let none = page.sequence().is_none();
            drop(page);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!none)) };
        }
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        let waited = unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
        assert_eq!((i64::from(waited), status), (child, 0), "a signal: the child has touched the page");
        assert!(page.sequence().is_some());
    }
}
