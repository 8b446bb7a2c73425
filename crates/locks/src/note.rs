//! The notes of a thread that takes, waits for, and leaves a lock.
//!
//! 1. It *begins*: it finds its row, and marks on its shelf which lock it touches.
//! 2. It tries the lock. If that is free, the thread is its holder (4).
//! 3. Otherwise it looks up the holder, notes that it waits, and waits.
//! 4. It notes itself as the holder, and counts the acquisition. A wait ends after that.
//! 5. It *leaves*: it marks the lock again, removes itself, and then frees the lock.
//!
//! So the holder of a lock is in the table, or was never noted, or is at this moment between lock
//! and table. The third is short, and a thread that waits looks a few times. It says that a lock
//! was held *before* anybody looked only where that is certain: no other thread has touched the
//! lock last of all, none waits for it, and there was room for every holder.

use std::hint::spin_loop;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::stamp;

use crate::kind::LockKind;
use crate::row::{Blame, LockHolder, Row};
use crate::rows::{self, Here, have_others_touched, row};
use crate::run::{Run, are_noted, run};
use crate::table::{Entry, Token};

pub(crate) use tables::{HOLDERS, WAITERS};

/// The tables of this process.
#[cfg(not(all(test, loom)))]
mod tables {
    use crate::table::Table;

    /// Room for 8,192 locks that are held.
    pub(crate) static HOLDERS: Table<1024> = Table::new();
    /// Room for 2,048 threads and tasks that wait.
    pub(crate) static WAITERS: Table<256> = Table::new();
}

/// Models have tables of their own, and loom has no constant atomics.
#[cfg(all(test, loom))]
mod tables {
    use std::sync::LazyLock;

    use crate::table::Table;

    pub(crate) static HOLDERS: LazyLock<Table<1024>> = LazyLock::new(Table::new);
    pub(crate) static WAITERS: LazyLock<Table<256>> = LazyLock::new(Table::new);
}

/// One acquisition in this number is timed.
const SAMPLED: u64 = 16;
/// How often a thread that waits looks for the holder.
const LOOKS: usize = 32;
/// In `Entry::flags`: a wait that ends by time.
const TIMED: u32 = 1 << 8;

static LOST_HOLDERS: AtomicU64 = AtomicU64::new(0);
static LOST_ROWS: AtomicU64 = AtomicU64::new(0);
/// Both together, just before the run began.
static LOST_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A lock that is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lock {
    pub(crate) address: usize,
    pub(crate) kind: LockKind,
    /// The type of its value; empty if it is not known.
    pub(crate) name: &'static str,
}

/// How often there was no room for a holder, and for a row.
pub(crate) fn lost() -> [u64; 2] {
    [&LOST_HOLDERS, &LOST_ROWS].map(|lost| lost.load(Ordering::Relaxed))
}

/// To be called before a run begins.
pub(crate) fn begin_run() {
    LOST_BEFORE.store(lost().iter().sum(), Ordering::Relaxed);
}

/// In a forked child.
pub(crate) fn forget() {
    HOLDERS.clear();
    WAITERS.clear();
    rows::forget();
    LOST_HOLDERS.store(0, Ordering::Relaxed);
    LOST_ROWS.store(0, Ordering::Relaxed);
}

impl Entry {
    /// Whether it is a wait that ends by time.
    pub(crate) fn is_timed(&self) -> bool {
        self.flags & TIMED != 0
    }
}

/// The place in which a thread's last lock is remembered, for this run.
#[inline]
fn mark(address: usize, run: u32) -> usize {
    address ^ (run as usize).rotate_right(16)
}

/// A thread that is about to take a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker {
    here: Here,
    lock: Lock,
    row: &'static Row,
    task: u64,
    run: Run,
}

impl Taker {
    /// Begins; `None`: locks are not noted, or not this one.
    #[inline]
    pub(crate) fn begin(lock: Lock, site: &'static Location<'static>) -> Option<Self> {
        let run = run()?;
        let found = Here::current().and_then(|here| {
            let task = here.task();
            let row = here.shelf.row(site, task.group, lock.kind, lock.name)?;
            Some(Self { here, lock, row, task: task.task, run })
        });
        if found.is_none() {
            LOST_ROWS.fetch_add(1, Ordering::Relaxed);
        }
        let taker = found?;
        taker.here.shelf.touch(mark(lock.address, run.number));
        Some(taker)
    }

    fn entry(&self, since: u64, flags: u32) -> Entry {
        Entry {
            address: self.lock.address,
            row: self.row.number(),
            tid: self.here.shelf.tid(),
            since,
            task: self.task,
            run: self.run.number,
            flags,
        }
    }

    /// The thread has the lock, without a wait.
    #[inline]
    pub(crate) fn taken(self) -> Held {
        let before = self.row.acquired();
        let is_timed = self.run.times_all || before.is_multiple_of(SAMPLED);
        self.hold(if is_timed { stamp() } else { 0 })
    }

    /// The thread has a lock whose guard has no room for a [`Held`]: it leaves by its address.
    #[cfg(feature = "parking-lot")]
    pub(crate) fn taken_by_address(self) {
        forget_held(self.taken());
    }

    /// The thread has the lock after a wait.
    pub(crate) fn taken_after_wait(self) -> Held {
        self.row.acquired();
        self.hold(stamp())
    }

    #[inline]
    fn hold(self, since: u64) -> Held {
        let entry = self.entry(since, 0);
        let token = if self.lock.kind.is_alone() {
            HOLDERS.put_alone(&entry)
        } else {
            HOLDERS.put_beside(&entry, self.here.shelf.index())
        };
        if token.is_none() {
            LOST_HOLDERS.fetch_add(1, Ordering::Relaxed);
        }
        Held(token)
    }

    /// The thread, or the task, waits from now on, unless it gets the lock by another attempt.
    #[cold]
    pub(crate) fn wait<G>(self, is_timed: bool, attempt: &mut dyn FnMut() -> Option<G>) -> Result<G, Wait> {
        let mut by = self.holder();
        for _ in 0..LOOKS {
            if by.is_some() {
                break;
            }
            if let Some(guard) = attempt() {
                return Ok(guard);
            }
            spin_loop();
            by = self.holder();
        }
        let by = by.unwrap_or_else(|| self.unseen());
        Err(self.wait_for(by, is_timed))
    }

    /// Waits if there is a holder: for a lock that cannot be tried.
    pub(crate) fn wait_for_holder(self) -> Option<Wait> {
        self.holder().map(|by| self.wait_for(by, false))
    }

    fn wait_for(self, by: Blame, is_timed: bool) -> Wait {
        let (began, flags) = (stamp(), if is_timed { TIMED } else { 0 });
        // A wait that has no room is counted when it is over, and not shown before.
        let token = WAITERS.put_beside(&self.entry(began, flags), self.here.shelf.index());
        if token.is_none() {
            LOST_HOLDERS.fetch_add(1, Ordering::Relaxed);
        }
        Wait { row: self.row, token, began, by, is_over: false }
    }

    /// The holder that is in the table: of several the one that has held the lock for longest.
    fn holder(&self) -> Option<Blame> {
        let held = HOLDERS.find(self.lock.address, self.lock.kind.is_of_one());
        let held = held.map(|(_, entry)| entry).filter(|entry| entry.run == self.run.number);
        let oldest = held.min_by_key(|entry| if entry.since == 0 { u64::MAX } else { entry.since });
        let blame = |entry: Entry| {
            let by = LockHolder::Group(row(entry.row)?.group());
            Some(Blame { by, row: Some(entry.row) })
        };
        oldest.and_then(blame)
    }

    /// No holder is in the table. (See the module.)
    fn unseen(&self) -> Blame {
        let address = self.lock.address;
        let is_whole = lost().iter().sum::<u64>() == LOST_BEFORE.load(Ordering::Relaxed);
        let is_before = is_whole
            && WAITERS.find(address, false).next().is_none()
            && !have_others_touched(self.here.shelf, mark(address, self.run.number));
        Blame { by: if is_before { LockHolder::Before } else { LockHolder::Unknown }, row: None }
    }
}

/// A wait. If it is dropped before its end, it was given up.
#[derive(Debug)]
pub(crate) struct Wait {
    row: &'static Row,
    token: Option<Token>,
    began: u64,
    by: Blame,
    is_over: bool,
}

impl Wait {
    /// The thread has the lock.
    pub(crate) fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let ticks = stamp().saturating_sub(self.began);
        if let Some(token) = self.token.filter(|token| WAITERS.own(*token).is_some()) {
            WAITERS.remove(token);
        }
        if let Some(row) = own_row(self.row) {
            row.waited(ticks, self.by, !self.is_over);
        }
    }
}

/// The row of this thread that is like another, perhaps of another thread.
fn own_row(of: &'static Row) -> Option<&'static Row> {
    Here::current()?.shelf.row_like(of)
}

/// A lock that is held: to be dropped before it is free. Empty if it was not noted.
#[derive(Debug, Default)]
#[must_use = "the holder is noted as long as it lives"]
pub(crate) struct Held(Option<Token>);

const _: () = assert!(size_of::<Held>() == 8);

impl Held {
    pub(crate) const NONE: Self = Self(None);
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if let Some(token) = self.0 {
            leave(token);
        }
    }
}

#[cold]
fn leave(token: Token) {
    let Some(entry) = HOLDERS.own(token) else { return };
    if entry.since != 0 {
        let ticks = stamp().saturating_sub(entry.since);
        if let Some(row) = row(entry.row).and_then(own_row) {
            row.held(ticks);
        }
    }
    if let Some(here) = Here::current() {
        here.shelf.touch(mark(entry.address, entry.run));
    }
    HOLDERS.remove(token);
}

/// The holder stays in the table until it leaves by its address.
#[cfg(feature = "parking-lot")]
pub(crate) fn forget_held(held: Held) {
    std::mem::forget(held);
}

/// Notes that the thread leaves a lock whose guard has no room for a [`Held`].
#[cfg(feature = "parking-lot")]
#[cold]
pub(crate) fn leave_address(address: usize, kind: LockKind) {
    let own = Here::current().map(|here| here.shelf.tid());
    let is_own = |entry: &Entry| entry.address == address && (kind.is_alone() || Some(entry.tid) == own);
    if let Some(token) = HOLDERS.token_of(address, kind.is_alone(), is_own) {
        leave(token);
    }
}

/// Takes a lock: by `attempt` where it is free, otherwise by `wait`, which returns `None` if that
/// is given up. The awake side of each face.
#[inline]
pub(crate) fn take<G>(
    lock: Lock,
    site: &'static Location<'static>,
    mut attempt: impl FnMut() -> Option<G>,
    wait: impl FnOnce() -> Option<G>,
    is_timed: bool,
) -> Option<(G, Held)> {
    let Some(taker) = Taker::begin(lock, site) else {
        return wait().map(|guard| (guard, Held::NONE));
    };
    if let Some(guard) = attempt() {
        return Some((guard, taker.taken()));
    }
    match taker.wait(is_timed, &mut attempt) {
        Ok(guard) => Some((guard, taker.taken())),
        Err(waiting) => {
            let guard = wait()?;
            let held = taker.taken_after_wait();
            waiting.end();
            Some((guard, held))
        }
    }
}

/// Takes a lock if it is free.
#[inline]
pub(crate) fn take_free<G>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnOnce() -> Option<G>,
) -> Option<(G, Held)> {
    let taker = if are_noted() { Taker::begin(lock, site) } else { None };
    let guard = attempt()?;
    Some((guard, taker.map_or(Held::NONE, Taker::taken)))
}
