//! Published CPU time: one record a member, and the running total of all of them.
//!
//! A record is a *place* that one member holds after another, and its count goes on from one to the next.
//! That is what makes a late refresher harmless: what it has read of a member that has left since is less
//! than what the member counted when it left, and `fetch_max` makes nothing of it.
//!
//! # Invariants
//!
//! 1. `counted` moves by `fetch_max` alone, and whoever moves it adds the difference to the total, once.
//! 2. The terms of a record are written in [`TAKEN`] and [`LEAVING`] only; every change of hands moves the number in
//!    `state`, so who finds the same state before and after has seen the terms of one member.
//! 3. A member is [`LIVE`] only while its thread is alive: it leaves before it ends. So its tid, found in the
//!    same state before and after the thread's clock was read, was its own all the while.
//! 4. The total never exceeds the sum of the counts; it is behind it by what has been advanced and not added
//!    yet.
//!
//! The counts are relaxed: each location only grows, so of two reads of the total of which one happens
//! before the other, the later finds every shard at least as large.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Places in the first bucket; each further one has twice as many.
const FIRST: usize = 64;
const BUCKETS: usize = 7;
/// Places in a group.
pub(crate) const PLACES: usize = FIRST * ((1 << BUCKETS) - 1);

const MOST_SHARDS: usize = 8;

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const LIVE: u64 = 2;
const LEAVING: u64 = 3;
const STATES: u64 = 4;

/// How a member's CPU time becomes the count of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The count when the member came.
    pub(crate) start: u64,
    /// The member's CPU time when it came.
    pub(crate) base: u64,
}

impl Terms {
    /// The count when the member has used `cpu_ns`. (A clock that lags behind the kernel's by the width of
    /// its bracket may be below the base at first.)
    #[inline]
    pub(crate) fn count(self, cpu_ns: u64) -> u64 {
        self.start + cpu_ns.saturating_sub(self.base)
    }
}

/// A member as a refresher finds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    state: u64,
    pub(crate) tid: u32,
    pub(crate) forks: u32,
    pub(crate) terms: Terms,
}

/// Who is found in a place.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Found {
    Nobody,
    /// Somebody who comes or goes, and whose time since the last publication may be in no record.
    Moving,
    Member(Holder),
}

/// One place, on a cache line of its own (two, because lines are fetched in pairs): its owner writes it at
/// every read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Record {
    /// Nanoseconds that the members of this place have used while they were members.
    counted: AtomicU64,
    /// A moment at which the member had used no more than that, by its own clock.
    as_of: AtomicU64,
    /// FREE, TAKEN, LIVE or LEAVING, and the number of changes so far.
    state: AtomicU64,
    tid: AtomicU32,
    forks: AtomicU32,
    start: AtomicU64,
    base: AtomicU64,
}

const _: () = assert!(size_of::<Record>() == 128);

impl Record {
    /// Takes the place if it is free; nobody else touches the terms from then on.
    fn take(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        // Pairs with the store of FREE in `release`: the member before us has left its start.
        let taken = state % STATES == FREE
            && self
                .state
                .compare_exchange(state, state + TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Pairs with the fence of `is_still`: who sees a new term sees that the state has moved.
        fence(Ordering::Release);
        taken
    }

    /// Makes a thread that has used `cpu_ns` at moment `now` the member of this place, which it has taken.
    pub(crate) fn hold(&self, tid: u32, forks: u32, cpu_ns: u64, now: u64) -> Terms {
        self.tid.store(tid, Ordering::Relaxed);
        self.forks.store(forks, Ordering::Relaxed);
        self.base.store(cpu_ns, Ordering::Relaxed);
        self.as_of.store(now, Ordering::Relaxed);
        let number = self.state.load(Ordering::Relaxed) / STATES;
        // Pairs with `holder`.
        self.state.store((number + 1) * STATES + LIVE, Ordering::Release);
        Terms { start: self.start.load(Ordering::Relaxed), base: cpu_ns }
    }

    /// The end of a membership begins: refreshers who look after this discard what they have.
    pub(crate) fn begin_leaving(&self) {
        let number = self.state.load(Ordering::Relaxed) / STATES;
        self.state.store((number + 1) * STATES + LEAVING, Ordering::Relaxed);
        // Pairs with the fence of `is_still`: who has found us LIVE after reading our clock read it before we
        // read it for the last time, and has no more than we shall count.
        fence(Ordering::SeqCst);
    }

    /// The next member counts on from `count`: by the kernel's clock, so that what ours was ahead of it is
    /// taken back there.
    pub(crate) fn settle(&self, count: u64) {
        self.start.store(count, Ordering::Relaxed);
    }

    /// The place is free for the next member.
    pub(crate) fn release(&self) {
        let number = self.state.load(Ordering::Relaxed) / STATES;
        // Pairs with `take`.
        self.state.store((number + 1) * STATES + FREE, Ordering::Release);
    }

    /// Who holds the place, if anybody does.
    pub(crate) fn holder(&self) -> Option<Holder> {
        match self.found() {
            Found::Member(holder) => Some(holder),
            Found::Nobody | Found::Moving => None,
        }
    }

    /// Who is in the place.
    pub(crate) fn found(&self) -> Found {
        // Pairs with the stores of LIVE in `hold` and of FREE in `release`.
        let state = self.state.load(Ordering::Acquire);
        match state % STATES {
            LIVE => Found::Member(Holder {
                state,
                tid: self.tid.load(Ordering::Relaxed),
                forks: self.forks.load(Ordering::Relaxed),
                terms: Terms {
                    start: self.start.load(Ordering::Relaxed),
                    base: self.base.load(Ordering::Relaxed),
                },
            }),
            FREE => Found::Nobody,
            _ => Found::Moving,
        }
    }

    /// Whether a thread of this process, which has forked so often, may have used something here that is in no
    /// count yet: it is a member, or was one and has not settled.
    pub(crate) fn is_behind(&self, forks: u32) -> bool {
        // Pairs with the stores of LIVE in `hold` and of FREE in `release`: who finds the place free finds all that its
        // last member has used in the total.
        let state = self.state.load(Ordering::Acquire) % STATES;
        (state == LIVE || state == LEAVING) && self.forks.load(Ordering::Relaxed) == forks
    }

    /// Whether `holder`, and no other, has held the place all the time since it was looked up.
    pub(crate) fn is_still(&self, holder: &Holder) -> bool {
        // Pairs with the fences of `take` and `begin_leaving`.
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == holder.state
    }

    /// Raises the count, and says by how much: what the caller owes the total.
    #[inline]
    #[must_use = "whoever advances a record adds the difference to the total"]
    pub(crate) fn advance(&self, count: u64) -> u64 {
        count.saturating_sub(self.counted.fetch_max(count, Ordering::Relaxed))
    }

    pub(crate) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    pub(crate) fn as_of(&self) -> u64 {
        // Pairs with `set_as_of`: the count that is read next is at least as new.
        self.as_of.load(Ordering::Acquire)
    }

    /// The count was true at `moment`. Two who publish at once may leave the older of two moments, which only
    /// makes the record look staler than it is.
    #[inline]
    pub(crate) fn set_as_of(&self, moment: u64) {
        // Pairs with `as_of`.
        self.as_of.store(moment, Ordering::Release);
    }
}

/// The places of a group. They never move, and are made as members come.
#[derive(Debug, Default)]
pub(crate) struct Table {
    buckets: [OnceLock<Box<[Record]>>; BUCKETS],
    /// One past the highest place ever taken.
    length: AtomicUsize,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        // Pairs with `take`: the buckets below the mark are there.
        self.length.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn get(&self, place: usize) -> Option<&Record> {
        let bucket = (place / FIRST + 1).ilog2() as usize;
        self.buckets.get(bucket)?.get()?.get(place - FIRST * ((1 << bucket) - 1))
    }

    /// Takes a free place, the lowest one so that walks stay short.
    pub(crate) fn take(&self) -> Option<(usize, &Record)> {
        for place in 0..PLACES {
            let bucket = (place / FIRST + 1).ilog2() as usize;
            self.buckets[bucket].get_or_init(|| (0..FIRST << bucket).map(|_| Record::default()).collect());
            let record = self.get(place)?;
            if record.take() {
                // Pairs with `len`.
                self.length.fetch_max(place + 1, Ordering::AcqRel);
                return Some((place, record));
            }
        }
        None
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Record> {
        (0..self.len()).filter_map(|place| self.get(place))
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

/// The running total.
#[derive(Debug)]
pub(crate) struct Total {
    /// A power of two of them.
    shards: Box<[Shard]>,
}

impl Total {
    /// A total for `cpus` processors. A read adds to one shard and reads them all: with few processors one
    /// line that is fetched once is cheaper than two lines that each are.
    pub(crate) fn new(cpus: usize) -> Self {
        let shards = (cpus / 4).clamp(1, MOST_SHARDS).next_power_of_two();
        Self { shards: (0..shards).map(|_| Shard::default()).collect() }
    }

    /// Adds what the member of `place` was advanced by; the total after that.
    #[inline]
    pub(crate) fn add(&self, place: usize, ns: u64) -> u64 {
        let own = place & (self.shards.len() - 1);
        let mut sum = self.shards[own].0.fetch_add(ns, Ordering::Relaxed) + ns;
        for (index, shard) in self.shards.iter().enumerate() {
            if index != own {
                sum += shard.0.load(Ordering::Relaxed);
            }
        }
        sum
    }

    pub(crate) fn sum(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(table: &Table, tid: u32, cpu_ns: u64) -> (usize, &Record, Terms) {
        let (place, record) = table.take().unwrap();
        (place, record, record.hold(tid, 0, cpu_ns, 0))
    }

    fn leave(record: &Record, count: u64) {
        record.begin_leaving();
        record.settle(count);
        record.release();
    }

    #[test]
    fn each_nanosecond_is_owed_to_the_total_by_one_of_those_who_advance() {
        let record = Record::default();
        let owed: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (1..=100_000).map(|count| record.advance(count)).sum::<u64>()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(owed, 100_000);
    }

    #[test]
    fn a_place_counts_on_from_member_to_member() {
        let table = Table::default();
        let (place, record, first) = member(&table, 1, 1000);
        assert_eq!(record.advance(first.count(1500)), 500);
        leave(record, first.count(1500));
        let (again, record, second) = member(&table, 2, 70);
        assert_eq!((again, record.counted()), (place, 500));
        assert_eq!(record.advance(second.count(70)), 0);
        assert_eq!(record.advance(second.count(90)), 20);
    }

    #[test]
    fn a_refresher_that_comes_late_changes_nothing() {
        let table = Table::default();
        let (_, record, terms) = member(&table, 1, 0);
        let seen = record.holder().unwrap();
        let late = seen.terms.count(400);
        let _ = record.advance(terms.count(500));
        leave(record, terms.count(500));
        assert!(!record.is_still(&seen));
        // Even where it looked just before the member left.
        let (_, record, _) = member(&table, 2, 9000);
        assert_eq!(record.advance(late), 0);
        assert!(!record.is_still(&seen));
    }

    #[test]
    fn a_place_is_behind_from_its_members_coming_until_it_has_settled_unless_that_was_before_a_fork() {
        let record = Record::default();
        let behind = || (record.is_behind(0), record.is_behind(1));
        assert!(record.take());
        assert_eq!(behind(), (false, false), "nothing is used before the terms are set");
        record.hold(1, 1, 0, 0);
        assert_eq!(behind(), (false, true));
        record.begin_leaving();
        assert_eq!(behind(), (false, true));
        record.settle(record.counted());
        record.release();
        assert_eq!(behind(), (false, false));
    }

    #[test]
    fn what_a_clock_was_ahead_is_taken_back_from_the_next_member() {
        let table = Table::default();
        let (_, record, first) = member(&table, 1, 0);
        assert_eq!(record.advance(first.count(130)), 130);
        // The kernel says 100.
        leave(record, first.count(100));
        let (_, record, second) = member(&table, 2, 0);
        assert_eq!(record.advance(second.count(20)), 0);
        assert_eq!(record.advance(second.count(50)), 20);
        assert_eq!(record.counted(), 150);
    }

    #[test]
    fn members_get_the_lowest_free_place_across_buckets_until_all_are_taken() {
        let table = Table::default();
        for expected in 0..PLACES {
            assert_eq!(table.take().unwrap().0, expected);
        }
        assert!(table.take().is_none());
        assert_eq!((table.len(), table.iter().count()), (PLACES, PLACES));
        let record = table.get(200).unwrap();
        record.hold(1, 0, 0, 0);
        leave(record, 0);
        assert_eq!(table.take().unwrap().0, 200);
    }

    #[test]
    fn the_total_is_the_same_however_many_shards_hold_it() {
        for cpus in [1, 2, 8, 64] {
            let total = Total::new(cpus);
            assert!(total.shards.len() <= MOST_SHARDS && total.shards.len().is_power_of_two());
            let mut last = 0;
            for place in 0..100 {
                last = total.add(place, place as u64);
            }
            assert_eq!((last, total.sum()), (4950, 4950), "{cpus} processors");
        }
    }
}
