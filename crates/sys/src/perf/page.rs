//! The page that the kernel keeps beside an event, used as one number: was this thread descheduled
//! since?
//!
//! An event of the calling thread that counts nothing (`PERF_COUNT_SW_DUMMY`) needs no PMU and no
//! rights, and still the kernel rewrites its page whenever the thread is scheduled in, so that a
//! reader of the page in user mode finds a changed sequence number. (Linux:
//! `perf_event_update_userpage` in `kernel/events/core.c`.) The kernel may rewrite it at other
//! times too. The mapping alone keeps the event: its descriptor is closed at once.
//!
//! # Safety
//!
//! A fork child does not inherit such a page: its address is unmapped there, or holds something
//! else. So a read first checks whether this is the process that mapped it
//! ([`crate::process::identity::number`]).
#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use super::attr::Attr;
use super::event::open_here;
use super::kernel_event::KernelEvent;
use super::user::UserPage;
use crate::process::identity;

/// The page of an event of the thread that made it. Unmapped when dropped.
#[derive(Debug)]
pub struct Page {
    page: NonNull<UserPage>,
    /// The process that mapped it.
    owner: NonZeroU64,
}

impl Page {
    /// Maps a page for the calling thread.
    ///
    /// # Cost
    ///
    /// Twenty microseconds, a page of the user's locked memory (`kernel.perf_event_mlock_kb` for
    /// each processor), a descriptor during the call; and then half a microsecond to one each time
    /// the thread is scheduled in.
    ///
    /// # Errors
    ///
    /// The kernel's error, as for every event; `EPERM` also if the user has locked too much memory.
    ///
    /// # Async-signal-safety
    ///
    /// System calls only.
    pub fn of_this_thread() -> io::Result<Self> {
        // First: without it no read could be made.
        let owner = identity::number().ok_or(io::ErrorKind::Unsupported)?;
        // Not every user may count the kernel, and this event counts nothing anyway.
        let event = open_here(&Attr::count(KernelEvent::Dummy).user_only())?;
        Ok(Self { page: UserPage::map(event.as_fd())?, owner })
    }

    /// A number that changes whenever the thread that made the page is scheduled in; `None` in a
    /// fork child, which has no such page.
    #[inline]
    pub fn sequence(&self) -> Option<u32> {
        // SAFETY: in the process that mapped it the page is there until it is dropped, and aligned.
        self.is_here().then(|| unsafe { self.page.as_ref() }.sequence())
    }

    #[inline]
    fn is_here(&self) -> bool {
        identity::number() == Some(self.owner)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: mapped by `of_this_thread` in this process, and no reference to it is left.
            unsafe { UserPage::unmap(self.page) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;
    use std::time::Duration;

    use super::*;

    /// How often the calling thread has given up its processor.
    fn sleeps() -> libc::c_long {
        let mut usage = MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: it writes the usage.
        unsafe {
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
            usage.assume_init().ru_nvcsw
        }
    }

    #[test]
    fn the_number_moves_when_the_thread_sleeps() {
        let page = match Page::of_this_thread() {
            Ok(page) => page,
            Err(error) => return dormouse_testkit::skip(format!("no events here: {error}")),
        };
        let mut moved = 0;
        while moved < 20 {
            let (before, sleeps) = (page.sequence(), sleeps());
            std::thread::sleep(Duration::from_micros(50));
            // One may be over before it has begun, where the processor is taken away just then.
            if self::sleeps() != sleeps {
                assert_ne!(page.sequence(), before);
                moved += 1;
            }
        }
    }

    #[test]
    fn dropped_pages_leave_no_descriptor_or_mapping() {
        let count = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.ends_with("anon_inode:[perf_event]")).count()
        };
        let Ok(one) = Page::of_this_thread() else { return dormouse_testkit::skip("no events here") };
        let with_one = count();
        drop(one);
        for _ in 0..1000 {
            drop(Page::of_this_thread().unwrap());
        }
        // Other tests hold a few.
        assert!(with_one > 0 && count() < with_one + 10);
    }

    #[test]
    fn a_fork_child_has_no_page() {
        let Ok(page) = Page::of_this_thread() else { return dormouse_testkit::skip("no events here") };
        // SAFETY: a fork without handlers; the child makes system calls and reads atomics until its
        // end.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            let none = page.sequence().is_none();
            drop(page);
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!none)) };
        }
        assert!(
            dormouse_testkit::join(child as libc::pid_t).success(),
            "a signal: the child has touched the page"
        );
        assert!(page.sequence().is_some());
    }
}
