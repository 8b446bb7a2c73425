//! A byte ring for one writing thread and its signal handlers, and the fixed pool of them.
//!
//! The writer never waits: a full ring, a missing ring, and a signal handler that comes in the middle of a
//! write each drop the record and count it. One reader at a time drains a ring; two are kept apart by a
//! flag, not by waiting.
//!
//! # Invariants
//!
//! 1. `tail <= head <= tail + RING_BYTES`; positions only grow, `position % RING_BYTES` is the place.
//! 2. The owner alone moves `head`, the holder of `draining` alone moves `tail`.
//! 3. A ring changes its owner only while it is `FREE`, or `ORPHANED` and not being drained.
//!
//! # Async-signal-safety
//!
//! [`push`] is signal-safe once the thread has its block (see [`crate::thread`]).
//!
//! # Safety
//!
//! The unsafe code is the copy in and out of the ring's bytes, which invariants 1 and 2 keep apart.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::rendezvous;
use crate::thread::{self, ThreadBlock};

/// Bytes in one ring.
pub const RING_BYTES: usize = 64 * 1024;
/// Rings in the pool; further threads drop and count.
pub const RINGS: usize = 128;

const FREE: u8 = 0;
const OWNED: u8 = 1;
const ORPHANED: u8 = 2;
const CLAIMED: u8 = 3;

#[derive(Debug)]
#[repr(C, align(128))]
struct Ring {
    state: AtomicU8,
    tid: AtomicU32,
    start: AtomicU64,
    draining: AtomicBool,
    writing: AtomicBool,
    head: AtomicU64,
    dropped: AtomicU64,
    tail: AtomicU64,
    bytes: UnsafeCell<[u8; RING_BYTES]>,
}

// SAFETY: the bytes between `tail` and `head` are only read, by the holder of `draining`; the others are only
// written, by the owner under `writing` (invariants 1 and 2).
unsafe impl Sync for Ring {}

/// All rings. One for the process: the leader's (see [`crate::rendezvous`]).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pool {
    rings: [Ring; RINGS],
    /// How often a ring was given back.
    given_back: AtomicU32,
    /// Records that found no ring.
    homeless: AtomicU64,
}

static POOL: Pool = Pool {
    rings: [const { Ring::new() }; RINGS],
    given_back: AtomicU32::new(1),
    homeless: AtomicU64::new(0),
};

pub(crate) const fn own_pool() -> &'static Pool {
    &POOL
}

/// Whose records a drain hands over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Writer {
    /// The thread's id.
    pub tid: u32,
    /// Its start number.
    pub start: u64,
}

impl Ring {
    #[expect(clippy::large_stack_arrays, reason = "evaluated at compile time, for a static")]
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(FREE),
            tid: AtomicU32::new(0),
            start: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            writing: AtomicBool::new(false),
            head: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            bytes: UnsafeCell::new([0; RING_BYTES]),
        }
    }

    fn push(&self, record: &[u8]) -> bool {
        if self.writing.load(Ordering::Relaxed) {
            // A signal handler over its own thread's write.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.writing.store(true, Ordering::Relaxed);
        // The handler is on this thread: keeping the compiler in order is enough.
        compiler_fence(Ordering::SeqCst);
        let head = self.head.load(Ordering::Relaxed);
        // Pairs with the release store of `tail` in `drain`: freed bytes have been read.
        let used = head - self.tail.load(Ordering::Acquire);
        let fits = record.len() <= RING_BYTES - used as usize;
        if fits {
            let at = head as usize % RING_BYTES;
            let first = record.len().min(RING_BYTES - at);
            let bytes = self.bytes.get().cast::<u8>();
            // SAFETY: both parts lie inside `bytes`, and in the free part of the ring (invariant 1), which
            // only the owner touches.
            unsafe {
                std::ptr::copy_nonoverlapping(record.as_ptr(), bytes.add(at), first);
                std::ptr::copy_nonoverlapping(record.as_ptr().add(first), bytes, record.len() - first);
            }
            // Pairs with the acquire load of `head` in `drain`.
            self.head.store(head + record.len() as u64, Ordering::Release);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.writing.store(false, Ordering::Relaxed);
        fits
    }

    /// Appends what is in the ring to `out`, and says whose it is; `None` if another reader is at it.
    fn drain(&self, out: &mut Vec<u8>) -> Option<Writer> {
        if self.draining.swap(true, Ordering::Acquire) {
            return None;
        }
        // A claimer takes `draining` too: while we hold it, the ring does not change its owner.
        let writer =
            Writer { tid: self.tid.load(Ordering::Relaxed), start: self.start.load(Ordering::Relaxed) };
        let tail = self.tail.load(Ordering::Relaxed);
        // Pairs with the release store of `head` in `push`.
        let head = self.head.load(Ordering::Acquire);
        let (length, at) = ((head - tail) as usize, tail as usize % RING_BYTES);
        let first = length.min(RING_BYTES - at);
        let bytes = self.bytes.get().cast::<u8>().cast_const();
        // SAFETY: `tail..head` has been published by `push` and is not written before `tail` moves.
        unsafe {
            out.extend_from_slice(std::slice::from_raw_parts(bytes.add(at), first));
            out.extend_from_slice(std::slice::from_raw_parts(bytes, length - first));
        }
        // Pairs with the acquire load of `tail` in `push`.
        self.tail.store(head, Ordering::Release);
        if self.state.load(Ordering::Acquire) == ORPHANED {
            // The owner is gone and wrote nothing after ORPHANED; what it had written before may be newer
            // than our `head`, so the ring goes free only when it is empty.
            if self.head.load(Ordering::Acquire) == head {
                // Not a plain store: a claimer may hold the state, and puts ORPHANED back when it sees us.
                let _ = self.state.compare_exchange(ORPHANED, FREE, Ordering::Release, Ordering::Relaxed);
            }
        }
        self.draining.store(false, Ordering::Release);
        Some(writer)
    }

    fn claim(&self, from: u8, block: &ThreadBlock) -> bool {
        // Looked at first: the exchange would take the line away from the ring's owner.
        if self.state.load(Ordering::Relaxed) != from
            || self.state.compare_exchange(from, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        if self.draining.swap(true, Ordering::Acquire) {
            self.state.store(from, Ordering::Release);
            return false;
        }
        let left = self.head.load(Ordering::Relaxed) - self.tail.load(Ordering::Relaxed);
        if left > 0 {
            // An orphan's unread records give way to a living thread's.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.tail.store(self.head.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.tid.store(block.tid(), Ordering::Relaxed);
        self.start.store(block.start(), Ordering::Relaxed);
        self.writing.store(false, Ordering::Relaxed);
        self.state.store(OWNED, Ordering::Release);
        self.draining.store(false, Ordering::Release);
        true
    }
}

/// Writes `record` to the calling thread's ring, whole or not at all; false when it was dropped and counted.
#[inline]
pub fn push(record: &[u8]) -> bool {
    match rendezvous::followed() {
        None => push_here(record),
        // SAFETY: a whole record.
        Some(leader) => unsafe { (leader.push)(record.as_ptr(), record.len()) },
    }
}

#[inline]
fn push_here(record: &[u8]) -> bool {
    let Some(ring) = thread::current().and_then(own_ring) else {
        POOL.homeless.fetch_add(1, Ordering::Relaxed);
        return false;
    };
    ring.push(record)
}

/// [`push`], for a copy that this one leads.
///
/// # Safety
///
/// `length` bytes are there.
pub(crate) unsafe extern "C" fn push_for_another(record: *const u8, length: usize) -> bool {
    // SAFETY: the caller's promise.
    push_here(unsafe { std::slice::from_raw_parts(record, length) })
}

fn own_ring(block: &'static ThreadBlock) -> Option<&'static Ring> {
    if let Some(index) = block.ring() {
        return POOL.rings.get(index);
    }
    // Nothing has been given back since this thread found the pool empty: no need to look again, at the cost of
    // those who own the rings.
    let given_back = POOL.given_back.load(Ordering::Relaxed);
    if block.found_pool_empty_at(given_back) {
        return None;
    }
    let claim = |from| POOL.rings.iter().position(|r| r.claim(from, block));
    let index = claim(FREE).or_else(|| claim(ORPHANED));
    match index {
        Some(index) => block.set_ring(Some(index)),
        None => block.set_pool_empty_at(given_back),
    }
    POOL.rings.get(index?)
}

/// Called at a thread's end.
pub(crate) fn release(block: &ThreadBlock) {
    if let Some(ring) = block.ring().and_then(|i| POOL.rings.get(i)) {
        let empty = ring.head.load(Ordering::Relaxed) == ring.tail.load(Ordering::Acquire);
        ring.state.store(if empty { FREE } else { ORPHANED }, Ordering::Release);
        POOL.given_back.fetch_add(1, Ordering::Relaxed);
    }
    block.set_ring(None);
}

/// Called in a fork child: the parent's records are the parent's.
pub(crate) fn reset_all() {
    for ring in &POOL.rings {
        if ring.state.load(Ordering::Relaxed) != FREE {
            ring.tail.store(ring.head.load(Ordering::Relaxed), Ordering::Relaxed);
            ring.draining.store(false, Ordering::Relaxed);
            ring.dropped.store(0, Ordering::Relaxed);
            ring.state.store(FREE, Ordering::Relaxed);
        }
    }
}

/// Empties every ring: `sink` is called with each thread that wrote and its records, one behind the other.
///
/// # Cost
///
/// One pass over the pool; a ring that another reader is draining is passed over.
pub fn drain_all(buffer: &mut Vec<u8>, mut sink: impl FnMut(Writer, &[u8])) {
    for ring in &rendezvous::used().pool.rings {
        // Pairs with the stores of the state in `claim` and `release`.
        if !matches!(ring.state.load(Ordering::Acquire), OWNED | ORPHANED) {
            continue;
        }
        buffer.clear();
        if let Some(writer) = ring.drain(buffer)
            && !buffer.is_empty()
        {
            sink(writer, buffer);
        }
    }
}

/// Records dropped since the start, in full rings and for want of one.
pub fn dropped() -> u64 {
    let pool = rendezvous::used().pool;
    let in_rings: u64 = pool.rings.iter().map(|r| r.dropped.load(Ordering::Relaxed)).sum();
    in_rings + pool.homeless.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Box<Ring> {
        Box::new(Ring::new())
    }

    #[test]
    fn what_is_pushed_comes_out_once_and_in_order_across_the_wrap() {
        let ring = ring();
        let mut expected = Vec::new();
        let mut seen = Vec::new();
        for round in 0..40u32 {
            let record = vec![round as u8; 5000];
            assert!(ring.push(&record));
            expected.extend(&record);
            if round % 3 == 0 {
                assert!(ring.drain(&mut seen).is_some());
            }
        }
        assert!(ring.drain(&mut seen).is_some());
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_full_ring_drops_and_counts_and_works_again_when_drained() {
        let ring = ring();
        let record = vec![1; RING_BYTES / 4];
        for _ in 0..4 {
            assert!(ring.push(&record));
        }
        assert!(!ring.push(&[2]));
        assert_eq!(ring.dropped.load(Ordering::Relaxed), 1);
        ring.drain(&mut Vec::new());
        assert!(ring.push(&[2]));
    }

    #[test]
    fn a_write_inside_a_write_is_dropped_and_counted() {
        let ring = ring();
        ring.writing.store(true, Ordering::Relaxed);
        assert!(!ring.push(&[1]));
        assert_eq!(ring.dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reader_beside_the_writer_sees_whole_records_only() {
        let ring = &ring();
        let total = std::thread::scope(|scope| {
            let writer =
                scope.spawn(move || (0..200_000u32).filter(|n| ring.push(&[(n % 251) as u8; 24])).count());
            let mut count = 0;
            let mut buffer = Vec::new();
            loop {
                // Asked before the drain: what is written until then is in this round.
                let finished = writer.is_finished();
                buffer.clear();
                assert!(ring.drain(&mut buffer).is_some());
                for record in buffer.chunks(24) {
                    assert!(record.iter().all(|&b| b == record[0]));
                    count += 1;
                }
                if finished {
                    break;
                }
            }
            assert_eq!(writer.join().unwrap(), count);
            count
        });
        assert!(total > 0);
    }

    #[test]
    fn the_records_of_an_ended_thread_are_still_there() {
        let start = std::thread::spawn(|| {
            assert!(push(b"last words"));
            thread::current().unwrap().start()
        })
        .join()
        .unwrap();
        let mut found = false;
        drain_all(&mut Vec::new(), |writer, bytes| {
            found |= writer.start == start && bytes == b"last words";
        });
        assert!(found);
    }
}
