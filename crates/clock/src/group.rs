//! CPU time of a group of threads, as one number that costs no system call.
//!
//! Each member publishes what it has used in a record of its own and adds it to the group's total: at each
//! of its own reads, and when it leaves. Those who do not read are brought up to date by those who do: when
//! the last refresh is older than the tolerance, one reader walks the members and asks the kernel for the
//! clocks of those whose record is older than that. Only CPU time is ever added. That a member was running
//! a moment ago does not say that it has run since, so no time is extrapolated for it.
//!
//! # Invariants
//!
//! 1. The total never steps back, and is never ahead of what the members' own clocks have shown.
//! 2. A read adds the reader's own time before it looks at the total, so a read that happens after it, on any
//!    thread, is at least as large.
//! 3. Nobody waits: a walk holds nothing, and a walker that is descheduled half-way delays its own part
//!    alone.
//!
//! # Async-signal-safety
//!
//! Reads may be made in signal handlers of a thread that has read the group outside of one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::error::Error;
use crate::record::{Found, PLACES, Record, Table, Total};
use crate::seat::{self, Seat};
use crate::thread::thread_cpu_ns_at;
use crate::{arch, kernel, moment};

/// When and how readers bring the records of others up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refresh {
    /// How old the last refresh may be before a reader walks again; zero: every read does.
    pub tolerance: Duration,
    /// Members that one walk asks the kernel for, at most; the next walk goes on behind them.
    pub most: usize,
    /// Whether the next record is fetched into the cache while the kernel is asked for the present one.
    pub prefetch: bool,
}

impl Default for Refresh {
    fn default() -> Self {
        Self { tolerance: Duration::from_millis(1), most: 64, prefetch: true }
    }
}

/// CPU time of a group and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTime {
    /// CPU time, in nanoseconds.
    pub ns: u64,
    /// The members may have used so much more, in nanoseconds.
    pub behind_ns: u64,
}

/// Threads whose CPU time is read as one number. Clones are the same group.
#[derive(Debug, Clone)]
pub struct ThreadGroup {
    shared: Arc<Shared>,
}

/// What the clones share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Never reused in a process, and not 0.
    id: u64,
    refresh: Refresh,
    cpus: u64,
    records: Table,
    total: Total,
    /// The moment of the last walk's beginning.
    refreshed: AtomicU64,
    /// The tolerance as a difference between moments.
    tolerance: AtomicU64,
    /// The place where the next walk begins.
    cursor: AtomicUsize,
}

/// Keeps the calling thread in a group; dropped, the thread leaves it, and what it has used stays counted.
#[derive(Debug)]
#[must_use = "the thread is in the group as long as the guard lives"]
pub struct Member {
    shared: Arc<Shared>,
    /// A membership belongs to its thread.
    not_send: PhantomData<*const ()>,
}

/// What came of asking for the member of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// There is none.
    Nobody,
    /// Somebody comes or goes.
    Moving,
    /// The record is up to date now.
    Member,
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

    /// A group whose readers refresh it as told.
    ///
    /// # Cost
    ///
    /// The first one in a process may calibrate the clock, see [`crate::thread_cpu_ns`].
    pub fn with_refresh(refresh: Refresh) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let cpus = kernel::processors();
        let tolerance = u64::try_from(refresh.tolerance.as_nanos()).unwrap_or(u64::MAX);
        Self {
            shared: Arc::new(Shared {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                refresh,
                cpus: cpus as u64,
                records: Table::default(),
                total: Total::new(cpus),
                refreshed: AtomicU64::new(moment::now()),
                tolerance: AtomicU64::new(moment::from_ns(tolerance)),
                cursor: AtomicUsize::new(0),
            }),
        }
    }

    /// Makes the calling thread a member: what it uses from now on is the group's. A thread that is one
    /// already stays one until the last of its guards is dropped. One whose guard is never dropped leaves
    /// when it ends, by the destructor of a thread-local; a thread that ends without running those (a bare
    /// `exit` system call) must have left.
    ///
    /// # Cost
    ///
    /// A system call, and a look at each place up to the first free one.
    ///
    /// # Errors
    ///
    /// When the group has no place free, the thread is in four groups, or it is at its end.
    pub fn join(&self) -> Result<Member, Error> {
        seat::join(&self.shared, || self.shared.take())?;
        Ok(Member { shared: Arc::clone(&self.shared), not_send: PhantomData })
    }

    /// CPU time of all members while they were members, in nanoseconds. A member's read includes its own time
    /// until now; that of others is as old as their last publication, about the tolerance for each
    /// [`Refresh::most`] members.
    ///
    /// # Cost
    ///
    /// For a member one read of its clock and two atomic additions, for others a few loads; plus, once a
    /// tolerance, a walk: a system call for each member asked.
    #[inline]
    pub fn cpu_ns(&self) -> u64 {
        self.shared.cpu_ns()
    }

    /// CPU time of all members as [`ThreadGroup::cpu_ns`] gives it, with a bound on what it leaves out.
    ///
    /// Not in the bound: what a member's clock may be ahead, by steal and interrupts inside an epoch: a
    /// millisecond at most for each member; and what it may lag, half of the bracket of its last question: a
    /// fraction of a microsecond.
    ///
    /// # Cost
    ///
    /// That of [`ThreadGroup::cpu_ns`], and a look at each record.
    pub fn read(&self) -> GroupTime {
        self.shared.read()
    }

    /// Walks now, however recent the last refresh is: the members asked, at most [`Refresh::most`].
    ///
    /// # Cost
    ///
    /// A system call for each of them.
    pub fn refresh(&self) -> usize {
        self.shared.walk(moment::now(), 0, self.shared.refresh.most)
    }

    /// Whether the calling thread is a member.
    pub(crate) fn is_member(&self) -> bool {
        seat::find(self.shared.id).is_some()
    }

    /// Asks the kernel for every member, however many there are: the records then hold what each had used
    /// before the call. False when they may not, because somebody was coming or going.
    pub(crate) fn refresh_all(&self) -> bool {
        let now = moment::now();
        let mut settled = true;
        for (place, record) in self.shared.records.iter().enumerate() {
            settled &= self.shared.bring_up_to_date(place, record, now) != Asked::Moving;
        }
        settled
    }

    /// In a fork child: nobody is coming or going who was in the parent.
    pub(crate) fn forget_movers(&self) {
        for record in self.shared.records.iter() {
            if matches!(record.found(), Found::Moving) {
                record.release();
            }
        }
    }

    /// What all records hold; the total may lack some of it yet.
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

    /// Threads that are members now.
    pub fn members(&self) -> usize {
        self.shared.records.iter().filter(|record| record.holder().is_some()).count()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        seat::leave(self.shared.id, |seat| self.shared.free(seat));
    }
}

impl Shared {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn take(&self) -> Result<Seat, Error> {
        let (place, record) = self.records.take().ok_or(Error::Full { places: PLACES })?;
        Ok(sit_down(place, record))
    }

    /// The calling thread's place goes to the next, and its count is settled by the kernel's clock.
    pub(crate) fn free(&self, seat: Seat) {
        let Some(record) = self.records.get(seat.place) else { return };
        record.begin_leaving();
        // A place from before a fork: the time since is not told from the parent's, and little.
        let used = if seat.forks == seat::forks() { kernel::thread_ns() } else { 0 };
        let count = seat.terms.count(used);
        self.total.add(seat.place, record.advance(count));
        record.settle(if used > 0 { count } else { record.counted() });
        record.release();
    }

    #[inline]
    fn cpu_ns(&self) -> u64 {
        let Some(seat) = seat::find(self.id).filter(|seat| seat.forks == seat::forks()) else {
            return self.cpu_ns_from_outside();
        };
        let (used, now) = thread_cpu_ns_at();
        let Some(record) = self.records.get(seat.place) else { return self.total.sum() };
        let total = self.total.add(seat.place, record.advance(seat.terms.count(used)));
        record.set_as_of(now);
        if self.is_due(now) && self.walk_if_first(now) { self.total.sum() } else { total }
    }

    #[cold]
    fn cpu_ns_from_outside(&self) -> u64 {
        if let Some(seat) = seat::find(self.id) {
            // In a fork child: our clock has begun again, and the thread that the record names is the
            // parent's.
            if let Some(record) = self.records.get(seat.place) {
                record.begin_leaving();
                record.settle(record.counted());
                seat::replace(self.id, sit_down(seat.place, record));
            }
        }
        let now = moment::now();
        if self.is_due(now) {
            self.walk_if_first(now);
        }
        self.total.sum()
    }

    #[inline]
    fn is_due(&self, now: u64) -> bool {
        // A moment that went backwards (the counter was reset) makes the difference large: due.
        let since = now.wrapping_sub(self.refreshed.load(Ordering::Relaxed));
        since > self.tolerance.load(Ordering::Relaxed)
    }

    /// Walks, unless another reader has begun to since we looked; false then.
    #[cold]
    fn walk_if_first(&self, now: u64) -> bool {
        let tolerance = u64::try_from(self.refresh.tolerance.as_nanos()).unwrap_or(u64::MAX);
        if tolerance > 0 {
            let last = self.refreshed.load(Ordering::Relaxed);
            // Another reader's moment may be a little later than ours, and is no jump.
            let begun = now.wrapping_sub(last).min(last.wrapping_sub(now));
            if begun <= self.tolerance.load(Ordering::Relaxed)
                || self.refreshed.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
            {
                return false;
            }
            // The rate is known better by now.
            self.tolerance.store(moment::from_ns(tolerance), Ordering::Relaxed);
        }
        self.walk(now, self.tolerance.load(Ordering::Relaxed), self.refresh.most);
        true
    }

    /// Brings records that are older than `tolerance` up to date, `most` of them: those behind the last
    /// walk's first. How many.
    fn walk(&self, now: u64, tolerance: u64, most: usize) -> usize {
        let length = self.records.len();
        let tolerance = i64::try_from(tolerance).unwrap_or(i64::MAX);
        let mut asked = 0;
        let mut place = self.cursor.load(Ordering::Relaxed);
        for _ in 0..length {
            place = if place + 1 < length { place + 1 } else { 0 };
            if self.refresh.prefetch
                && let Some(next) = self.records.get(if place + 1 < length { place + 1 } else { 0 })
            {
                arch::prefetch(next);
            }
            let Some(record) = self.records.get(place) else { continue };
            // Signed: what was published after we began is fresh.
            if now.wrapping_sub(record.as_of()).cast_signed() > tolerance
                && self.bring_up_to_date(place, record, now) == Asked::Member
            {
                asked += 1;
                if asked >= most {
                    break;
                }
            }
        }
        self.cursor.store(place, Ordering::Relaxed);
        asked
    }

    /// Asks the kernel what the member of `place` has used.
    fn bring_up_to_date(&self, place: usize, record: &Record, now: u64) -> Asked {
        let holder = match record.found() {
            Found::Member(holder) if holder.forks == seat::forks() => holder,
            Found::Member(_) | Found::Nobody => return Asked::Nobody,
            Found::Moving => return Asked::Moving,
        };
        // None: it has ended without leaving, and nobody will publish for it any more.
        let Some(used) = kernel::thread_cpu_ns_of(holder.tid) else { return Asked::Nobody };
        // Asked again: the thread may have left, ended, and its number gone to another.
        if !record.is_still(&holder) {
            return Asked::Moving;
        }
        let owed = record.advance(holder.terms.count(used));
        if owed > 0 {
            self.total.add(place, owed);
        }
        record.set_as_of(now);
        Asked::Member
    }

    fn read(&self) -> GroupTime {
        // First, so that our own record is of now and what is due is done.
        self.cpu_ns();
        let now = moment::now();
        let (mut counted, mut behind, mut oldest) = (0, 0_u64, 0);
        for record in self.records.iter() {
            // The moment before the count: a count that is newer than its moment is no harm.
            let age = now.wrapping_sub(record.as_of()).cast_signed().max(0).cast_unsigned();
            counted += record.counted();
            if record.is_behind(seat::forks()) {
                behind = behind.saturating_add(age);
                oldest = oldest.max(age);
            }
        }
        let ns = self.total.sum();
        // No more members run at once than there are processors.
        let behind = moment::to_ns(behind.min(oldest.saturating_mul(self.cpus)));
        // What somebody has advanced and not added yet is in no total.
        GroupTime { ns, behind_ns: behind + counted.saturating_sub(ns) }
    }
}

/// Makes the calling thread the member of a place that it has taken.
fn sit_down(place: usize, record: &Record) -> Seat {
    let tid = rustix::thread::gettid().as_raw_pid().cast_unsigned();
    let forks = seat::forks();
    let now = moment::now();
    let terms = record.hold(tid, forks, kernel::thread_ns(), now);
    Seat { place, terms, forks }
}
