//! One ring for each processor, into which all events there record.
//!
//! An inherited event has a ring only on one processor. So each thread gets an event on each
//! processor; all events of one processor share its ring, and the locked memory does not grow with
//! the threads. The ring belongs to an event of this program that counts nothing, so that it does
//! not end with a watched thread.
//!
//! # References
//!
//! Linux `kernel/events/core.c`: `perf_mmap` refuses an inherited event without a processor,
//! `perf_event_set_output` an event of another processor.

use std::num::NonZero;

use dormouse_sys::perf::{Attr, Buffer, Error, KernelEvent, OpenEvent, PerfRecord, Sampling, Subject};

/// The largest ring. A watch at its rate fills a small part of it between two passes, also with
/// copied stacks.
const LARGEST: usize = 4 << 20;

/// Every hit, with its callers.
const EVERY_HIT: Sampling =
    Sampling { every: NonZero::<u64>::MIN, life: false, callchain: true, stack_bytes: 0 };

/// The rings, with the processor of each.
#[derive(Debug)]
pub(super) struct Rings(Vec<(u32, Buffer)>);

impl Rings {
    /// Rings of `bytes` bytes together, or less if no more may be locked. Their events are kept
    /// [`Attr::apart`] if `apart`, and copy `stack_bytes` bytes of the stack.
    pub(super) fn open(cpus: &[u32], bytes: usize, apart: bool, stack_bytes: u16) -> Result<Self, Error> {
        let own = rustix::thread::gettid().as_raw_pid().cast_unsigned();
        let attr = Attr::count(KernelEvent::Dummy).user_only().disabled();
        let attr = if apart { attr.apart() } else { attr };
        let sampling = Sampling { stack_bytes: stack_bytes & !7, ..EVERY_HIT };
        let mut bytes = (bytes / cpus.len().max(1)).min(LARGEST);
        let mut rings = Vec::new();
        for &cpu in cpus {
            let subject = Subject::ThreadOnCpu { tid: own, cpu };
            loop {
                match Buffer::open(&attr, sampling, subject, bytes) {
                    Ok(buffer) => rings.push((cpu, buffer)),
                    Err(Error::LockedMemory { .. }) if bytes > rustix::param::page_size() => {
                        bytes /= 2;
                        continue;
                    }
                    // Switched off since.
                    Err(Error::NoSuchCpu(_)) => {}
                    Err(error) => return Err(error),
                }
                break;
            }
        }
        Ok(Self(rings))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The processor of the ring at this place.
    pub(super) fn cpu(&self, place: usize) -> u32 {
        self.0[place].0
    }

    /// Opens an event of a thread that records into the ring at this place.
    pub(super) fn open_event(&self, place: usize, attr: &Attr, tid: u32) -> Result<OpenEvent, Error> {
        let (cpu, ring) = &self.0[place];
        ring.open_into(attr, Subject::ThreadOnCpu { tid, cpu: *cpu })
    }

    /// Takes all records out: in the order of time within each processor.
    pub(super) fn drain(&mut self, mut each: impl FnMut(PerfRecord)) {
        self.0.iter_mut().for_each(|(_, ring)| ring.drain(&mut each));
    }
}
