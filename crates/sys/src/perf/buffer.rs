//! An event whose every n-th happening is recorded, into a ring that the kernel shares with us.
//!
//! # Invariants
//!
//! The kernel alone moves the head, this reader alone the tail. What lies between the two is not written: a full
//! ring loses what comes next, counts it, and says so in a record once there is room.
//!
//! # Safety
//!
//! The unsafe code is the mapping, which lives as long as the [`Buffer`], and copies out of it between tail and head.
#![allow(unsafe_code)]

use std::io;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::record::{HEADER, parse};
use super::{Attr, Error, Event, Record, Subject, What};

/// `data_head` and `data_tail` in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// What to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Every so many events.
    pub every: NonZero<u64>,
    /// Also new mappings, threads and processes, and their ends.
    pub life: bool,
}

/// An open event with its ring.
#[derive(Debug)]
pub struct Buffer {
    event: Event,
    /// One page of bookkeeping, then the ring.
    base: NonNull<u8>,
    page: usize,
    /// Bytes of the ring, a power of two.
    ring: usize,
}

impl Buffer {
    /// Opens an event that records into a ring of at least so many bytes (the next power of two of whole pages).
    ///
    /// # Errors
    ///
    /// As [`Event::open`]; [`Error::Unplaced`] for an inherited event without a processor, [`Error::LockedMemory`]
    /// where the ring is too large.
    pub fn open(attr: &Attr, sampling: Sampling, subject: Subject, bytes: usize) -> Result<Self, Error> {
        if attr.is_inherited() && !subject.has_cpu() {
            return Err(Error::Unplaced);
        }
        let event = Event::open(&attr.sampled(sampling.every.get(), sampling.life), subject)?;
        let page = rustix::param::page_size();
        let too_large = Error::LockedMemory { name: attr.name, bytes };
        let pages = bytes.div_ceil(page).max(1).checked_next_power_of_two();
        let Some(ring) = pages.and_then(|pages| pages.checked_mul(page)) else { return Err(too_large) };
        let Some(mapped) = ring.checked_add(page) else { return Err(too_large) };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), mapped, protection, MapFlags::SHARED, &event, 0) };
        let base = match base.map(|base| NonNull::new(base.cast())) {
            Ok(Some(base)) => base,
            Ok(None) => return Err(event.failed("map", io::Error::other("a mapping at address 0"))),
            Err(rustix::io::Errno::PERM) => return Err(too_large),
            Err(errno) => return Err(event.failed("map", errno.into())),
        };
        Ok(Self { event, base, page, ring })
    }

    /// The event, to switch and to count.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Takes out what there is, in the order in which it was written.
    pub fn drain(&mut self, mut each: impl FnMut(Record)) {
        // SAFETY: inside the first page, aligned, and only accessed atomically.
        let (head, tail) = unsafe {
            (
                self.base.add(HEAD).cast::<AtomicU64>().as_ref(),
                self.base.add(TAIL).cast::<AtomicU64>().as_ref(),
            )
        };
        let mut at = tail.load(Ordering::Relaxed);
        // Pairs with the kernel's barrier before it moves the head.
        let end = head.load(Ordering::Acquire);
        let mut record = Vec::new();
        while at < end {
            self.copy(at, HEADER, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < HEADER || size as u64 > end - at {
                // Not what a kernel writes; where the next one begins cannot be known.
                each(Record { time: 0, what: What::Lost(1) });
                at = end;
                break;
            }
            self.copy(at, size, &mut record);
            parse(&record).into_iter().for_each(&mut each);
            at += size as u64;
        }
        // Pairs with the kernel's barrier after it reads the tail.
        tail.store(at, Ordering::Release);
    }

    /// Copies `len` bytes from position `at` on, round the end of the ring.
    fn copy(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        let from = at as usize & (self.ring - 1);
        let first = len.min(self.ring - from);
        into.clear();
        into.reserve(len);
        // SAFETY: both pieces lie in the ring, between tail and head, where the kernel does not write; `into`
        // has room for `len` bytes, all of which are written.
        unsafe {
            let data = self.base.add(self.page);
            into.as_mut_ptr().copy_from_nonoverlapping(data.add(from).as_ptr(), first);
            into.as_mut_ptr().add(first).copy_from_nonoverlapping(data.as_ptr(), len - first);
            into.set_len(len);
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length; no reference into it is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.page + self.ring) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{Advice, madvise, mmap_anonymous};

    use super::*;
    use crate::perf::Counted;

    const EVERY: Sampling = Sampling { every: NonZero::<u64>::MIN, life: false };

    /// New memory, touched page by page when it is told to.
    struct Fresh {
        base: *mut u8,
        pages: usize,
    }

    impl Fresh {
        fn of(pages: usize) -> Self {
            let len = pages * 4096;
            // SAFETY: a new mapping, whose advice is only that a page be a small one.
            let base = unsafe {
                let base = mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
                .unwrap();
                let _ = madvise(base, len, Advice::LinuxNoHugepage);
                base
            };
            Self { base: base.cast(), pages }
        }

        fn touch(&self) {
            for page in 0..self.pages {
                // SAFETY: inside the mapping.
                unsafe { self.base.add(page * 4096).write_volatile(1) };
            }
        }

        fn has(&self, addr: u64) -> bool {
            (addr as usize).checked_sub(self.base.addr()).is_some_and(|at| at < self.pages * 4096)
        }
    }

    impl Drop for Fresh {
        fn drop(&mut self) {
            // SAFETY: mapped in `of`.
            let _ = unsafe { munmap(self.base.cast(), self.pages * 4096) };
        }
    }

    /// Page faults of this thread alone, or the reason why not.
    fn faults(bytes: usize) -> Option<Buffer> {
        let attr = Attr::count(Counted::PageFaults).user_only();
        Buffer::open(&attr, EVERY, Subject::ThisThread, bytes)
            .inspect_err(|error| println!("1 skipped: no page faults here: {error}"))
            .ok()
    }

    fn drained(buffer: &mut Buffer) -> Vec<What> {
        let mut all = Vec::new();
        buffer.drain(|record| all.push(record.what));
        all
    }

    #[test]
    fn every_fault_is_recorded_with_thread_and_address_and_only_once() {
        let Some(mut buffer) = faults(1 << 16) else { return };
        let fresh = Fresh::of(8);
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        // Several times round the ring.
        for round in 0..200 {
            let fresh = if round == 0 { &fresh } else { &Fresh::of(8) };
            fresh.touch();
            let seen = drained(&mut buffer);
            let here = seen.iter().filter(
                |what| matches!(what, What::Sample { tid, addr, .. } if *tid == own && fresh.has(*addr)),
            );
            assert_eq!(here.count(), 8, "round {round}: {seen:?}");
        }
        assert!(buffer.event().read().unwrap().value >= 1600);
    }

    #[test]
    fn what_does_not_fit_is_counted_as_lost() {
        let Some(mut buffer) = faults(1) else { return };
        Fresh::of(1000).touch();
        let fitted = drained(&mut buffer).len();
        assert!(fitted < 1000, "{fitted}");
        Fresh::of(1).touch();
        let lost: u64 =
            drained(&mut buffer).iter().map(|what| if let What::Lost(n) = what { *n } else { 0 }).sum();
        assert!(lost >= 1000 - fitted as u64, "{lost} lost, {fitted} fitted");
    }

    #[test]
    fn a_buffer_that_the_kernel_would_refuse_is_refused_by_name() {
        let attr = Attr::count(Counted::PageFaults).user_only();
        let unplaced = Buffer::open(&attr.inherited(), EVERY, Subject::ThisThread, 1);
        assert!(matches!(unplaced, Err(Error::Unplaced)), "{unplaced:?}");
        if faults(1).is_some() {
            let huge = Buffer::open(&attr, EVERY, Subject::ThisThread, usize::MAX);
            assert!(matches!(huge, Err(Error::LockedMemory { .. })), "{huge:?}");
        }
    }
}
