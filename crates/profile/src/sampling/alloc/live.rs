//! The sampled allocations that are still live: a fixed table of their addresses.
//!
//! A thread that makes such an allocation enters its address, every free searches for its own, and
//! the sampler checks which of the samples that it has seen are still there. No thread waits, and a
//! free leaves no record that could be lost.
//!
//! The table has buckets of one cache line; an address has its place in one bucket, anywhere
//! within. So a free reads one line, whatever the table contains. A bucket without room loses the
//! allocation, which is counted. With a quarter of the places taken that is one in five thousand.
//!
//! The table is in `.bss`, so it costs no memory before the first profile of this kind.
//!
//! # Why a place needs no order
//!
//! An address is entered before the allocator returns it. A thread that frees it got it after that,
//! so it sees the entry, and removes it before the allocator can reuse the address. So an address
//! has one entry at a time, and one thread that changes it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Addresses of a cache line.
const LINE: usize = 8;
/// The logarithm of the number of buckets: together a megabyte, and at a period of 512 KiB a heap
/// of 16 GiB that takes a quarter of it.
const BITS: u32 = 14;

#[repr(align(64))]
struct Bucket([AtomicUsize; LINE]);

static TABLE: [Bucket; 1 << BITS] = [const { Bucket([const { AtomicUsize::new(0) }; LINE]) }; 1 << BITS];
static IS_ON: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);

/// The places of the table. Their numbers are less.
#[cfg(test)]
const PLACES: usize = LINE << BITS;

fn bucket(address: usize) -> usize {
    // Fibonacci hashing; allocations lie 16 bytes apart.
    (((address >> 4) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - BITS)) as usize
}

/// Empties the table, and has allocations entered from now on. All frees must be reported already.
pub(super) fn begin() {
    for place in TABLE.iter().flat_map(|bucket| &bucket.0) {
        // Read first, because most places lie in pages that were never written.
        if place.load(Ordering::Relaxed) != 0 {
            place.store(0, Ordering::Relaxed);
        }
    }
    // Release: pairs with the load in `enter`, after which no place is emptied here.
    IS_ON.store(true, Ordering::Release);
}

/// No allocation is entered any more.
pub(super) fn end() {
    IS_ON.store(false, Ordering::Relaxed);
}

/// Enters an allocation: the number of its place.
pub(super) fn enter(address: usize) -> Option<u32> {
    // Acquire: pairs with the store in `begin`.
    if !IS_ON.load(Ordering::Acquire) {
        return None;
    }
    let number = bucket(address);
    let free = TABLE[number]
        .0
        .iter()
        .position(|place| place.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed).is_ok());
    if free.is_none() {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
    Some((number * LINE + free?) as u32)
}

/// Takes an allocation out, if it is there: before it is freed.
#[inline]
pub(super) fn take_out(address: usize) {
    let bucket = &TABLE[bucket(address)];
    if let Some(place) = bucket.0.iter().find(|place| place.load(Ordering::Relaxed) == address) {
        place.store(0, Ordering::Relaxed);
    }
}

/// Whether this address is in the place.
pub(super) fn has(place: u32, address: usize) -> bool {
    let bucket = TABLE.get(place as usize / LINE);
    bucket.is_some_and(|bucket| bucket.0[place as usize % LINE].load(Ordering::Relaxed) == address)
}

/// The allocations that found no place.
pub(super) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_there_until_they_are_taken_out() {
        dormouse_testkit::in_child(|| {
            assert_eq!(enter(0x1000), None, "nobody asks");
            begin();
            let addresses = || (1..PLACES / 4).map(|n| 0x7000_0000 + n * 48);
            let entered: Vec<_> = addresses().filter_map(|at| Some((at, enter(at)?))).collect();
            let lost = lost() as usize;
            assert_eq!(entered.len() + lost, addresses().count());
            assert!(lost * 1000 < entered.len(), "{lost}");
            assert!(entered.iter().all(|&(at, place)| has(place, at)));
            for (at, _) in entered.iter().step_by(2) {
                take_out(*at);
            }
            for (n, &(at, place)) in entered.iter().enumerate() {
                assert_eq!(has(place, at), n % 2 == 1);
            }
            begin();
            assert!(!entered.iter().any(|&(at, place)| has(place, at)));
            end();
            assert_eq!(enter(0x1000), None);
        });
    }

    #[test]
    fn a_full_bucket_counts_what_it_loses() {
        dormouse_testkit::in_child(|| {
            begin();
            let same = (1..).map(|n| n << 12).filter(|&at| bucket(at) == 5);
            let entered = same.take(LINE + 3).filter(|&at| enter(at).is_some()).count();
            assert_eq!((entered, lost()), (LINE, 3));
        });
    }

    #[test]
    fn threads_enter_and_take_out_at_once() {
        dormouse_testkit::in_child(|| {
            begin();
            std::thread::scope(|scope| {
                for thread in 1..5_usize {
                    scope.spawn(move || {
                        for n in 0..100_000 {
                            let at = thread << 32 | (n % 1000) << 4;
                            if let Some(place) = enter(at) {
                                assert!(has(place, at));
                                take_out(at);
                                assert!(!has(place, at));
                            }
                        }
                    });
                }
            });
            let left =
                TABLE.iter().flat_map(|bucket| &bucket.0).filter(|place| place.load(Ordering::Relaxed) != 0);
            assert_eq!(left.count(), 0);
        });
    }
}
