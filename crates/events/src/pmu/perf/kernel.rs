//! The calls of the kernel and the processor, behind a trait that tests imitate.
//!
//! # Safety
//!
//! Descriptors and pages are numbers in a [`Row`](super::row::Row) here, not owners. The row
//! removes one, so that no thread finds it any more, before it has it closed.
#![allow(unsafe_code)]

use std::fmt::Debug;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use dormouse_sys::environment;
use dormouse_sys::perf::{
    Attr, EventCount, KernelEvent, OpenEvent, Reading, Subject, ThisProcessor, UserPage, is_filtered,
    open_here,
};
use dormouse_sys::process::identity;

/// The locked memory that a kernel allows a user for each processor by default, in KiB.
const DEFAULT_KIB: usize = 516;

/// An open event of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    pub(super) fd: RawFd,
    /// Null if the kernel has to be asked each time.
    pub(super) page: *mut UserPage,
}

pub(super) trait Kernel: Debug + Send + Sync {
    /// Whether the calling thread may count this, and whether in user mode alone; else the reason.
    fn may(&self, counted: KernelEvent) -> Result<bool, String>;
    /// Opens an event of the calling thread.
    fn open(&self, counted: KernelEvent, user_only: bool) -> io::Result<Opened>;
    /// The counts behind a descriptor of any thread.
    fn read(&self, fd: RawFd) -> Option<EventCount>;
    /// The counts in a page of the calling thread, if it holds.
    ///
    /// # Safety
    ///
    /// It is of [`Kernel::open`] on this thread in this process, and not closed.
    unsafe fn look(&self, page: NonNull<UserPage>) -> Option<EventCount>;
    /// # Safety
    ///
    /// It comes from [`Kernel::open`], and no thread uses it any more.
    unsafe fn close(&self, opened: Opened);
    /// CPU time of the calling thread.
    fn clock(&self) -> u64;
    /// CPU time of another.
    fn clock_of(&self, tid: u32) -> Option<u64>;
    /// A number that is another one in a fork child; 0 where there is none.
    fn process(&self) -> u64;
    /// How many descriptors the process may have.
    fn limit(&self) -> u64;
}

#[derive(Debug)]
pub(super) struct Linux {
    pages: AtomicU32,
    /// A quarter of the user's locked memory, in pages: the clock takes another quarter, and the
    /// host needs some, too. A counter without a page is read by a system call.
    most_pages: AtomicU32,
}

impl Linux {
    pub(super) const fn new() -> Self {
        Self { pages: AtomicU32::new(0), most_pages: AtomicU32::new(0) }
    }

    /// The page of an event that can be read in user mode, within the budget.
    fn map(&self, event: BorrowedFd<'_>) -> Option<NonNull<UserPage>> {
        // A fork child must be recognised, or it would read pages that it does not have.
        if !UserPage::IS_KNOWN || self.process() == 0 {
            return None;
        }
        if self.pages.fetch_add(1, Ordering::Relaxed) < self.most_pages.load(Ordering::Relaxed)
            && let Ok(page) = UserPage::map(event)
        {
            // SAFETY: just mapped.
            if unsafe { page.as_ref() }.is_readable() {
                return Some(page);
            }
            // SAFETY: it comes from `map`, and no thread has seen it.
            unsafe { UserPage::unmap(page) };
        }
        self.pages.fetch_sub(1, Ordering::Relaxed);
        None
    }

    /// A fork child has no pages.
    pub(super) fn forget(&self) {
        self.pages.store(0, Ordering::Relaxed);
    }
}

/// In pages. (Linux: `perf_mmap` in `kernel/events/core.c`.)
fn quarter_of_locked_memory() -> u32 {
    let kib = fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb");
    let kib = kib.ok().and_then(|kib| kib.trim().parse().ok()).unwrap_or(DEFAULT_KIB);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let pages = kib / (rustix::param::page_size() / 1024);
    u32::try_from(pages.saturating_mul(processors) / 4).unwrap_or(u32::MAX)
}

/// Whether the calling thread, maybe one that serves a request, can open an event without being
/// killed by a filter for it. A filter may have been set since counting began, and one thread may
/// have a filter alone, so each thread checks. The check itself is a `prctl`, which a filter that
/// kills has to allow where these events are counted.
fn is_safe() -> bool {
    environment::variables().perf.as_deref().is_some_and(|value| value == "1") || !is_filtered()
}

fn attr(counted: KernelEvent, user_only: bool) -> Attr {
    let attr = Attr::count(counted);
    if user_only { attr.user_only() } else { attr }
}

impl Kernel for Linux {
    fn may(&self, counted: KernelEvent) -> Result<bool, String> {
        if !is_safe() {
            return Err("a seccomp filter might end the process for perf_event_open: where it only refuses, as those \
                 of containers do, DORMOUSE_PERF=1 has it tried"
                .to_owned());
        }
        self.most_pages.store(quarter_of_locked_memory(), Ordering::Relaxed);
        let event = OpenEvent::open_allowed(&attr(counted, false), Subject::ThisThread);
        event.map(|event| event.is_user_only()).map_err(|error| error.to_string())
    }

    fn open(&self, counted: KernelEvent, user_only: bool) -> io::Result<Opened> {
        if !is_safe() {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let event = open_here(&attr(counted, user_only))?;
        let page = if counted.is_hardware() { self.map(event.as_fd()) } else { None };
        Ok(Opened { fd: event.into_raw_fd(), page: page.map_or(ptr::null_mut(), NonNull::as_ptr) })
    }

    fn read(&self, fd: RawFd) -> Option<EventCount> {
        // SAFETY: open until it is taken out of its row, which waits for us.
        let event = unsafe { BorrowedFd::borrow_raw(fd) };
        Reading::of(event).ok().map(EventCount::from)
    }

    unsafe fn look(&self, page: NonNull<UserPage>) -> Option<EventCount> {
        // SAFETY: mapped, as the caller promises.
        unsafe { page.as_ref() }.read(&ThisProcessor)
    }

    unsafe fn close(&self, opened: Opened) {
        if let Some(page) = NonNull::new(opened.page) {
            // SAFETY: the caller's promise.
            unsafe { UserPage::unmap(page) };
            self.pages.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: of `into_raw_fd`, and ours alone as the caller promises.
        drop(unsafe { OwnedFd::from_raw_fd(opened.fd) });
    }

    fn clock(&self) -> u64 {
        dormouse_clock::thread_cpu_ns()
    }

    fn clock_of(&self, tid: u32) -> Option<u64> {
        dormouse_clock::thread_cpu_ns_of(tid)
    }

    fn process(&self) -> u64 {
        identity::number().map_or(0, NonZeroU64::get)
    }

    fn limit(&self) -> u64 {
        // Not rustix's, which takes for granted that the kernel answers: a filter may refuse.
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is a valid place.
        match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
            0 => limit.rlim_cur,
            _ => 0,
        }
    }
}
