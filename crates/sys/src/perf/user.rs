//! A counter of the processor read in user mode, through the page that the kernel keeps beside its
//! event.
//!
//! While the event is in the processor's unit, the page contains the register, the number to add to
//! it, and the time for which the event had to wait for its turn until then. The kernel rewrites
//! the page whenever that changes, under a sequence number (`perf_event_open(2)`, `struct
//! perf_event_mmap_page`).
//!
//! The page also contains how long the event was enabled, but only until it was last rewritten, and
//! a machine whose clock the kernel does not trust (every KVM guest) offers no way to extend that
//! to now. The waiting time needs no extension: it does not grow while the event counts. So a read
//! returns the waiting time; a caller with a clock of the thread can compute the rest.
//!
//! Experimental: the protocol is tested on pages that imitate the kernel's, not on a processor.
//!
//! # Safety
//!
//! `rdpmc` faults unless the kernel permits it to this process. The page contains that permission,
//! which is checked just before. If an administrator forbids it to all
//! (`/sys/bus/event_source/devices/cpu/rdpmc`) in these few instructions, the process ends. A page
//! belongs to the thread that made its event, and a fork child has no such mapping: the caller of
//! [`UserPage`] must take care of both.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::event::Reading;
use crate::arch;

/// `cap_user_rdpmc` of the capabilities.
const RDPMC: u64 = 1 << 2;

/// Rewritings that a read sees before it gives up: more than a thread can be switched in so short a
/// time.
const TRIES: usize = 8;

/// The fields of `struct perf_event_mmap_page` that are used here.
#[derive(Debug, Default)]
#[repr(C)]
pub struct UserPage {
    version: u32,
    compat_version: u32,
    lock: AtomicU32,
    index: AtomicU32,
    offset: AtomicI64,
    enabled_ns: AtomicU64,
    running_ns: AtomicU64,
    capabilities: AtomicU64,
    width: AtomicU16,
}

const _: () = {
    assert!(std::mem::offset_of!(UserPage, lock) == 8);
    assert!(std::mem::offset_of!(UserPage, index) == 12);
    assert!(std::mem::offset_of!(UserPage, offset) == 16);
    assert!(std::mem::offset_of!(UserPage, running_ns) == 32);
    assert!(std::mem::offset_of!(UserPage, capabilities) == 40);
    assert!(std::mem::offset_of!(UserPage, width) == 48);
};

/// The count of an event, and the time for which it waited for its turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventCount {
    /// The count itself, not scaled.
    pub count: u64,
    /// How long the event was enabled without being counted, in nanoseconds.
    pub waited_ns: u64,
}

impl From<Reading> for EventCount {
    fn from(reading: Reading) -> Self {
        // The kernel rounds the two separately, so the difference may be negative.
        Self { count: reading.value, waited_ns: reading.enabled_ns.saturating_sub(reading.running_ns) }
    }
}

/// Reads the unit's registers: the processor, or a test that imitates it.
pub trait Processor {
    /// Register `number`, in the numbering of `rdpmc`.
    ///
    /// # Safety
    ///
    /// The kernel permits it to this process.
    unsafe fn register(&self, number: u32) -> u64;
}

/// The real processor.
#[derive(Debug, Clone, Copy)]
pub struct ThisProcessor;

impl Processor for ThisProcessor {
    #[inline]
    unsafe fn register(&self, number: u32) -> u64 {
        // SAFETY: permitted, as the caller promises.
        unsafe { arch::counter(number) }
    }
}

impl UserPage {
    /// Whether registers can be read on this kind of processor.
    pub const IS_KNOWN: bool = arch::READS_COUNTERS;

    /// Maps the page of an event of the calling thread. It stays until [`UserPage::unmap`].
    ///
    /// # Cost
    ///
    /// Uses a page of the user's locked memory.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn map(event: BorrowedFd<'_>) -> io::Result<NonNull<Self>> {
        let size = rustix::param::page_size();
        // SAFETY: a new mapping, wherever the kernel likes.
        let page = unsafe { mmap(ptr::null_mut(), size, ProtFlags::READ, MapFlags::SHARED, event, 0) }?;
        NonNull::new(page.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Unmaps a page.
    ///
    /// # Safety
    ///
    /// `page` comes from [`UserPage::map`] in this very process, and no thread uses it any more.
    pub unsafe fn unmap(page: NonNull<Self>) {
        // SAFETY: a mapping of this size, as the caller promises.
        let _unmapped = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
    }

    /// The number that the kernel moves at each rewriting.
    #[inline]
    pub(super) fn sequence(&self) -> u32 {
        self.lock.load(Ordering::Relaxed)
    }

    /// Whether the kernel permits reads in user mode now. That may change at any time.
    pub fn is_readable(&self) -> bool {
        Self::IS_KNOWN && self.capabilities.load(Ordering::Relaxed) & RDPMC != 0
    }

    /// The count until now; `None` where only the kernel can read it: the event waits for its turn,
    /// or reads in user mode are not permitted (any more). Only on the thread that made the event.
    #[inline]
    pub fn read(&self, processor: &impl Processor) -> Option<EventCount> {
        for _ in 0..TRIES {
            // Pairs with the kernel's writes before the number moved, which the kernel makes on
            // this very processor.
            let before = self.lock.load(Ordering::Acquire);
            let index = self.index.load(Ordering::Relaxed);
            if index == 0 || !self.is_readable() {
                return None;
            }
            let offset = self.offset.load(Ordering::Relaxed);
            let waited_ns = self
                .enabled_ns
                .load(Ordering::Relaxed)
                .saturating_sub(self.running_ns.load(Ordering::Relaxed));
            let width = self.width.load(Ordering::Relaxed);
            // SAFETY: the page has just said that the kernel permits it.
            let register = unsafe { processor.register(index - 1) };
            // Pairs with the kernel's barrier after it moves the number: a rewriting since then
            // shows in the next load.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.lock.load(Ordering::Relaxed) == before {
                let count = offset.wrapping_add(extended(register, width)).cast_unsigned();
                return Some(EventCount { count, waited_ns });
            }
        }
        None
    }
}

/// A register of `width` bits as a signed number.
fn extended(register: u64, width: u16) -> i64 {
    let above = 64_u32.saturating_sub(u32::from(width)).min(63);
    (register << above).cast_signed() >> above
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A unit whose registers show their numbers, and that does something to the page at each
    /// reading.
    struct Unit<'a>(&'a dyn Fn(u32) -> u64);

    impl Processor for Unit<'_> {
        unsafe fn register(&self, number: u32) -> u64 {
            (self.0)(number)
        }
    }

    fn page(index: u32, offset: i64, width: u16) -> UserPage {
        UserPage {
            index: index.into(),
            offset: offset.into(),
            enabled_ns: 100.into(),
            running_ns: 70.into(),
            capabilities: RDPMC.into(),
            width: width.into(),
            ..UserPage::default()
        }
    }

    /// Whether registers are read on this kind of processor.
    #[track_caller]
    fn are_read() -> bool {
        if !UserPage::IS_KNOWN {
            dormouse_testkit::skip("the kernel alone reads counters on this processor");
        }
        UserPage::IS_KNOWN
    }

    #[test]
    fn a_register_is_extended_from_its_width() {
        for (register, width, expected) in [
            (5, 48, 5),
            (0xffff_ffff_fffb, 48, -5),
            (0x8000_0000_0000, 48, i64::MIN >> 16),
            (0x1_0000_0000_0001, 48, 1),
            (u64::MAX, 64, -1),
            (3, 40, 3),
        ] {
            assert_eq!(extended(register, width), expected, "{register:#x} of {width} bits");
        }
    }

    #[test]
    fn the_named_register_is_added_to_the_offset() {
        if !are_read() {
            return;
        }
        let seen = Cell::new(None);
        // Overflowed once: the kernel has counted it in the offset, and the register begins below
        // zero.
        let held = page(4, 1000, 48).read(&Unit(&|number| {
            seen.set(Some(number));
            0xffff_ffff_fffb
        }));
        assert_eq!((held, seen.get()), (Some(EventCount { count: 995, waited_ns: 30 }), Some(3)));
    }

    #[test]
    fn without_permission_no_register_is_touched() {
        let forbidden = Unit(&|_| unreachable!("a fault"));
        assert_eq!(page(0, 1000, 48).read(&forbidden), None, "it waits for its turn");
        let page = page(1, 1000, 48);
        page.capabilities.store(!RDPMC, Ordering::Relaxed);
        assert_eq!(page.read(&forbidden), None);
    }

    #[test]
    fn a_permission_withdrawn_meanwhile_is_noticed() {
        if !are_read() {
            return;
        }
        let page = page(1, 0, 48);
        let looks = Cell::new(0);
        let held = page.read(&Unit(&|_| {
            looks.set(looks.get() + 1);
            page.capabilities.store(0, Ordering::Relaxed);
            page.lock.fetch_add(2, Ordering::Relaxed);
            7
        }));
        assert_eq!((held, looks.get()), (None, 1));
    }

    #[test]
    fn a_page_rewritten_meanwhile_is_read_again() {
        if !are_read() {
            return;
        }
        let page = page(1, 0, 48);
        let looks = Cell::new(0);
        let held = page.read(&Unit(&|_| {
            looks.set(looks.get() + 1);
            if looks.get() < 3 {
                page.lock.fetch_add(2, Ordering::Relaxed);
                page.offset.store(looks.get(), Ordering::Relaxed);
            }
            7
        }));
        assert_eq!((held.unwrap().count, looks.get()), (7 + 2, 3));
        assert_eq!(page.read(&Unit(&|_| u64::from(page.lock.fetch_add(2, Ordering::Relaxed)))), None);
        page.lock.store(1, Ordering::Relaxed);
        assert_eq!(page.read(&Unit(&|_| 7)), None, "it is being rewritten");
    }

    /// The kernel rewrites the page on the thread's own processor; another thread is harder.
    #[test]
    fn a_read_beside_rewritings_is_consistent() {
        if !are_read() {
            return;
        }
        let (page, stop) = (&page(1, 0, 48), &AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    page.lock.store(2 * n - 1, Ordering::Relaxed);
                    fence(Ordering::Release);
                    page.offset.store(i64::from(n), Ordering::Relaxed);
                    page.enabled_ns.store(u64::from(n) * 2, Ordering::Relaxed);
                    page.running_ns.store(u64::from(n), Ordering::Relaxed);
                    page.lock.store(2 * n, Ordering::Release);
                    // Between two, as between two switches.
                    (0..50).for_each(|_| std::hint::spin_loop());
                }
            });
            let mut seen = 0;
            while seen < 10_000 {
                // Before the kernel has first rewritten the page, it contains something else.
                let held = page.read(&Unit(&|_| 0)).filter(|held| held.count > 0);
                if let Some(EventCount { count, waited_ns }) = held {
                    assert_eq!(count, waited_ns);
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
