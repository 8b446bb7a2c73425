//! The page of a perf event as proof: its sequence number moves whenever the thread is scheduled
//! in.
//!
//! The price is paid at the kernel's switches (half a microsecond to one each) and in the user's
//! locked memory, which the host needs as well: at most a quarter of it is used, and later threads
//! get the next tier. No descriptor stays open.
//!
//! # Safety
//!
//! The unsafe code reads the thread's page. Only that thread maps, uses and unmaps it. It is
//! replaced only outside of reads ([`Proof::detach`]), so no reference to it is alive then: a
//! signal handler that reads has returned before the code that it interrupted goes on.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fs;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dormouse_sys::perf::{Page, is_filtered};

use super::proof::{Proof, falls_on_blocking_alone};

/// The kernel's default of locked memory for each processor, in KiB.
const DEFAULT_KIB: usize = 516;

/// The reason why the tier is not tried.
pub(super) const UNSAFE: &str =
    "a seccomp filter may end the process for it; DORMOUSE_CLOCK=page or force() does try";

/// The program or the environment has asked for this tier by name.
static ASKED_FOR: AtomicBool = AtomicBool::new(false);
/// Pages in use.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Pages to be used at most; 0 before the test.
static MOST: AtomicUsize = AtomicUsize::new(0);

pub(super) struct Thread {
    /// Not dropped by itself: a thread-local with a destructor would have to be registered at its
    /// first use.
    page: UnsafeCell<ManuallyDrop<Option<Page>>>,
    /// The page's number when it was armed.
    seen: Cell<u32>,
    at_exit: fn(),
}

impl Thread {
    pub(super) const fn new(at_exit: fn()) -> Self {
        Self { page: UnsafeCell::new(ManuallyDrop::new(None)), seen: Cell::new(0), at_exit }
    }

    #[inline(always)]
    fn sequence(&self) -> Option<u32> {
        // SAFETY: no code replaces the page while we look at it, see the module.
        unsafe { (*self.page.get()).as_ref() }.and_then(Page::sequence)
    }

    fn replace(&self, page: Option<Page>) -> Option<Page> {
        // SAFETY: no reference is alive, see the module.
        unsafe { std::mem::replace(&mut **self.page.get(), page) }
    }
}

impl Proof for Thread {
    fn test(&self) -> Result<(), String> {
        let kib = fs::read_to_string("/proc/sys/kernel/perf_event_mlock_kb")
            .ok()
            .and_then(|kib| kib.trim().parse().ok())
            .unwrap_or(DEFAULT_KIB);
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        MOST.store(quarter(kib, cpus, rustix::param::page_size()), Ordering::Relaxed);
        if !dormouse_sys::thread::on_thread_exit(self.at_exit) {
            return Err("there is no hook left for the ends of threads".into());
        }
        self.attach()?;
        let said = falls_on_blocking_alone(self, "an event's page");
        self.detach();
        said
    }

    fn attach(&self) -> Result<(), &'static str> {
        if self.sequence().is_some() {
            return Ok(());
        }
        if !is_safe() {
            return Err(UNSAFE);
        }
        // Without a block no hook would unmap it at the thread's end.
        dormouse_sys::thread::current().ok_or("this thread is at its end, or there are too many")?;
        if USED.fetch_add(1, Ordering::Relaxed) >= MOST.load(Ordering::Relaxed) {
            USED.fetch_sub(1, Ordering::Relaxed);
            return Err("a quarter of the user's locked memory is in use (kernel.perf_event_mlock_kb)");
        }
        match Page::of_this_thread() {
            Ok(page) => {
                // One from before a fork is no page any more.
                drop(self.replace(Some(page)));
                Ok(())
            }
            Err(error) => {
                USED.fetch_sub(1, Ordering::Relaxed);
                Err(match error.raw_os_error() {
                    Some(libc::EACCES) => "the kernel allows no events (kernel.perf_event_paranoid)",
                    Some(libc::EPERM) => {
                        "events are not permitted, or the user's locked memory is used up (seccomp, kernel.perf_event_mlock_kb)"
                    }
                    Some(libc::ENOSYS) => "this kernel has no events, or a filter hides them (seccomp)",
                    Some(libc::EMFILE | libc::ENFILE) => "there was no descriptor left (ulimit -n)",
                    _ => "the kernel refused an event or its page",
                })
            }
        }
    }

    fn arm(&self) -> bool {
        match self.sequence() {
            Some(now) => {
                self.seen.set(now);
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn holds(&self, _tsc: u64) -> bool {
        self.sequence() == Some(self.seen.get())
    }

    fn detach(&self) {
        if let Some(page) = self.replace(None) {
            // In a fork child it was not counted.
            if page.sequence().is_some() {
                USED.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// Says whether the tier is wanted by name.
pub(super) fn ask(wanted: bool) {
    ASKED_FOR.store(wanted, Ordering::Relaxed);
}

/// Whether opening an event is sure not to end the process, or the tier is wanted by name.
pub(super) fn is_safe() -> bool {
    ASKED_FOR.load(Ordering::Relaxed) || !is_filtered()
}

/// The pages in a quarter of the user's budget. (Linux: `perf_mmap` in `kernel/events/core.c`.)
fn quarter(kib: usize, cpus: usize, page: usize) -> usize {
    kib * 1024 / page * cpus / 4
}

/// A fork child has none of its parent's pages.
pub(super) fn forget() {
    USED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quarter_is_counted_in_pages() {
        assert_eq!(quarter(516, 2, 4096), 64);
        assert_eq!(quarter(0, 8, 4096), 0);
    }

    #[test]
    fn a_thread_without_a_page_proves_nothing() {
        let thread = Thread::new(|| {});
        assert!(!thread.arm() && !thread.holds(0));
    }
}
