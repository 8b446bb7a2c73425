//! Holders of locks, and waits for them: a table by the lock's address, without locks.
//!
//! A bucket has eight addresses in one line of the cache, and behind each a cell of its own. To
//! note a holder is one exchange of a free address and some stores; to remove it is two stores.
//! There is room for a fixed number. If it is used up, the holder is not noted, which is counted.
//!
//! A lock with one holder at a time is in its home bucket. One that has several at a time, such as
//! readers, may be in each of `REACH` buckets, so that they find room and do not meet. Waits may be
//! in all: thousands may wait for one lock.
//!
//! # Entries
//!
//! | an address is | event | next |
//! |---|---|---|
//! | 0 | a thread takes the place, by an exchange | the lock's; the cell's version is odd |
//! | the lock's, odd | the thread has written the cell | the same; the version is even |
//! | the lock's, even | its holder leaves | 0; the version is odd |
//! | the lock's, even | the same lock is taken by one that is alone | the same; a new version |
//!
//! The last is an entry that was left behind: its guard was forgotten, or was dropped while locks
//! were not noted.
//!
//! # Invariants
//!
//! 1. A cell is written by one thread at a time: the one that has put the address there, or the one
//!    that holds the lock alone.
//! 2. A version is even only while the cell is whole, and a cell contains its address. So what
//!    [`Table::find`] returns was written by one holder of that lock.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::array_of;

use crate::cell::{Cell, Entry, Token};
use crate::primitive::AtomicUsize;

/// The addresses of a bucket.
const CELLS: usize = if cfg!(loom) { 2 } else { 8 };

/// The buckets in which the holders of one lock may be.
const NEAR: usize = if cfg!(loom) { 1 } else { 8 };

/// The buckets that are tried for a free place, so that an entry for which there is none costs no
/// walk through the whole table. Of waits the first one is refused when some 95 % of the places are
/// used.
const TRIED: usize = 32;

#[derive(Debug)]
#[repr(C, align(64))]
struct Bucket {
    addresses: [AtomicUsize; CELLS],
    cells: [Cell; CELLS],
}

/// See the module. Entries of one address may be in `REACH` buckets.
#[derive(Debug)]
pub(crate) struct Table<const BUCKETS: usize, const REACH: usize = NEAR>([Bucket; BUCKETS]);

/// The buckets of holders, and of waits.
const HELD: usize = if cfg!(loom) { 1 } else { 1024 };
const WAITS: usize = if cfg!(loom) { 1 } else { 256 };

dormouse_sys::shared! {
    /// Room for 8,192 locks that are held and are in no hand.
    pub(crate) static HOLDERS: Table<HELD> = Table::new();
    /// Room for 2,048 threads and tasks that wait.
    pub(crate) static WAITERS: Table<WAITS, WAITS> = Table::new();
}

/// How often there was no room for a holder.
pub(crate) static LOST_HOLDERS: AtomicU64 = AtomicU64::new(0);
/// How often there was no room for a wait.
pub(crate) static LOST_WAITS: AtomicU64 = AtomicU64::new(0);

/// A number by which entries are spread.
#[inline]
pub(crate) fn mixed(number: usize) -> usize {
    // The lowest bits of an address are alike; the highest of a product depend on all of them.
    ((number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize
}

impl<const BUCKETS: usize, const REACH: usize> Table<BUCKETS, REACH> {
    dormouse_sys::const_unless_loom! {
        pub(crate) const fn new() -> Self {
            Self(array_of![
                Bucket { addresses: array_of![AtomicUsize::new(0); CELLS], cells: array_of![Cell::new(); CELLS] };
                BUCKETS
            ])
        }
    }

    #[inline]
    fn token(bucket: usize, cell: usize, version: NonZeroU32) -> Token {
        Token::new((bucket * CELLS + cell) as u32, version)
    }

    /// The buckets of an address.
    #[inline]
    fn reach(is_alone: bool) -> usize {
        if is_alone { 1 } else { REACH.min(BUCKETS) }
    }

    /// Notes an entry of a lock that the caller holds alone. `None`: there is no room.
    #[inline]
    pub(crate) fn put_alone(&self, entry: &Entry) -> Option<Token> {
        let home = mixed(entry.address) % BUCKETS;
        let bucket = &self.0[home];
        // Two passes over one line of the cache: a free place may be before an entry left behind.
        let left = bucket.addresses.iter().position(|at| at.load(Ordering::Relaxed) == entry.address);
        if let Some(cell) = left {
            return Some(Self::token(home, cell, bucket.cells[cell].write(entry)));
        }
        self.put_into(home, entry)
    }

    /// Notes an entry of a lock that others may hold or wait for, too. `start`: any number, with
    /// which different callers begin at different places.
    pub(crate) fn put_beside(&self, entry: &Entry, start: usize) -> Option<Token> {
        let (home, reach) = (mixed(entry.address), Self::reach(false));
        // Odd, so that it comes to each of a power of two; and another one for each caller, because
        // full buckets side by side would grow together.
        let step = (start / reach) | 1;
        let nth_bucket = |nth| (home + (start + nth * step) % reach) % BUCKETS;
        (0..reach.min(TRIED)).find_map(|nth| self.put_into(nth_bucket(nth), entry))
    }

    #[inline]
    fn put_into(&self, at: usize, entry: &Entry) -> Option<Token> {
        let bucket = &self.0[at];
        for (cell, address) in bucket.addresses.iter().enumerate() {
            // Acquire: pairs with the store in `remove`, whose thread has written the cell.
            if address.load(Ordering::Relaxed) == 0
                && address.compare_exchange(0, entry.address, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return Some(Self::token(at, cell, bucket.cells[cell].write(entry)));
            }
        }
        None
    }

    /// The caller's entry; `None` if it is no more: a forked child has none of its parent's.
    #[inline]
    pub(crate) fn own(&self, token: Token) -> Option<Entry> {
        let place = token.place() as usize;
        let cell = &self.0[place / CELLS].cells[place % CELLS];
        cell.has(token).then(|| cell.words())
    }

    /// Removes the caller's entry, which [`Table::own`] has just found.
    #[inline]
    pub(crate) fn remove(&self, token: Token) {
        let place = token.place() as usize;
        let bucket = &self.0[place / CELLS];
        bucket.cells[place % CELLS].free();
        // Release: pairs with the exchange in `put_into`.
        bucket.addresses[place % CELLS].store(0, Ordering::Release);
    }

    /// The token of the caller's entry of a lock, which it holds alone, or which `is_own` tells
    /// from those of others.
    #[cfg(any(feature = "parking-lot", test))]
    #[inline]
    pub(crate) fn token_of(
        &self,
        address: usize,
        is_alone: bool,
        is_own: impl Fn(&Entry) -> bool,
    ) -> Option<Token> {
        let home = mixed(address);
        (0..Self::reach(is_alone)).map(|nth| (home + nth) % BUCKETS).find_map(|at| {
            let bucket = &self.0[at];
            let is_its = |cell: &usize| {
                bucket.addresses[*cell].load(Ordering::Relaxed) == address
                    && is_own(&bucket.cells[*cell].words())
            };
            let cell = (0..CELLS).find(is_its)?;
            Some(Self::token(at, cell, bucket.cells[cell].version()?))
        })
    }

    /// The entries of a lock, each of one moment, with a number that no other one has. `is_alone`:
    /// whether the lock never has several holders.
    pub(crate) fn find(&self, address: usize, is_alone: bool) -> impl Iterator<Item = (u64, Entry)> {
        let home = mixed(address);
        let buckets = (0..Self::reach(is_alone)).map(move |nth| (home + nth) % BUCKETS);
        let found = buckets.flat_map(move |at| self.read(at, move |there| there == address));
        found.filter(move |(_, entry)| entry.address == address)
    }

    /// All entries, likewise.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, Entry)> {
        (0..BUCKETS).flat_map(|at| self.read(at, |there| there != 0))
    }

    /// The entries of a bucket whose addresses are wanted.
    fn read(&self, at: usize, is_wanted: impl Fn(usize) -> bool) -> impl Iterator<Item = (u64, Entry)> {
        let bucket = &self.0[at];
        // Acquire: pairs with the exchange in `put_into`, whose thread goes on to the cell.
        let used = (0..CELLS).filter(move |cell| is_wanted(bucket.addresses[*cell].load(Ordering::Acquire)));
        used.filter_map(move |cell| {
            let (entry, version) = bucket.cells[cell].read()?;
            Some((((at * CELLS + cell) as u64) << 32 | u64::from(version), entry))
        })
    }

    /// Removes all entries, in a forked child, where no other thread is.
    pub(crate) fn clear(&self) {
        // Looked at first: what is written to is copied.
        for bucket in &self.0 {
            for (address, cell) in bucket.addresses.iter().zip(&bucket.cells) {
                if address.load(Ordering::Relaxed) != 0 {
                    cell.free();
                    address.store(0, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn entry(address: usize, task: u64) -> Entry {
        Entry { address, task, ..Entry::default() }
    }

    fn found<const BUCKETS: usize>(table: &Table<BUCKETS>, address: usize) -> Vec<Entry> {
        table.find(address, false).map(|(_, entry)| entry).collect()
    }

    #[test]
    fn a_full_bucket_refuses_until_one_leaves() {
        let table = Table::<1>::new();
        let put: Vec<Token> = (1..=CELLS).map(|at| table.put_alone(&entry(at, 7)).unwrap()).collect();
        assert_eq!(table.put_alone(&entry(99, 1)), None);
        assert_eq!(found(&table, 3), [entry(3, 7)]);
        assert!(table.own(put[2]).is_some());
        table.remove(put[2]);
        assert_eq!((table.find(3, false).count(), table.own(put[2])), (0, None));
        assert!(table.put_alone(&entry(99, 1)).is_some());
        assert_eq!(table.all().count(), CELLS);
    }

    #[test]
    fn an_entry_left_behind_is_replaced() {
        let table = Table::<4>::new();
        let left = table.put_alone(&entry(8, 1)).unwrap();
        let present = table.put_alone(&entry(8, 2)).unwrap();
        assert_eq!(found(&table, 8), [entry(8, 2)]);
        assert_eq!(table.own(left), None, "the one before has no entry any more");
        assert_eq!(table.token_of(8, true, |_| true), Some(present));
    }

    #[test]
    fn several_hold_one_lock_side_by_side() {
        let table = Table::<16>::new();
        let tokens: Vec<Token> =
            (0..CELLS * NEAR).map(|n| table.put_beside(&entry(8, n as u64), n * 3).unwrap()).collect();
        assert_eq!(table.put_beside(&entry(8, 1), 0), None);
        let mut tasks: Vec<u64> = table.find(8, false).map(|(_, entry)| entry.task).collect();
        tasks.sort_unstable();
        assert!(tasks.into_iter().eq(0..(CELLS * NEAR) as u64));
        for token in tokens {
            table.remove(token);
        }
        assert_eq!(table.all().count(), 0);
    }

    #[test]
    fn a_child_has_none() {
        let table = Table::<4>::new();
        let token = table.put_alone(&entry(8, 1)).unwrap();
        table.clear();
        assert_eq!((table.own(token), table.all().count()), (None, 0));
    }
}
