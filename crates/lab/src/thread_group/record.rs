//! Published CPU time: one record for each member, and the running total of all of them.
//!
//! A record is a *place* that members use one after another, and its count goes on from one to the
//! next. So a late refresher does no harm: its reading of a member that has left since is less than
//! the count with which the member left, and `fetch_max` ignores it.
//!
//! | state | event | next |
//! |---|---|---|
//! | `FREE` | a thread takes the place | `TAKEN` |
//! | `TAKEN` | its baseline is written | `LIVE` |
//! | `LIVE` | the member leaves; or a fork child has its parent's member | `LEAVING` |
//! | `LEAVING` | the last count is written | `FREE` |
//!
//! # Invariants
//!
//! 1. Only `fetch_max` moves `counted`, and the thread that moves it adds the difference to the
//!    total, once.
//! 2. The baseline of a record is written only in `TAKEN` and `LEAVING`. Every transition except
//!    that to `TAKEN` changes the number in `state`. So a reader that finds the same state before
//!    and after has seen the baseline of one member.
//! 3. A member is `LIVE` only while its thread is alive: it leaves before it ends. So a tid that is
//!    found with the same state before and after the thread's clock was read belonged to that
//!    thread all the time.
//! 4. The total never exceeds the sum of the counts. It lacks differences whose count has moved but
//!    which are not added yet.
//!
//! The counts are relaxed: each location only grows, so of two reads of the total of which one
//! happens before the other, the later finds every shard at least as large.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use dormouse_sys::sync::OnceBox;

/// Places in the first bucket; each further one has twice as many.
const FIRST: usize = 64;
const BUCKETS: usize = 7;
/// Places in a group.
pub(super) const PLACES: usize = FIRST * ((1 << BUCKETS) - 1);

const MOST_SHARDS: usize = 8;

const FREE: u64 = 0;
const TAKEN: u64 = 1;
const LIVE: u64 = 2;
const LEAVING: u64 = 3;
const STATES: u64 = 4;

/// The beginning of a membership: it turns a member's CPU time into the count of its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Baseline {
    /// The count when the member came.
    pub(super) start: u64,
    /// The member's CPU time when it came.
    pub(super) base: u64,
}

impl Baseline {
    /// The count when the member has used `cpu_ns`. (A clock that lags behind the kernel's by the
    /// width of its bracket may be below the base at first.)
    #[inline]
    pub(super) fn count(self, cpu_ns: u64) -> u64 {
        self.start + cpu_ns.saturating_sub(self.base)
    }
}

/// A member as a refresher sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    state: u64,
    pub(super) tid: u32,
    pub(super) forks: u32,
    pub(super) baseline: Baseline,
}

/// The occupant of a place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Occupant {
    /// No member, or none of this process.
    None,
    /// A thread that is joining or leaving; its time since the last publication may be in no
    /// record.
    Changing,
    /// A member.
    Member(Snapshot),
}

/// One place, on a cache line of its own (two, because lines are fetched in pairs): its owner
/// writes it at every read.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Record {
    /// Nanoseconds that the members of this place have used while they were members.
    counted: AtomicU64,
    /// The stamp of a time at which the member had used no more than that, by its own clock.
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
    /// Takes the place if it is free; no other thread touches the baseline from then on.
    fn take(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        // Pairs with the store of FREE in `release`: the last member's count is there.
        let taken = state % STATES == FREE
            && self
                .state
                .compare_exchange(state, state + TAKEN, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        // Pairs with the fence of `is_still`: a refresher that sees a new baseline sees that the
        // state has moved.
        fence(Ordering::Release);
        taken
    }

    /// Makes a thread that has used `cpu_ns` at stamp `now` the member of this place, which it has
    /// taken.
    pub(super) fn hold(&self, tid: u32, forks: u32, cpu_ns: u64, now: u64) -> Baseline {
        self.tid.store(tid, Ordering::Relaxed);
        self.forks.store(forks, Ordering::Relaxed);
        self.base.store(cpu_ns, Ordering::Relaxed);
        self.as_of.store(now, Ordering::Relaxed);
        let number = self.state.load(Ordering::Relaxed) / STATES;
        // Pairs with the load in `occupant`: the baseline is written.
        self.state.store((number + 1) * STATES + LIVE, Ordering::Release);
        Baseline { start: self.start.load(Ordering::Relaxed), base: cpu_ns }
    }

    /// The end of a membership begins: refreshers that look after this discard their readings.
    pub(super) fn begin_leaving(&self) {
        let number = self.state.load(Ordering::Relaxed) / STATES;
        self.state.store((number + 1) * STATES + LEAVING, Ordering::Relaxed);
        // Pairs with the fence of `is_still`: a refresher that finds the member LIVE after reading
        // its clock has read the clock before the member's own last reading, and has no more than
        // the member will count.
        fence(Ordering::SeqCst);
    }

    /// The next member counts on from `count`: by the kernel's clock, so that the time by which
    /// ours was ahead is taken back there.
    pub(super) fn settle(&self, count: u64) {
        self.start.store(count, Ordering::Relaxed);
    }

    /// The place is free for the next member.
    pub(super) fn release(&self) {
        let number = self.state.load(Ordering::Relaxed) / STATES;
        // Pairs with the exchange in `take` and the loads in `occupant` and `is_behind`.
        self.state.store((number + 1) * STATES + FREE, Ordering::Release);
    }

    /// The occupant now.
    pub(super) fn occupant(&self) -> Occupant {
        // Pairs with the stores of LIVE in `hold` and of FREE in `release`.
        let state = self.state.load(Ordering::Acquire);
        match state % STATES {
            LIVE => Occupant::Member(Snapshot {
                state,
                tid: self.tid.load(Ordering::Relaxed),
                forks: self.forks.load(Ordering::Relaxed),
                baseline: Baseline {
                    start: self.start.load(Ordering::Relaxed),
                    base: self.base.load(Ordering::Relaxed),
                },
            }),
            FREE => Occupant::None,
            _ => Occupant::Changing,
        }
    }

    /// Whether a thread of this process (the one with `forks` forks in its ancestry) may have used
    /// time that is in no count yet: it is a member, or was one and has not settled.
    pub(super) fn is_behind(&self, forks: u32) -> bool {
        // Pairs with the stores of LIVE in `hold` and of FREE in `release`: a reader that finds the
        // place free finds all that its last member has used in the total.
        let state = self.state.load(Ordering::Acquire) % STATES;
        (state == LIVE || state == LEAVING) && self.forks.load(Ordering::Relaxed) == forks
    }

    /// Whether `member`, and no other, has had the place all the time since the snapshot.
    pub(super) fn is_still(&self, member: &Snapshot) -> bool {
        // Pairs with the fences of `take` and `begin_leaving`.
        fence(Ordering::SeqCst);
        self.state.load(Ordering::Relaxed) == member.state
    }

    /// Raises the count, and gives the difference, which the caller adds to the total.
    #[inline]
    #[must_use = "the caller adds the difference to the total"]
    pub(super) fn advance(&self, count: u64) -> u64 {
        count.saturating_sub(self.counted.fetch_max(count, Ordering::Relaxed))
    }

    pub(super) fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    pub(super) fn as_of(&self) -> u64 {
        // Pairs with the store in `set_as_of`: the count that is read next is at least as new.
        self.as_of.load(Ordering::Acquire)
    }

    /// The count was true at `stamp`. Two threads that publish at once may leave the older of two
    /// stamps, which only makes the record look staler than it is.
    #[inline]
    pub(super) fn set_as_of(&self, stamp: u64) {
        // Pairs with the load in `as_of`.
        self.as_of.store(stamp, Ordering::Release);
    }
}

/// The places of a group. They never move, and are made as members come.
#[derive(Debug, Default)]
pub(super) struct Records {
    buckets: [OnceBox<Box<[Record]>>; BUCKETS],
    /// One past the highest place ever taken.
    length: AtomicUsize,
}

impl Records {
    pub(super) fn len(&self) -> usize {
        // Pairs with the maximum in `take`: the buckets below the mark are there.
        self.length.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&Record> {
        let bucket = (place / FIRST + 1).ilog2() as usize;
        self.buckets.get(bucket)?.get()?.get(place - FIRST * ((1 << bucket) - 1))
    }

    /// Takes a free place, the lowest one so that walks stay short.
    pub(super) fn take(&self) -> Option<(usize, &Record)> {
        for place in 0..PLACES {
            let bucket = (place / FIRST + 1).ilog2() as usize;
            self.buckets[bucket]
                .get_or_init(|| Box::new((0..FIRST << bucket).map(|_| Record::default()).collect()));
            let record = self.get(place)?;
            if record.take() {
                // Pairs with the load in `len`.
                self.length.fetch_max(place + 1, Ordering::Release);
                return Some((place, record));
            }
        }
        None
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        (0..self.len()).filter_map(|place| self.get(place))
    }
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(AtomicU64);

/// The running total.
#[derive(Debug)]
pub(super) struct Total {
    /// A power of two of them.
    shards: Box<[Shard]>,
}

impl Total {
    /// A total for `cpus` processors. A read adds to one shard and reads them all: with few
    /// processors one line that is fetched once is cheaper than two lines that each are.
    pub(super) fn new(cpus: usize) -> Self {
        let shards = (cpus / 4).clamp(1, MOST_SHARDS).next_power_of_two();
        Self { shards: (0..shards).map(|_| Shard::default()).collect() }
    }

    /// Adds the difference by which the record of `place` was advanced; gives the total after that.
    #[inline]
    pub(super) fn add(&self, place: usize, ns: u64) -> u64 {
        let own = place & (self.shards.len() - 1);
        let mut sum = self.shards[own].0.fetch_add(ns, Ordering::Relaxed) + ns;
        for (index, shard) in self.shards.iter().enumerate() {
            if index != own {
                sum += shard.0.load(Ordering::Relaxed);
            }
        }
        sum
    }

    pub(super) fn sum(&self) -> u64 {
        self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(table: &Records, tid: u32, cpu_ns: u64) -> (usize, &Record, Baseline) {
        let (place, record) = table.take().unwrap();
        (place, record, record.hold(tid, 0, cpu_ns, 0))
    }

    fn leave(record: &Record, count: u64) {
        record.begin_leaving();
        record.settle(count);
        record.release();
    }

    #[test]
    fn each_nanosecond_is_added_by_one_thread() {
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
        let table = Records::default();
        let (place, record, first) = member(&table, 1, 1000);
        assert_eq!(record.advance(first.count(1500)), 500);
        leave(record, first.count(1500));
        let (again, record, second) = member(&table, 2, 70);
        assert_eq!((again, record.counted()), (place, 500));
        assert_eq!(record.advance(second.count(70)), 0);
        assert_eq!(record.advance(second.count(90)), 20);
    }

    #[test]
    fn a_late_refresher_changes_nothing() {
        let table = Records::default();
        let (_, record, baseline) = member(&table, 1, 0);
        let Occupant::Member(seen) = record.occupant() else { panic!("no member") };
        let late = seen.baseline.count(400);
        let _ = record.advance(baseline.count(500));
        leave(record, baseline.count(500));
        assert!(!record.is_still(&seen));
        // Also if it looked just before the member left.
        let (_, record, _) = member(&table, 2, 9000);
        assert_eq!(record.advance(late), 0);
        assert!(!record.is_still(&seen));
    }

    #[test]
    fn a_place_is_behind_until_settled() {
        let record = Record::default();
        let behind = || (record.is_behind(0), record.is_behind(1));
        assert!(record.take());
        assert_eq!(behind(), (false, false), "nothing is used before the baseline are set");
        record.hold(1, 1, 0, 0);
        assert_eq!(behind(), (false, true));
        record.begin_leaving();
        assert_eq!(behind(), (false, true));
        record.settle(record.counted());
        record.release();
        assert_eq!(behind(), (false, false));
    }

    #[test]
    fn a_clocks_lead_is_taken_back_later() {
        let table = Records::default();
        let (_, record, first) = member(&table, 1, 0);
        assert_eq!(record.advance(first.count(130)), 130);
        // The kernel's value is 100.
        leave(record, first.count(100));
        let (_, record, second) = member(&table, 2, 0);
        assert_eq!(record.advance(second.count(20)), 0);
        assert_eq!(record.advance(second.count(50)), 20);
        assert_eq!(record.counted(), 150);
    }

    #[test]
    fn members_get_the_lowest_free_place() {
        let table = Records::default();
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
    fn the_total_does_not_depend_on_the_shards() {
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
