//! CPU time of a group of threads as one number, without a system call.
//!
//! Each member publishes its CPU time in a record of its own and adds it to the group's total: at
//! each of its own reads, and when it leaves. Readers bring the other members up to date: when the
//! last refresh is older than the tolerance, one reader walks the members and reads the clocks of
//! those whose record is older than that. Only CPU time that was used is added. A member that was
//! running a moment ago may not have run since, so no time is extrapolated.
//!
//! # Invariants
//!
//! 1. The total never steps back, and is never ahead of the members' own clocks.
//! 2. A read adds the reader's own time before it loads the total, so a read that happens after it,
//!    on any thread, returns at least as much.
//! 3. No thread waits: a walk holds nothing, and a walker that is descheduled half-way delays only
//!    its own part.
//!
//! # Async-signal-safety
//!
//! Signal handlers may read on a thread that has read the group outside of a handler before.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dormouse_clock::lab::{ns_to_ticks, processors, thread_cpu_ns_at};
use dormouse_clock::{Budget, stamp, thread_cpu_ns_of, ticks_to_ns};
use dormouse_sys::prefetch;
use dormouse_sys::process::identity;

use self::membership::{Membership, Shared};
use self::record::{Occupant, Record, Records, Total};
use crate::error::Error;

mod membership;
mod record;

pub use self::membership::Refresh;

/// Places that one walk of a reader visits, at most, for each member that it may ask.
const LOOKED_AT: usize = 2;

/// CPU time of a group, with a bound on what is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTime {
    /// CPU time in nanoseconds.
    pub ns: u64,
    /// The most that the members may have used in addition, in nanoseconds.
    pub behind_ns: u64,
}

/// Threads whose CPU time is read as one number. Clones are the same group.
#[derive(Debug, Clone)]
pub struct ThreadGroup {
    shared: Arc<Shared>,
}

/// Keeps the calling thread in a group. When it is dropped, the thread leaves the group, and its
/// time stays counted.
#[derive(Debug)]
#[must_use = "the thread is in the group as long as the guard lives"]
pub struct Member {
    shared: Arc<Shared>,
    /// A membership belongs to its thread.
    not_send: PhantomData<*const ()>,
}

impl Default for ThreadGroup {
    fn default() -> Self {
        Self::with_refresh(Refresh::default())
    }
}

impl ThreadGroup {
    /// A group without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// A group whose readers refresh it by these rules.
    ///
    /// # Cost
    ///
    /// The first group of a process may calibrate the clock, see [`dormouse_clock::thread_cpu_ns`].
    pub fn with_refresh(refresh: Refresh) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let cpus = processors();
        let tolerance = u64::try_from(refresh.tolerance.as_nanos()).unwrap_or(u64::MAX);
        Self {
            shared: Arc::new(Shared {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                refresh,
                cpus: cpus as u64,
                records: Records::default(),
                total: Total::new(cpus),
                refreshed: AtomicU64::new(stamp()),
                tolerance: AtomicU64::new(ns_to_ticks(tolerance)),
                cursor: AtomicUsize::new(0),
            }),
        }
    }

    /// Makes the calling thread a member: its CPU time from now on counts for the group. A thread
    /// that is a member already stays one until its last guard is dropped. If a guard is never
    /// dropped, the thread leaves when it ends, by the destructor of a thread-local; a thread that
    /// ends without running destructors (a bare `exit` system call) must have left before.
    ///
    /// # Cost
    ///
    /// A system call, and a load for each place up to the first free one.
    ///
    /// # Errors
    ///
    /// If the group has no free place, if the thread is in four groups, or if it is ending.
    pub fn join(&self) -> Result<Member, Error> {
        membership::join(&self.shared)?;
        Ok(Member { shared: Arc::clone(&self.shared), not_send: PhantomData })
    }

    /// CPU time that all members have used while they were members, in nanoseconds. A member's read
    /// includes its own time until now. That of others is as old as their last publication: about
    /// the tolerance for each [`Refresh::most`] members, or for each twice as many places (as many
    /// as there ever were members at once).
    ///
    /// # Cost
    ///
    /// For a member one read of its clock and two atomic additions, for other threads a few loads.
    /// Once a tolerance, a walk more: a system call for each member that is read.
    #[inline]
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns()
    }

    /// CPU time of all members as [`ThreadGroup::cpu_ns`] returns it, with a bound on the time that
    /// it leaves out.
    ///
    /// The bound does not include the lead of a member's clock (steal and interrupts within an
    /// epoch, at most a millisecond for each member) and its lag (half of the bracket of its last
    /// resync, a fraction of a microsecond).
    ///
    /// # Cost
    ///
    /// The cost of [`ThreadGroup::cpu_ns`], and a load of each record.
    pub fn read(&self) -> GroupTime {
        self.shared.read()
    }

    /// Walks now, however recent the last refresh is. Returns the number of members that were read,
    /// at most [`Refresh::most`].
    ///
    /// # Cost
    ///
    /// A system call for each of them, and a load of each place.
    pub fn refresh(&self) -> usize {
        self.shared.walk(stamp(), 0, usize::MAX)
    }

    /// Whether the calling thread is a member.
    pub(crate) fn is_member(&self) -> bool {
        membership::find(self.shared.id).is_some()
    }

    /// Asks the kernel for every member, however many there are: the records then hold the time of
    /// each before the call. False when they may not, because a thread was coming or leaving.
    pub(crate) fn refresh_all(&self) -> bool {
        let now = stamp();
        let mut settled = true;
        for (place, record) in self.shared.records.iter().enumerate() {
            settled &= !matches!(self.shared.bring_up_to_date(place, record, now), Occupant::Changing);
        }
        settled
    }

    /// In a fork child: threads that were coming or leaving are the parent's.
    pub(crate) fn forget_movers(&self) {
        for record in self.shared.records.iter() {
            if matches!(record.occupant(), Occupant::Changing) {
                record.release();
            }
        }
    }

    /// The sum of all records; the total may lack some of it yet.
    pub(crate) fn counted(&self) -> u64 {
        self.shared.records.iter().map(Record::counted).sum()
    }

    /// The total as it is.
    pub(crate) fn total(&self) -> u64 {
        self.shared.total.sum()
    }

    /// Processors that members may run on at once.
    pub(crate) fn cpus(&self) -> u64 {
        self.shared.cpus
    }

    /// Number of threads that are members now.
    pub fn members(&self) -> usize {
        let is_member = |record: &&Record| matches!(record.occupant(), Occupant::Member(_));
        self.shared.records.iter().filter(is_member).count()
    }
}

impl ThreadGroup {
    /// [`Budget::new`] on the group's CPU time.
    ///
    /// # Errors
    ///
    /// Those of [`Budget::new`].
    pub fn budget(&self, budget: Duration) -> Result<Budget, dormouse_clock::Error> {
        Budget::new(self.clone(), budget)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        membership::leave(&self.shared);
    }
}

impl Shared {
    #[inline]
    fn cpu_ns(&self) -> u64 {
        let Some(own) = membership::find(self.id).filter(Membership::is_own) else {
            return self.cpu_ns_from_outside();
        };
        let (used, now) = thread_cpu_ns_at();
        let Some(record) = self.records.get(own.place) else { return self.total.sum() };
        let total = self.total.add(own.place, record.advance(own.baseline.count(used)));
        record.set_as_of(now);
        if self.is_due(now) && self.walk_if_first(now) { self.total.sum() } else { total }
    }

    #[cold]
    fn cpu_ns_from_outside(&self) -> u64 {
        // A member comes here in a fork child: its clock has begun again, and its record names the
        // parent's thread.
        if let Some(Membership { place, .. }) = membership::find(self.id)
            && let Some(record) = self.records.get(place)
        {
            record.begin_leaving();
            record.settle(record.counted());
            membership::replace(self.id, Membership::begin(place, record));
        }
        let now = stamp();
        if self.is_due(now) {
            self.walk_if_first(now);
        }
        self.total.sum()
    }

    #[inline]
    fn is_due(&self, now: u64) -> bool {
        // A stamp that went backwards (the counter was reset) makes the difference large: due.
        let since = now.wrapping_sub(self.refreshed.load(Ordering::Relaxed));
        since > self.tolerance.load(Ordering::Relaxed)
    }

    /// Walks, unless another reader has begun to since we looked; false then.
    #[cold]
    fn walk_if_first(&self, now: u64) -> bool {
        let tolerance = u64::try_from(self.refresh.tolerance.as_nanos()).unwrap_or(u64::MAX);
        if tolerance > 0 {
            let last = self.refreshed.load(Ordering::Relaxed);
            // Another reader's stamp may be a little later than ours, and is no jump.
            let begun = now.wrapping_sub(last).min(last.wrapping_sub(now));
            if begun <= self.tolerance.load(Ordering::Relaxed)
                || self.refreshed.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                return false;
            }
            // The rate is known better by now.
            self.tolerance.store(ns_to_ticks(tolerance), Ordering::Relaxed);
        }
        self.walk(now, self.tolerance.load(Ordering::Relaxed), self.refresh.most.saturating_mul(LOOKED_AT));
        true
    }

    /// Brings records that are older than `tolerance` up to date, [`Refresh::most`] of them, and
    /// visits `places` for that: those behind the last walk's first. How many.
    fn walk(&self, now: u64, tolerance: u64, places: usize) -> usize {
        let length = self.records.len();
        let tolerance = i64::try_from(tolerance).unwrap_or(i64::MAX);
        let mut asked = 0;
        let mut place = self.cursor.load(Ordering::Relaxed);
        for _ in 0..length.min(places) {
            place = if place + 1 < length { place + 1 } else { 0 };
            if self.refresh.prefetch
                && let Some(next) = self.records.get(if place + 1 < length { place + 1 } else { 0 })
            {
                prefetch(next);
            }
            let Some(record) = self.records.get(place) else { continue };
            // Signed: a record that was published after we began is fresh.
            if now.wrapping_sub(record.as_of()).cast_signed() > tolerance
                && matches!(self.bring_up_to_date(place, record, now), Occupant::Member(_))
            {
                asked += 1;
                if asked >= self.refresh.most {
                    break;
                }
            }
        }
        self.cursor.store(place, Ordering::Relaxed);
        asked
    }

    /// Asks the kernel for the CPU time of the member of `place`, and names the member whose record
    /// is up to date now.
    fn bring_up_to_date(&self, place: usize, record: &Record, now: u64) -> Occupant {
        let occupant = record.occupant();
        let Occupant::Member(member) = occupant else { return occupant };
        if member.forks != identity::forks() {
            return Occupant::None;
        }
        // None: the thread has ended without leaving, and no thread will publish for it any more.
        let Some(used) = thread_cpu_ns_of(member.tid) else { return Occupant::None };
        // Asked again: the thread may have left, ended, and its number gone to another.
        if !record.is_still(&member) {
            return Occupant::Changing;
        }
        let difference = record.advance(member.baseline.count(used));
        if difference > 0 {
            self.total.add(place, difference);
        }
        record.set_as_of(now);
        occupant
    }

    fn read(&self) -> GroupTime {
        // First, so that our own record is of now and a walk that is due is done.
        self.cpu_ns();
        let now = stamp();
        let (mut counted, mut behind, mut oldest) = (0, 0_u64, 0);
        for record in self.records.iter() {
            // The stamp before the count: a count that is newer than its stamp is no harm.
            let age = now.wrapping_sub(record.as_of()).cast_signed().max(0).cast_unsigned();
            counted += record.counted();
            if record.is_behind(identity::forks()) {
                behind = behind.saturating_add(age);
                oldest = oldest.max(age);
            }
        }
        let ns = self.total.sum();
        // No more members run at once than there are processors.
        let behind = ticks_to_ns(behind.min(oldest.saturating_mul(self.cpus)));
        // A difference that a thread has advanced and not added yet is in no total.
        GroupTime { ns, behind_ns: behind + counted.saturating_sub(ns) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_looks_at_few_places() {
        let most = 2;
        let group = ThreadGroup::with_refresh(Refresh { most, ..Refresh::default() });
        let taken: Vec<_> = (0..1000).filter_map(|_| group.shared.records.take()).collect();
        for (_, record) in &taken {
            record.release();
        }
        let began = group.shared.cursor.load(Ordering::Relaxed);
        let later = stamp() + ns_to_ticks(10_000_000);
        assert!(group.shared.walk_if_first(later));
        let looked_at = group.shared.cursor.load(Ordering::Relaxed) - began;
        assert_eq!(looked_at, LOOKED_AT * most);
        // The next goes on there, and one that is asked for goes round.
        assert!(group.shared.walk_if_first(later + ns_to_ticks(10_000_000)));
        assert_eq!(group.shared.cursor.load(Ordering::Relaxed) - began, 2 * looked_at);
        let _member = group.join().unwrap();
        assert_eq!(group.refresh(), 1);
    }
}
