//! A byte ring for one writing thread and its signal handlers, and the fixed pool of rings.
//!
//! The writer never waits. A full ring keeps the newest records: the writer discards the oldest,
//! those that begin in the oldest eighth of the ring, and counts them as dropped. If the pool is
//! empty, or a signal handler interrupts its thread's write, the record is dropped and counted. One
//! reader at a time drains a ring; a bit of `tail` keeps two apart, and neither waits. A handler
//! that leaves a write by `siglongjmp` loses that record and no other: see [`crate::underway`].
//!
//! # Discarding
//!
//! The writer cannot find where the oldest records end, because to it they are bytes. So for each
//! eighth of the ring it stores the position of the first record that begins there. To discard, it
//! moves `tail` to that of the next eighth by one exchange. It holds nothing meanwhile, so a
//! handler that never returns leaves no damage, except a wrong count if it comes in the one
//! instruction after the exchange.
//!
//! While a reader has the ring, only the reader moves `tail`, and frees room as it goes. A record
//! that finds the ring full in the meantime (the reader has not yet copied an eighth) is dropped
//! itself.
//!
//! The states of a ring:
//!
//! | from | event | to |
//! |---|---|---|
//! | `FREE` | a thread claims it | `CLAIMED`, then `OWNED` |
//! | `OWNED` | its thread ends, and all is read | `FREE` |
//! | `OWNED` | its thread ends, and records are left | `ORPHANED` |
//! | `ORPHANED` | a reader empties it | `FREE` |
//! | `CLAIMED` | a reader has the ring | the state before the claim; `given_back` grows |
//! | `ORPHANED` | no other ring is free, and a thread claims it | `CLAIMED`, then `OWNED`; unread records count as dropped |
//! | any | a fork, in the child | `FREE` |
//!
//! # Invariants
//!
//! 1. `head` is at most [`RING_BYTES`] ahead of `tail` in the stream; a position modulo
//!    `RING_BYTES` is the index of a byte.
//! 2. Only the owner moves `head`. The reader that has set [`HELD`] in `tail` is the only one to
//!    move it; while the bit is clear, the owner may move it forward, by an exchange.
//! 3. A ring changes its owner only while it is `CLAIMED` by the new owner, which also holds
//!    `tail`.
//! 4. All zeros is the pool's initial state: it lies in `.bss`, and pages that no ring uses take no
//!    memory.
//! 5. `firsts` of an eighth in which a record between `tail` and `head` begins is the first such
//!    record of the present round, except in the eighth of `tail`.
//!
//! # Async-signal-safety
//!
//! [`Pool::push`] is signal-safe.
//!
//! # Safety
//!
//! The unsafe code copies into and out of the ring's bytes; invariants 1 and 2 keep the two apart.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use self::mark::{EIGHTHS, HELD, LONGEST, Mark};
use crate::underway::Underway;
use crate::{array_of, const_unless_loom};

crate::atomics!(AtomicU8, AtomicU32, AtomicU64);

mod mark;

pub use self::mark::RING_BYTES;

/// Rings in the pool; the records of further threads are dropped and counted.
pub const RINGS: usize = if cfg!(all(test, loom)) { 1 } else { 128 };

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
    writing: Underway,
    /// A [`Mark`], as is `tail`.
    head: AtomicU64,
    dropped: AtomicU64,
    tail: AtomicU64,
    /// For each eighth, the [`Mark`] of the first record that begins there. Only the owner accesses
    /// it.
    firsts: [AtomicU64; EIGHTHS],
    bytes: UnsafeCell<[u8; RING_BYTES]>,
}

// Copies share the pool (see `rendezvous::ABI`).
#[cfg(not(all(test, loom)))]
const _: () = {
    assert!(size_of::<Ring>() == RING_BYTES + 128 && std::mem::offset_of!(Ring, bytes) == 112);
    assert!(size_of::<Pool>() == RINGS * size_of::<Ring>() + 128);
};

// SAFETY: the bytes between `tail` and `head` are only read, by the reader that holds `tail`; the
// others are only written, by the owner under `writing` (invariants 1 and 2).
unsafe impl Sync for Ring {}

/// All rings of a copy of dormouse. The leader's are used by all copies (see
/// [`crate::rendezvous`]).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pool {
    rings: [Ring; RINGS],
    /// How often a ring was given back, or put back by a thread that could not claim it.
    given_back: AtomicU32,
    /// Records that found no ring.
    homeless: AtomicU64,
}

/// The pool of this copy.
#[cfg(not(all(test, loom)))]
pub(crate) static POOL: OwnPool = Pool::new();
/// Models have pools of their own.
#[cfg(all(test, loom))]
pub(crate) static POOL: OwnPool = OwnPool::new(Pool::new);

#[cfg(not(all(test, loom)))]
pub(crate) type OwnPool = Pool;
#[cfg(all(test, loom))]
pub(crate) type OwnPool = std::sync::LazyLock<Pool>;

/// The ring that a thread has claimed, as the thread remembers it.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// One more than the ring's index in the pool; 0: none.
    ring: AtomicU32,
    /// One more than the count of rings given back when the pool was last found empty; 0: it never
    /// was.
    pool_empty_at: AtomicU32,
}

/// The thread that writes a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RingOwner {
    /// The id of the thread.
    pub tid: u32,
    /// The start number of the thread.
    pub start: u64,
}

impl Claimed {
    const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self { ring: AtomicU32::new(0), pool_empty_at: AtomicU32::new(0) }
        }
    }

    fn index(&self) -> Option<usize> {
        (self.ring.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Forgets the ring, and that the pool was empty.
    pub(crate) fn reset(&self) {
        self.ring.store(0, Ordering::Relaxed);
        self.pool_empty_at.store(0, Ordering::Relaxed);
    }
}

impl Ring {
    const_unless_loom! {
        #[expect(clippy::large_stack_arrays, reason = "evaluated at compile time, for a static")]
        const fn new() -> Self {
            Self {
                state: AtomicU8::new(FREE),
                tid: AtomicU32::new(0),
                start: AtomicU64::new(0),
                writing: Underway::new(),
                head: AtomicU64::new(0),
                dropped: AtomicU64::new(0),
                tail: AtomicU64::new(0),
                firsts: array_of![AtomicU64::new(0); EIGHTHS],
                bytes: UnsafeCell::new([0; RING_BYTES]),
            }
        }
    }

    fn push(&self, record: &[u8]) -> bool {
        let Some(writing) = self.writing.begin() else {
            // This is a signal handler over its own thread's write.
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        let head = Mark(self.head.load(Ordering::Relaxed));
        // Pairs with the release stores of `tail` in `drain`: the reader has read the bytes that
        // this write overwrites.
        let tail = Mark(self.tail.load(Ordering::Acquire));
        let mut is_written =
            head.bytes_since(tail) + record.len() <= RING_BYTES || self.discard(head, record.len());
        if is_written {
            let at = head.index();
            let first = record.len().min(RING_BYTES - at);
            let bytes = self.bytes.get().cast::<u8>();
            // SAFETY: both parts lie inside `bytes`, and in the free part of the ring (invariant
            // 1), which only the owner touches.
            unsafe {
                std::ptr::copy_nonoverlapping(record.as_ptr(), bytes.add(at), first);
                std::ptr::copy_nonoverlapping(record.as_ptr().add(first), bytes, record.len() - first);
            }
            // Else a handler has written here because it took this write for one that was left.
            is_written = self.writing.is_ours(writing);
        }
        if is_written {
            let next = head.after(record.len());
            if next.eighth() != head.eighth() {
                // The next record is the first that begins there (invariant 5).
                self.firsts[next.eighth()].store(next.0, Ordering::Relaxed);
            }
            // Pairs with the acquire load of `head` in `drain`: the bytes before it are written.
            self.head.store(next.0, Ordering::Release);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.writing.end(writing);
        is_written
    }

    /// Makes room for a record at `head`, at the price of the oldest. False if there is none: while
    /// a reader has the ring, after a write that a handler took for one that was left, and for a
    /// record that is too long.
    #[cold]
    fn discard(&self, head: Mark, length: usize) -> bool {
        // A reader that takes the ring in the middle costs one more round. No waiting.
        for _ in 0..=EIGHTHS {
            // As in `push`.
            let tail = Mark(self.tail.load(Ordering::Acquire));
            let used = head.bytes_since(tail);
            if used + length <= RING_BYTES {
                return true;
            }
            if tail.is_held() || used > RING_BYTES || length > LONGEST {
                return false;
            }
            let first = Mark(self.firsts[(tail.eighth() + 1) % EIGHTHS].load(Ordering::Relaxed));
            // Else a handler has written here because it took a write for one that was left.
            let is_between = (1..=used).contains(&first.bytes_since(tail));
            let oldest = if is_between { first } else { head };
            // Pairs with the acquire exchange in `begin_draining`: a reader that sees this tail
            // sees no older head.
            let moved = self.tail.compare_exchange(tail.0, oldest.0, Ordering::Release, Ordering::Relaxed);
            if moved.is_ok() {
                self.dropped.fetch_add(oldest.records_since(tail), Ordering::Relaxed);
            }
        }
        false
    }

    /// Takes `tail` from the owner and other readers; `None` if a reader or a claimer has it.
    fn begin_draining(&self) -> Option<Mark> {
        // Pairs with the release store in `end_draining`: the owner of the ring is as the last
        // holder left it. And with the exchange in `discard`.
        let tail = Mark(self.tail.fetch_or(HELD, Ordering::Acquire));
        (!tail.is_held()).then_some(tail)
    }

    /// For the holder of `tail`.
    #[inline]
    fn move_tail(&self, tail: u64) {
        #[cfg(not(all(test, loom)))]
        self.tail.store(tail, Ordering::Release);
        // Loom lets an exchange of another thread, after this store, read the value from before
        // it. It does not if this is an exchange, too.
        #[cfg(all(test, loom))]
        self.tail.swap(tail, Ordering::Release);
    }

    fn end_draining(&self, tail: Mark) {
        // Pairs with the acquire exchange in `begin_draining`, and with the acquire load of `tail`
        // in `push`: the bytes before it are read, and may be overwritten.
        self.move_tail(tail.0);
    }

    /// Appends the ring's bytes to `out`, and names their writer; `None` if another reader is at
    /// it.
    fn drain(&self, out: &mut Vec<u8>) -> Option<RingOwner> {
        let tail = self.begin_draining()?;
        // A claimer holds `tail` too, so the ring does not change its owner now (invariant 3).
        let owner =
            RingOwner { tid: self.tid.load(Ordering::Relaxed), start: self.start.load(Ordering::Relaxed) };
        // Pairs with the release store of `head` in `push`: the bytes before it are written.
        let head = Mark(self.head.load(Ordering::Acquire));
        // More than the ring has: a handler took a write for one that was left, and `head` has
        // stepped back.
        let length = Some(head.bytes_since(tail)).filter(|&length| length <= RING_BYTES).unwrap_or(0);
        let bytes = self.bytes.get().cast::<u8>().cast_const();
        let mut done = 0;
        while done < length {
            let at = (tail.index() + done) % RING_BYTES;
            let part = (length - done).min(LONGEST).min(RING_BYTES - at);
            // SAFETY: `push` has published `tail..head`, and does not write there before `tail`
            // moves.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(bytes.add(at), part) });
            done += part;
            // Not the end of a record, perhaps, but the owner looks at the position alone while the
            // ring is held. Pairs with the acquire load of `tail` in `push`: these bytes are read.
            let position = tail.position().wrapping_add(done as u32);
            self.move_tail(HELD | u64::from(position));
        }
        // Pairs with the release store of ORPHANED in `Pool::release`: this load of `head` sees the
        // thread's last record.
        if self.state.load(Ordering::Acquire) == ORPHANED && self.head.load(Ordering::Relaxed) == head.0 {
            // Not a plain store: a claimer may have the state, and puts ORPHANED back when it finds
            // `tail` held. Pairs with the acquire exchange in `claim`: the next owner finds
            // the ring empty.
            let _ = self.state.compare_exchange(ORPHANED, FREE, Ordering::Release, Ordering::Relaxed);
        }
        self.end_draining(head);
        Some(owner)
    }

    fn claim(&self, from: u8, owner: RingOwner, given_back: &AtomicU32) -> bool {
        // Looked at first: the exchange would take the line away from the ring's owner. The
        // exchange pairs with the release stores of FREE and ORPHANED in `drain`, `Pool::release`
        // and below: `head` and the count of drops are as the last owner left them.
        if self.state.load(Ordering::Relaxed) != from
            || self.state.compare_exchange(from, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let Some(tail) = self.begin_draining() else {
            // Pairs with the exchange above, on another thread.
            self.state.store(from, Ordering::Release);
            // The reader may have left it meanwhile, and other threads have found it claimed.
            // Release: pairs with the load in `Pool::ring_of`.
            given_back.fetch_add(1, Ordering::Release);
            return false;
        };
        let head = Mark(self.head.load(Ordering::Relaxed));
        // An orphan's unread records give way to a living thread's.
        if head.bytes_since(tail) <= RING_BYTES {
            self.dropped.fetch_add(head.records_since(tail), Ordering::Relaxed);
        }
        self.tid.store(owner.tid, Ordering::Relaxed);
        self.start.store(owner.start, Ordering::Relaxed);
        self.writing.reset();
        // Pairs with the acquire load in `Pool::drain_each`.
        self.state.store(OWNED, Ordering::Release);
        self.end_draining(head);
        true
    }
}

impl Pool {
    const_unless_loom! {
        #[allow(clippy::large_stack_arrays, reason = "it is made in a static")]
        const fn new() -> Self {
            Self {
                rings: array_of![Ring::new(); RINGS],
                given_back: AtomicU32::new(0),
                homeless: AtomicU64::new(0),
            }
        }
    }

    /// Writes `record` to the calling thread's ring, whole or not at all; false when it was dropped
    /// and counted.
    #[inline]
    pub(crate) fn push(&self, claimed: &Claimed, owner: impl FnOnce() -> RingOwner, record: &[u8]) -> bool {
        let Some(ring) = self.ring_of(claimed, owner) else { return self.drop_one() };
        ring.push(record)
    }

    /// Counts a record that finds no ring as dropped; returns false.
    pub(crate) fn drop_one(&self) -> bool {
        self.homeless.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn ring_of(&self, claimed: &Claimed, owner: impl FnOnce() -> RingOwner) -> Option<&Ring> {
        if let Some(index) = claimed.index() {
            return self.rings.get(index);
        }
        // No ring has been given back since this thread found the pool empty. Another search would
        // cost the owners of the rings their lines. Acquire: pairs with the additions, each of
        // which comes after its ring can be claimed again.
        let given_back = self.given_back.load(Ordering::Acquire).wrapping_add(1);
        if claimed.pool_empty_at.load(Ordering::Relaxed) == given_back {
            return None;
        }
        let owner = owner();
        let claim = |from| self.rings.iter().position(|ring| ring.claim(from, owner, &self.given_back));
        let index = claim(FREE).or_else(|| claim(ORPHANED));
        match index {
            Some(index) => claimed.ring.store(index as u32 + 1, Ordering::Relaxed),
            None => claimed.pool_empty_at.store(given_back, Ordering::Relaxed),
        }
        self.rings.get(index?)
    }

    /// Gives a thread's ring back at its end.
    pub(crate) fn release(&self, claimed: &Claimed) {
        if let Some(ring) = claimed.index().and_then(|index| self.rings.get(index)) {
            // Pairs with the release store of `tail` in `drain`: a reader is done with an empty
            // ring.
            let is_empty = ring.head.load(Ordering::Relaxed) == ring.tail.load(Ordering::Acquire);
            // Pairs with the acquire exchange in `claim`, and for ORPHANED with the acquire load at
            // the end of `drain`.
            ring.state.store(if is_empty { FREE } else { ORPHANED }, Ordering::Release);
            // Release: pairs with the load in `ring_of`.
            self.given_back.fetch_add(1, Ordering::Release);
        }
        claimed.reset();
    }

    /// Begins again in a fork child, which has one thread: the records and the drops so far are the
    /// parent's.
    pub(crate) fn reset(&self) {
        for ring in &self.rings {
            if ring.state.load(Ordering::Relaxed) != FREE {
                ring.tail.store(ring.head.load(Ordering::Relaxed), Ordering::Relaxed);
                // A write that was interrupted by the handler that forked finds that the ring is no
                // longer its own.
                ring.writing.reset();
                ring.state.store(FREE, Ordering::Relaxed);
            }
            // Looked at first: a page that no thread has touched stays so.
            if ring.dropped.load(Ordering::Relaxed) > 0 {
                ring.dropped.store(0, Ordering::Relaxed);
            }
        }
        if self.homeless.load(Ordering::Relaxed) > 0 {
            self.homeless.store(0, Ordering::Relaxed);
        }
    }

    /// Empties every ring: `sink` is called with the ring's index, the thread that wrote it, and
    /// its records, one behind the other.
    pub(crate) fn drain_each(&self, buffer: &mut Vec<u8>, mut sink: impl FnMut(usize, RingOwner, &[u8])) {
        for (index, ring) in self.rings.iter().enumerate() {
            // Pairs with the release stores of the state in `claim` and `release`.
            if !matches!(ring.state.load(Ordering::Acquire), OWNED | ORPHANED) {
                continue;
            }
            buffer.clear();
            if let Some(owner) = ring.drain(buffer)
                && !buffer.is_empty()
            {
                sink(index, owner, buffer);
            }
            // A thread that has found it held does not look again before a ring is given back.
            // Release: pairs with the load in `ring_of`.
            if ring.state.load(Ordering::Relaxed) == FREE {
                self.given_back.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// How many rings have been written to.
    pub(crate) fn written(&self) -> usize {
        self.written_rings().count()
    }

    /// The addresses of these rings.
    pub(crate) fn written_ranges(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        let range = |ring: &Ring| ptr::from_ref(ring).addr()..ptr::from_ref(ring).addr() + size_of::<Ring>();
        self.written_rings().map(range)
    }

    fn written_rings(&self) -> impl Iterator<Item = &Ring> + Clone {
        self.rings.iter().filter(|ring| ring.head.load(Ordering::Relaxed) != 0)
    }

    /// Records dropped since the start: the oldest of full rings, and those that found no ring.
    pub(crate) fn dropped(&self) -> u64 {
        let in_rings = self.rings.iter().map(|ring| ring.dropped.load(Ordering::Relaxed));
        in_rings.fold(self.homeless.load(Ordering::Relaxed), u64::saturating_add)
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests;
