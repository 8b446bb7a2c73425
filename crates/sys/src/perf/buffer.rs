//! An event of which every n-th occurrence is recorded, into a ring shared with the kernel.
//!
//! # Invariants
//!
//! Only the kernel moves the head, only this reader the tail. The kernel does not write between the
//! two: while the ring is full it drops records, counts them, and writes a record of the loss once
//! there is room.
//!
//! # Safety
//!
//! The unsafe code is the mapping, which lives as long as the [`Buffer`], and copies out of it
//! between tail and head.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::attr::{Attr, Sampling};
use super::error::Error;
use super::event::OpenEvent;
use super::record::{HEADER, PerfRecord, What, parse};
use super::subject::Subject;

/// `data_head` and `data_tail` in `struct perf_event_mmap_page`.
const HEAD: usize = 1024;
const TAIL: usize = 1032;

/// An open event with its ring.
#[derive(Debug)]
pub struct Buffer {
    event: OpenEvent,
    sampling: Sampling,
    /// Whether its samples have a reading.
    is_apart: bool,
    /// One page of bookkeeping, then the ring.
    base: NonNull<u8>,
    page: usize,
    /// Bytes of the ring, a power of two.
    ring: usize,
}

// SAFETY: the mapping is the `Buffer`'s own, and any thread may read it; the tail moves by `&mut`
// alone.
unsafe impl Send for Buffer {}
// SAFETY: as above; by `&` nothing in the mapping is read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Opens an event that records into a ring of at least `bytes` bytes (the next power of two of
    /// whole pages).
    ///
    /// # Errors
    ///
    /// Those of [`OpenEvent::open`]; [`Error::Unplaced`] for an inherited event without a
    /// processor, [`Error::LockedMemory`] if the ring is too large.
    pub fn open(attr: &Attr, sampling: Sampling, subject: Subject, bytes: usize) -> Result<Self, Error> {
        if attr.is_inherited() && !subject.has_cpu() {
            return Err(Error::Unplaced);
        }
        let event = OpenEvent::open(&attr.sampled(sampling), subject)?;
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
        Ok(Self { event, sampling, is_apart: attr.is_apart(), base, page, ring })
    }

    /// The event, to switch it and to read its count.
    pub fn event(&self) -> &OpenEvent {
        &self.event
    }

    /// Opens another event that records into this ring, on the processor of the ring's own event.
    /// It may be for any thread, threads may inherit it, and it samples as the ring's own event
    /// does.
    ///
    /// # Errors
    ///
    /// Those of [`OpenEvent::open`]; [`Error::Kernel`] for another processor.
    pub fn open_into(&self, attr: &Attr, subject: Subject) -> Result<OpenEvent, Error> {
        let attr = if self.is_apart { attr.apart() } else { *attr };
        let event = OpenEvent::open(&attr.sampled(self.sampling), subject)?;
        event.record_into(&self.event)?;
        Ok(event)
    }

    /// Removes the records and calls `each` with them, in the order in which they were written.
    pub fn drain(&mut self, mut each: impl FnMut(PerfRecord)) {
        // SAFETY: inside the first page, aligned, and only accessed atomically.
        let (head, tail) = unsafe {
            (
                self.base.add(HEAD).cast::<AtomicU64>().as_ref(),
                self.base.add(TAIL).cast::<AtomicU64>().as_ref(),
            )
        };
        let mut at = tail.load(Ordering::Relaxed);
        // Pairs with the kernel's barrier before it moves the head: the records before it are
        // written.
        let end = head.load(Ordering::Acquire);
        let mut record = Vec::new();
        while at < end {
            self.copy(at, HEADER, &mut record);
            let size = usize::from(u16::from_ne_bytes([record[6], record[7]]));
            if size < HEADER || size as u64 > end - at {
                // No kernel writes this; the place of the next record cannot be known.
                each(PerfRecord { time: 0, what: What::Lost(1) });
                at = end;
                break;
            }
            self.copy(at, size, &mut record);
            parse(&record, self.is_apart).into_iter().for_each(&mut each);
            at += size as u64;
        }
        // Pairs with the kernel's barrier after it reads the tail: the bytes before it are copied.
        tail.store(at, Ordering::Release);
    }

    /// Copies `len` bytes from position `at` on, round the end of the ring.
    fn copy(&self, at: u64, len: usize, into: &mut Vec<u8>) {
        let from = at as usize & (self.ring - 1);
        let first = len.min(self.ring - from);
        into.clear();
        into.reserve(len);
        // SAFETY: both pieces lie in the ring, between tail and head, where the kernel does not
        // write; `into` has room for `len` bytes, all of which are written.
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
    use std::num::NonZero;

    use rustix::mm::{Advice, madvise, mmap_anonymous};
    use rustix::param::page_size;

    use super::*;
    use crate::perf::KernelEvent;
    use crate::process::identity;

    const EVERY: Sampling =
        Sampling { every: NonZero::<u64>::MIN, life: false, callchain: false, stack_bytes: 0 };

    /// New memory, whose pages are touched only on request.
    struct Fresh {
        base: *mut u8,
        pages: usize,
    }

    impl Fresh {
        fn of(pages: usize) -> Self {
            let len = pages * page_size();
            // SAFETY: a new mapping. The advice is that a page be a small one, and that no child
            // has it: a fork of another test would have pages faulted in once more.
            let base = unsafe {
                let base = mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )
                .unwrap();
                let _ = madvise(base, len, Advice::LinuxNoHugepage);
                let _ = madvise(base, len, Advice::LinuxDontFork);
                base
            };
            Self { base: base.cast(), pages }
        }

        fn touch(&self) {
            for page in 0..self.pages {
                // SAFETY: inside the mapping.
                unsafe { self.base.add(page * page_size()).write_volatile(1) };
            }
        }

        fn has(&self, addr: u64) -> bool {
            (addr as usize).checked_sub(self.base.addr()).is_some_and(|at| at < self.pages * page_size())
        }
    }

    impl Drop for Fresh {
        fn drop(&mut self) {
            // SAFETY: mapped in `of`.
            let _ = unsafe { munmap(self.base.cast(), self.pages * page_size()) };
        }
    }

    /// Page faults of this thread alone, or the reason why not.
    fn faults(bytes: usize) -> Option<Buffer> {
        let attr = Attr::count(KernelEvent::PageFaults).user_only();
        Buffer::open(&attr, EVERY, Subject::ThisThread, bytes)
            .inspect_err(|error| dormouse_testkit::skip(format!("no page faults here: {error}")))
            .ok()
    }

    fn drained(buffer: &mut Buffer) -> Vec<What> {
        let mut all = Vec::new();
        buffer.drain(|record| all.push(record.what));
        all
    }

    #[test]
    fn every_fault_is_recorded_once() {
        let Some(mut buffer) = faults(1 << 16) else { return };
        let fresh = Fresh::of(8);
        let own = identity::tid();
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
    fn records_that_do_not_fit_are_counted() {
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
    fn a_buffer_that_cannot_work_is_refused() {
        let attr = Attr::count(KernelEvent::PageFaults).user_only();
        let unplaced = Buffer::open(&attr.inherited(), EVERY, Subject::ThisThread, 1);
        assert!(matches!(unplaced, Err(Error::Unplaced)), "{unplaced:?}");
        if faults(1).is_some() {
            let huge = Buffer::open(&attr, EVERY, Subject::ThisThread, usize::MAX);
            assert!(matches!(huge, Err(Error::LockedMemory { .. })), "{huge:?}");
        }
    }
}
