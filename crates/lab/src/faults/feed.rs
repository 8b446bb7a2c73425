//! The kernel's records of page faults, of mappings and of the life of threads, in the order of
//! time.
//!
//! An inherited event has a buffer only on one processor, and is inherited only by what its thread
//! starts later. So the thread that will start the program has an event on each processor, and
//! descendants of the thread write into these buffers.
//!
//! # Order
//!
//! Each buffer is in order, all of them together are not. The latest moment that one pass over them
//! found was over before the next pass began, so after that one everything up to it is here and can
//! be told in order. Memory is bounded by what happens between two passes.

use std::num::NonZero;

use dormouse_sys::perf::{
    Attr, Buffer, Error, KernelEvent, PerfRecord, Sampling, Subject, What, online_cpus,
};

/// Bytes of all buffers together, where they may be locked, and of one, at most.
const ALL: usize = 128 << 20;
const LARGEST: usize = 32 << 20;
/// Every fault, and records of mappings and of the life of threads.
const SAMPLING: Sampling =
    Sampling { every: NonZero::<u64>::MIN, life: true, callchain: false, stack_bytes: 0 };

/// Buffers, and records that were read from them but not told yet.
#[derive(Debug)]
pub(super) struct Feed {
    /// Whether faults that the kernel takes for a process are missing, because they are not
    /// allowed.
    pub(super) user_only: bool,
    buffers: Vec<Buffer>,
    /// In order up to where the last pass began.
    pending: Vec<PerfRecord>,
    /// The latest moment of the pass before.
    latest: u64,
}

impl Feed {
    /// Opens buffers for all programs that the calling thread starts, from the start of each.
    pub(super) fn of_children() -> Result<Self, Error> {
        let mut attr = Attr::count(KernelEvent::PageFaults).inherited().from_exec();
        let mut feed = Self { user_only: false, buffers: Vec::new(), pending: Vec::new(), latest: 0 };
        let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let cpus = online_cpus();
        let mut bytes = (ALL / cpus.len().max(1)).min(LARGEST);
        for &cpu in &cpus {
            let subject = Subject::ThreadOnCpu { tid, cpu };
            let buffer = loop {
                match Buffer::open(&attr, SAMPLING, subject, bytes) {
                    Err(Error::Denied { .. }) if !feed.user_only => {
                        feed.user_only = true;
                        attr = attr.user_only();
                    }
                    // Not every user may lock this many.
                    Err(Error::LockedMemory { .. }) if bytes > rustix::param::page_size() => bytes /= 2,
                    // Switched off since.
                    Err(Error::NoSuchCpu { .. }) => break None,
                    result => break Some(result?),
                }
            };
            feed.buffers.extend(buffer);
        }
        Ok(feed)
    }

    /// Tells `tell` what is known to be in order.
    pub(super) fn pass(&mut self, tell: impl FnMut(&What)) {
        let limit = self.drain();
        self.tell_until(limit, tell);
    }

    /// Tells it everything that there is.
    pub(super) fn finish(&mut self, tell: impl FnMut(&What)) {
        self.drain();
        self.tell_until(u64::MAX, tell);
    }

    /// Reads all buffers; up to which moment everything is here now.
    fn drain(&mut self) -> u64 {
        let limit = self.latest;
        for buffer in &mut self.buffers {
            buffer.drain(|record| {
                self.latest = self.latest.max(record.time);
                self.pending.push(record);
            });
        }
        limit
    }

    fn tell_until(&mut self, limit: u64, mut tell: impl FnMut(&What)) {
        // Stable: records of one moment and one buffer stay in order.
        self.pending.sort_by_key(|record| record.time);
        let count = self.pending.partition_point(|record| record.time <= limit);
        for record in self.pending.drain(..count) {
            tell(&record.what);
        }
    }
}
