//! The table through which a hit finds its watch: by the data of its event.
//!
//! | bits of the data | are |
//! |---|---|
//! | 63 to 48 | the copy of dormouse ([`dormouse_sys::trap::watch`]) |
//! | 47 to 12 | the watch's generation |
//! | 11 to 4 | its entry in the table |
//! | 3 to 0 | the piece |
//!
//! A hit may come after its watch has ended: a thread may stand between the trap and the handler
//! for as long as it gets no processor. Its generation distinguishes it from hits of the entry's
//! next watch.
//!
//! | state | event | next |
//! |---|---|---|
//! | free | [`claim`] | live |
//! | live | [`Claimed::end`], or a fork, in the child | ended |
//! | ended | [`claim`], once no handler is in it | live |
//!
//! # A register that moved
//!
//! Flexible watches take turns in a register. If a thread is stopped between a hit and its signal
//! while the register goes to the next watch, the kernel sends the signal with the *new* watch's
//! data. The signal's address is that of the hit. If the two do not agree, the hit belongs to the
//! watch of the address.
//!
//! # Watches of the same bytes
//!
//! If several watches cover the same bytes, one access hits the registers of all of them, and the
//! kernel counts for each. But it sends one signal: a second one is dropped while the first is
//! pending. So the handler reports the hit to every watch of the same bytes and accesses that was
//! armed by then. If watches overlap in another way, only one gets the hit, and the hits that the
//! others lose are counted in their reports.
//!
//! # Watches that stop before the access
//!
//! There the handler makes the access, and the kernel counts it a second time, for each watch that
//! it hits ([`count_again`]). An access that the handler cannot make is reported, and its watch
//! rests, so that the thread gets past it.
//!
//! # Invariants
//!
//! 1. A handler uses a tally between its addition to `handlers` and its subtraction, and only if it
//!    has found its generation after the addition. A tally is freed only after `handlers` was found
//!    0 with the generation removed. All four accesses are sequentially consistent, so either the
//!    handler misses the generation, or the freeing thread sees the handler. (A handler that never
//!    comes back only keeps the entry from its next watch.)
//! 2. [`claim`] and [`Claimed::end`] are called under the lock of watches (`holders.rs`).
//!
//! # Safety
//!
//! The unsafe code turns an `Arc` of a tally into the pointer in its entry and back, by invariant
//! 1.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use dormouse_sys::clock::monotonic_ns;
use dormouse_sys::trap::{Passing, PerfTrap};

use super::tally::Tally;

/// The most watches of a process at a time, groups' watches included.
pub(super) const MOST_WATCHES: usize = 256;

const PIECE_BITS: u32 = 4;
const ENTRY_BITS: u32 = 8;
const GENERATION_BITS: u32 = 36;
const _: () = assert!(1 << ENTRY_BITS == MOST_WATCHES && 1 << PIECE_BITS == crate::MOST_SLOTS);

#[derive(Debug)]
struct Entry {
    /// 0: no watch.
    generation: AtomicU64,
    /// Handlers that look at this entry.
    handlers: AtomicU32,
    tally: AtomicPtr<Tally>,
}

static TABLE: [Entry; MOST_WATCHES] = [const {
    Entry {
        generation: AtomicU64::new(0),
        handlers: AtomicU32::new(0),
        tally: AtomicPtr::new(std::ptr::null_mut()),
    }
}; MOST_WATCHES];

/// The last generation given.
static LAST: AtomicU64 = AtomicU64::new(0);

/// An entry that has a watch.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    entry: usize,
    generation: u64,
    pub(super) tally: Arc<Tally>,
}

/// Gives a watch an entry, or returns `None` if all are taken. `make` is called with the first bits
/// of its events' data, which begin with `copy`, the bits of this copy of dormouse. The lock of
/// watches must be held.
pub(super) fn claim(copy: u64, make: impl FnOnce(u64) -> Tally) -> Option<Claimed> {
    let entry = TABLE.iter().position(|entry| {
        // SeqCst: invariant 1.
        entry.generation.load(Ordering::SeqCst) == 0 && entry.handlers.load(Ordering::SeqCst) == 0
    })?;
    let place = &TABLE[entry];
    let ended = place.tally.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if !ended.is_null() {
        // SAFETY: `claim` has put it there, and no handler uses it (invariant 1).
        drop(unsafe { Arc::from_raw(ended.cast_const()) });
    }
    // 36 bits: a thousand watches a second for two years.
    let generation = (LAST.fetch_add(1, Ordering::Relaxed) + 1) & ((1 << GENERATION_BITS) - 1);
    let generation = generation.max(1);
    let tally = Arc::new(make(copy | generation << (ENTRY_BITS + PIECE_BITS) | (entry as u64) << PIECE_BITS));
    place.tally.store(Arc::into_raw(tally.clone()).cast_mut(), Ordering::Relaxed);
    // SeqCst: invariant 1; and the tally is there.
    place.generation.store(generation, Ordering::SeqCst);
    Some(Claimed { entry, generation, tally })
}

impl Claimed {
    /// The watch's number: the entry, and as much of the generation as there is room for.
    pub(super) fn number(&self) -> u32 {
        (self.generation as u32) << ENTRY_BITS | self.entry as u32
    }

    /// Hits find the watch no more. Under the lock of watches.
    pub(super) fn end(&self) {
        // SeqCst: invariant 1. Another watch's generation stays.
        let entry = &TABLE[self.entry];
        let _ = entry.generation.compare_exchange(self.generation, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// In a forked child: hits find no watch.
pub(super) fn end_all() {
    for entry in &TABLE {
        // SeqCst: invariant 1.
        entry.generation.store(0, Ordering::SeqCst);
        // Handlers of other threads were copied in the middle, and this one's finishes on the
        // parent's tally, which then is never freed.
        if entry.handlers.swap(0, Ordering::SeqCst) != 0 {
            entry.tally.store(std::ptr::null_mut(), Ordering::Relaxed);
        }
    }
}

/// Calls `run` with the tally of the watch that has this generation in this entry, if there is one.
/// Signal-safe, if `run` is.
fn with<T>(entry: usize, is_right: impl FnOnce(u64) -> bool, run: impl FnOnce(&Tally) -> T) -> Option<T> {
    let entry = &TABLE[entry];
    // SeqCst: invariant 1.
    entry.handlers.fetch_add(1, Ordering::SeqCst);
    let generation = entry.generation.load(Ordering::SeqCst);
    let result = (generation != 0 && is_right(generation)).then(|| {
        // SAFETY: the generation was there after the addition, and with it the tally, which stays
        // until the subtraction (invariant 1).
        run(unsafe { &*entry.tally.load(Ordering::Relaxed) })
    });
    entry.handlers.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Time that threads have spent in [`on_trap`], in nanoseconds.
static SPENT_NS: AtomicU64 = AtomicU64::new(0);

/// Time that the process's threads have spent in the handler of hits since its start, in
/// nanoseconds. The kernel's part of a hit is not in it.
pub fn spent_ns() -> u64 {
    SPENT_NS.load(Ordering::Relaxed)
}

/// A hit. Returns whether the keeper must look at the watches now. Signal-safe.
#[must_use]
pub(super) fn on_trap(trap: &PerfTrap) -> bool {
    let came = monotonic_ns();
    let is_due = match trap.passing() {
        Passing::Repeated => is_repeated(trap),
        _ if is_moved(trap) => deal_out_by_address(trap, came),
        _ => deal_out(trap, came),
    };
    count_again(trap, came);
    SPENT_NS.fetch_add(monotonic_ns().saturating_sub(came), Ordering::Relaxed);
    is_due
}

/// The entry, the generation and the piece in an event's data.
fn parts(data: u64) -> (usize, u64, usize) {
    (
        (data >> PIECE_BITS) as usize % MOST_WATCHES,
        data >> (ENTRY_BITS + PIECE_BITS) & ((1 << GENERATION_BITS) - 1),
        data as usize % (1 << PIECE_BITS),
    )
}

/// Whether the register was another watch's when it was hit.
fn is_moved(trap: &PerfTrap) -> bool {
    let (entry, generation, piece) = parts(trap.data);
    with(entry, |present| present == generation, |tally| tally.is_of(piece, trap.addr)) == Some(false)
}

/// A signal without a hit: the kernel has counted an access of the handler's.
fn is_repeated(trap: &PerfTrap) -> bool {
    let (entry, generation, _) = parts(trap.data);
    let _ended = with(entry, |present| present == generation, Tally::count_again);
    false
}

/// Where the handler has made the access, each watch that it hits has counted it twice.
fn count_again(trap: &PerfTrap, came: u64) {
    let is_store = match trap.passing() {
        Passing::MadeStore => true,
        Passing::MadeLoad => false,
        _ => return,
    };
    // The kernel finds watches by this byte.
    let at = trap.made_at.max(trap.addr);
    let (own, generation, _) = parts(trap.data);
    for (entry, there) in TABLE.iter().enumerate() {
        let present = there.generation.load(Ordering::Relaxed);
        if present == 0 {
            continue;
        }
        let is_own = entry == own && present == generation;
        let count = |tally: &Tally| {
            if is_own || tally.has_counted(at, is_store, came) {
                tally.count_again();
            }
        };
        let _ended = with(entry, |again| again == present, count);
    }
}

/// Counts the hit in the watches that begin at its address.
#[cold]
fn deal_out_by_address(trap: &PerfTrap, came: u64) -> bool {
    let tell = |tally: &Tally| tally.piece_at(trap.addr).map(|piece| tally.hit(piece, trap, came));
    let tell_at = |entry| with(entry, |_| true, tell).flatten().unwrap_or(false);
    (0..MOST_WATCHES).fold(false, |is_due, entry| tell_at(entry) | is_due)
}

/// Counts the hit in its watch, and in each other one of the same bytes.
fn deal_out(trap: &PerfTrap, came: u64) -> bool {
    let (entry, generation, piece) = parts(trap.data);
    let hit = with(
        entry,
        |present| present == generation,
        |tally| (tally.hit(piece, trap, came), tally.place(piece)),
    );
    let Some((mut is_due, place)) = hit else { return false };
    let Some(place) = place else { return is_due };
    for (other, there) in TABLE.iter().enumerate() {
        if other != entry && there.generation.load(Ordering::Relaxed) != 0 {
            let tell = |tally: &Tally| tally.also_hit(place, came).map(|piece| tally.hit(piece, trap, came));
            is_due |= with(other, |_| true, tell).flatten().unwrap_or(false);
        }
    }
    is_due
}

#[cfg(test)]
mod tests {
    use dormouse_sys::perf::{Access, WatchLen};

    use super::super::spec::WatchSpec;
    use super::super::split::Piece;
    use super::*;

    static VALUES: [u64; 2] = [5, 6];

    fn watch() -> (Claimed, u64) {
        watch_of(&VALUES[0])
    }

    fn watch_of(value: &u64) -> (Claimed, u64) {
        let addr = std::ptr::from_ref(value).addr();
        let mut said = 0;
        let piece = Piece { addr, len: WatchLen::Eight, watched: u64::MAX };
        let claimed = claim(0xd0a0 << 48, |data| {
            said = data;
            Tally::new(WatchSpec::new(addr, 8, Access::Write), vec![piece], data)
        });
        (claimed.unwrap(), said)
    }

    fn hit(data: u64) {
        hit_at(data, 0);
    }

    fn hit_at(data: u64, addr: usize) {
        let _ = on_trap(&PerfTrap { data, ip: 0x1000, addr, ..PerfTrap::default() });
    }

    /// One test, because the table is the process's.
    #[test]
    fn hits_of_an_ended_watch_find_no_other() {
        let (one, data) = watch();
        hit(data);
        assert_eq!(one.tally.counts().delivered, 1);
        assert!(spent_ns() > 0);
        one.end();
        hit(data);
        let (other, its_data) = watch();
        assert_eq!(other.entry, one.entry);
        hit(data);
        hit(data | 15);
        assert_eq!((one.tally.counts().delivered, other.tally.counts().delivered), (1, 0));
        hit(its_data);
        assert_eq!(other.tally.counts().delivered, 1);
        // A second end of the first leaves the other alone.
        one.end();
        hit(its_data);
        assert_eq!(other.tally.counts().delivered, 2);
        // The register had been the other's when it was hit.
        let (next, data_of_next) = watch_of(&VALUES[1]);
        let [addr, addr_of_next] = VALUES.each_ref().map(|value| std::ptr::from_ref(value).addr());
        hit_at(data_of_next, addr);
        assert_eq!((other.tally.counts().delivered, next.tally.counts().delivered), (3, 0));
        hit_at(data_of_next, addr_of_next);
        assert_eq!((other.tally.counts().delivered, next.tally.counts().delivered), (3, 1));
        other.end();
        hit_at(data_of_next, addr);
        assert_eq!((other.tally.counts().delivered, next.tally.counts().delivered), (3, 1));
        next.end();
        let held: Vec<_> = std::iter::from_fn(|| {
            claim(0, |data| Tally::new(WatchSpec::new(8, 8, Access::Write), Vec::new(), data))
        })
        .collect();
        assert_eq!(held.len(), MOST_WATCHES);
        held.iter().for_each(Claimed::end);
    }
}
