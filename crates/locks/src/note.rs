//! The notes of a thread that takes, waits for, and leaves a lock.
//!
//! 1. It *begins*: it finds its row, and marks in its hand which lock it touches.
//! 2. It tries the lock. If that is free, the thread is its holder (4).
//! 3. Otherwise it looks up the holder, notes that it waits, and waits.
//! 4. It notes itself as the holder, and counts the acquisition. A wait ends after that.
//! 5. It *leaves*: it removes itself, so that only the mark stays, and then frees the lock.
//!
//! In dormouse's cost ([`TASKS`]) are what comes in 3 before a wait, 4 after it, and its end. Notes
//! of free locks are as short as a read of the counter: their number tells their cost
//! ([`notes`](crate::notes)).
//!
//! A holder is noted in the hand of its thread if its guard stays there and the hand has room, else
//! in the table of holders. So the holder of a lock is there, or was never noted, or is at this
//! moment between the lock and its note. The third is short, and a thread that waits looks a few
//! times. It says that a lock was held *before* anybody looked only where that is certain: no other
//! thread has touched the lock last of all, none waits for it, and there was room for each holder
//! of a lock.

use std::hint::spin_loop;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::overhead::TASKS;
use dormouse_clock::stamp;
use dormouse_sys::thread::tasks_around;

use crate::cell::{COUNTED, Entry, TIMED, Token};
use crate::hand::{self, mark};
use crate::kind::{LockKind, LockType};
use crate::leave::{Held, IN_TABLE};
use crate::long;
use crate::row::{Blame, LockHolder, Row};
use crate::rows::{self, Here, own_row, row};
use crate::run::{are_all_timed, are_noted, run};
use crate::table::{HOLDERS, LOST_HOLDERS, LOST_WAITS, WAITERS, mixed};

/// The time of one hold in this number is counted.
const SAMPLED: u64 = 16;
/// How often a thread that waits looks for the holder.
const LOOKS: usize = 32;

static LOST_ROWS: AtomicU64 = AtomicU64::new(0);
/// How many of the holders without room were those of locks: permits are in no lock's way.
static LOST_OF_LOCKS: AtomicU64 = AtomicU64::new(0);
/// [`lost_of_locks`] just before the run began.
static LOST_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A lock that is taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lock {
    pub(crate) address: usize,
    pub(crate) of: &'static LockType,
}

/// How often there was no room for a holder, for a row, and for a wait.
pub(crate) fn lost() -> [u64; 3] {
    [&LOST_HOLDERS, &LOST_ROWS, &LOST_WAITS].map(|lost| lost.load(Ordering::Relaxed))
}

/// All of them without holders of permits. It only grows, so an equal one is the same.
fn lost_of_locks() -> u64 {
    [&LOST_OF_LOCKS, &LOST_ROWS, &LOST_WAITS].map(|lost| lost.load(Ordering::Relaxed)).iter().sum()
}

/// To be called before a run begins.
pub(crate) fn begin_run() {
    LOST_BEFORE.store(lost_of_locks(), Ordering::Relaxed);
}

/// In a forked child.
pub(crate) fn forget() {
    hand::forget();
    HOLDERS.clear();
    WAITERS.clear();
    long::forget();
    rows::forget();
    for lost in [&LOST_HOLDERS, &LOST_ROWS, &LOST_WAITS, &LOST_OF_LOCKS] {
        lost.store(0, Ordering::Relaxed);
    }
}

/// The present holders of a lock, with their numbers; those in hands last.
pub(crate) fn present(address: usize, run: u32) -> impl Iterator<Item = (u64, Entry)> {
    in_table(address, false, run).chain(hand::find(address, run))
}

/// Those that are in no hand. `is_of_one`: the lock never has several.
fn in_table(address: usize, is_of_one: bool, run: u32) -> impl Iterator<Item = (u64, Entry)> {
    HOLDERS.find(address, is_of_one).filter(move |(_, entry)| entry.run == run)
}

/// The holder of a lock that has one at a time, if several are noted: the later one, if it has
/// changed hands meanwhile. One that was left behind in the table or in a hand may be of another
/// lock, which was at this address before.
pub(crate) fn latest(held: impl Iterator<Item = (u64, Entry)>) -> Option<Entry> {
    held.map(|(_, entry)| entry).max_by_key(|entry| !entry.is_left())
}

/// A thread that is about to take a lock: two words, which are passed in registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taker {
    row: &'static Row,
    /// The place of its cell in the hand, if it has one, and the run.
    place_run: u64,
}

const _: () = assert!(size_of::<Option<Taker>>() == 16);

impl Taker {
    /// Begins; `None`: locks are not noted, or not this one.
    // A function without calls saves no registers: all that is rare is a jump to another one.
    #[inline(never)]
    pub(crate) fn begin(lock: Lock, site: &'static Location<'static>) -> Option<Self> {
        let run = run()?;
        let Some(here) = Here::known() else { return Self::begin_first(lock, site, run) };
        let task = here.task();
        match here.shelf.row(site, lock.of, task.group) {
            Some(row) => Some(Self::begin_with(here, lock, row, task.task, run)),
            None => Self::begin_first(lock, site, run),
        }
    }

    /// The thread's first lock of this line and group.
    #[cold]
    #[inline(never)]
    fn begin_first(lock: Lock, site: &'static Location<'static>, run: u32) -> Option<Self> {
        let begun = Here::current().and_then(|here| {
            let task = here.task();
            let row = here.shelf.new_row(site, task.group, lock.of)?;
            Some(Self::begin_with(here, lock, row, task.task, run))
        });
        if begun.is_none() {
            LOST_ROWS.fetch_add(1, Ordering::Relaxed);
        }
        begun
    }

    #[inline]
    fn begin_with(here: Here, lock: Lock, row: &'static Row, task: u64, run: u32) -> Self {
        let (mark, mut nth) = (mark(lock.address, run), 0);
        if lock.of.kind.is_of_thread() {
            nth = here.hand.begin(mark, &entry(here, lock, row, task, run));
        } else {
            here.hand.touch(nth, mark);
        }
        let place = hand::place(here.shelf.index(), nth);
        Self { row, place_run: u64::from(place) << 32 | u64::from(run) }
    }

    #[inline]
    fn place(self) -> u32 {
        (self.place_run >> 32) as u32
    }

    #[inline]
    fn run(self) -> u32 {
        self.place_run as u32
    }

    /// The thread has the lock, without a wait.
    #[inline]
    pub(crate) fn taken(self, lock: Lock) -> Held {
        let before = self.row.acquired();
        let since = if before.is_multiple_of(SAMPLED) || are_all_timed() {
            stamp() | COUNTED
        } else if lock.of.kind.is_alone() {
            0
        } else {
            // Of several holders a wait blames the one that has held the lock for longest.
            stamp() & !COUNTED
        };
        self.hold(lock, since)
    }

    /// The thread has the lock after a wait.
    pub(crate) fn taken_after_wait(self, lock: Lock) -> Held {
        let _timed = TASKS.begin();
        self.row.acquired();
        self.hold(lock, stamp() | COUNTED)
    }

    #[inline]
    fn hold(self, lock: Lock, since: u64) -> Held {
        match hand::cell(self.place()) {
            Some(cell) if cell.address() == lock.address => {
                if self.row.is_waited_for() {
                    hand::hint(lock.address, self.place());
                }
                Held(Some(Token::new(self.place(), cell.show(since))))
            }
            // While it waited, a lock of an allocator's has used the cell.
            _ => self.hold_in_table(lock, since),
        }
    }

    #[cold]
    fn hold_in_table(self, lock: Lock, since: u64) -> Held {
        let token = Here::current().and_then(|here| {
            let (hold, around) = (entry(here, lock, self.row, here.task().task, self.run()), tasks_around());
            let entry = Entry { since, around, ..hold };
            if lock.of.kind.is_alone() {
                HOLDERS.put_alone(&entry)
            } else {
                HOLDERS.put_beside(&entry, here.shelf.index())
            }
        });
        if token.is_none() {
            LOST_HOLDERS.fetch_add(1, Ordering::Relaxed);
            LOST_OF_LOCKS.fetch_add((!lock.of.kind.is_permit()).into(), Ordering::Relaxed);
        }
        Held(token.map(|token| token.moved(IN_TABLE)))
    }

    /// The thread, or the task, waits from now on, unless it gets the lock by another attempt.
    #[cold]
    pub(crate) fn wait<G>(
        self,
        lock: Lock,
        is_timed: bool,
        attempt: &mut dyn FnMut() -> Option<G>,
    ) -> Result<G, Wait> {
        let _timed = TASKS.begin();
        let (by, mut seen) = (self.holder(lock), None);
        let looks = if lock.of.kind.is_permit() || by.is_some() { 0 } else { LOOKS };
        for _ in 0..looks {
            if let Some(guard) = attempt() {
                return Ok(guard);
            }
            spin_loop();
            // To read all hands takes long, so that comes only once more.
            seen = self.quick(lock);
            if seen.is_some() {
                break;
            }
        }
        let by = by.or_else(|| self.holder(lock)).or(seen);
        let by = by.and_then(blame).unwrap_or_else(|| self.unseen(lock));
        Err(self.wait_for(lock, by, is_timed))
    }

    /// Waits if there is a holder: for a lock that cannot be tried.
    pub(crate) fn wait_for_holder(self, lock: Lock) -> Option<Wait> {
        let _timed = TASKS.begin();
        self.holder(lock).and_then(blame).map(|by| self.wait_for(lock, by, false))
    }

    /// Waits for one of several things.
    pub(crate) fn wait_in_queue(self, lock: Lock) -> Wait {
        let _timed = TASKS.begin();
        let by = self.holder(lock).and_then(blame).unwrap_or_else(|| self.unseen(lock));
        self.wait_for(lock, by, false)
    }

    fn wait_for(self, lock: Lock, by: Blame, is_timed: bool) -> Wait {
        let (since, flags) = (stamp(), if is_timed { TIMED } else { 0 });
        let token = Here::current().and_then(|here| {
            let waits = entry(here, lock, self.row, here.task().task, self.run());
            // One thread may begin the waits of many tasks: not by its number, or it would read the
            // full buckets again and again.
            let waits = Entry { since, flags, around: tasks_around(), ..waits };
            WAITERS.put_beside(&waits, mixed(since as usize))
        });
        // A wait that has no room is counted when it is over, and not shown before.
        if token.is_none() {
            LOST_WAITS.fetch_add(1, Ordering::Relaxed);
        }
        Wait { row: self.row, token, began: since, by, is_over: false }
    }

    /// The holder that is noted: of several the one that has held the lock for longest.
    fn holder(self, lock: Lock) -> Option<Entry> {
        let (kind, run) = (lock.of.kind, self.run());
        // Tasks and permits are in no hand, and to read all takes long in a poll.
        let in_hands = kind.is_of_thread().then(|| hand::find(lock.address, run));
        let held = in_table(lock.address, kind.is_of_one(), run).chain(in_hands.into_iter().flatten());
        if kind.is_of_one() {
            hand::hinted(lock.address, run).or_else(|| latest(held))
        } else {
            let since = |entry: &Entry| if entry.since == 0 { u64::MAX } else { entry.since };
            held.map(|(_, entry)| entry).min_by_key(since)
        }
    }

    /// A holder, by a quick look: where the hint leads, or in the table.
    fn quick(self, lock: Lock) -> Option<Entry> {
        let (kind, run) = (lock.of.kind, self.run());
        let in_table = || in_table(lock.address, kind.is_of_one(), run).next().map(|(_, entry)| entry);
        hand::hinted(lock.address, run).or_else(in_table)
    }

    /// No holder is noted. (See the module.) Of a permit or a [`Once`](crate::Once) it is unknown:
    /// perhaps there is none yet.
    fn unseen(self, lock: Lock) -> Blame {
        let is_whole = lost_of_locks() == LOST_BEFORE.load(Ordering::Relaxed);
        let is_before = is_whole
            && !lock.of.kind.is_permit()
            && lock.of.kind != LockKind::Once
            && WAITERS.find(lock.address, false).next().is_none()
            && !hand::have_others_touched(self.place(), mark(lock.address, self.run()));
        Blame { by: if is_before { LockHolder::Before } else { LockHolder::Unknown }, row: None }
    }
}

/// The holder is to be blamed. From now on it leaves hints.
fn blame(holder: Entry) -> Option<Blame> {
    let of = row(holder.row)?;
    of.wait_for();
    Some(Blame { by: LockHolder::Group(of.group()), row: Some(holder.row) })
}

#[inline]
fn entry(here: Here, lock: Lock, row: &Row, task: u64, run: u32) -> Entry {
    let (address, row, tid) = (lock.address, row.number(), here.shelf.tid());
    Entry { address, row, tid, task, run, ..Entry::default() }
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
        let _timed = TASKS.begin();
        let ticks = stamp().saturating_sub(self.began);
        if let Some(token) = self.token {
            long::end(token, ticks, self.by.row);
        }
        if let Some(row) = own_row(self.row) {
            row.waited(ticks, self.by, !self.is_over);
        }
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
    match attempt() {
        Some(guard) => Some((guard, taker.taken(lock))),
        None => take_later(taker, lock, attempt, wait, is_timed),
    }
}

/// Takes a lock that is not free.
#[cold]
pub(crate) fn take_later<G>(
    taker: Taker,
    lock: Lock,
    mut attempt: impl FnMut() -> Option<G>,
    wait: impl FnOnce() -> Option<G>,
    is_timed: bool,
) -> Option<(G, Held)> {
    match taker.wait(lock, is_timed, &mut attempt) {
        Ok(guard) => Some((guard, taker.taken(lock))),
        Err(waiting) => {
            let guard = wait()?;
            let held = taker.taken_after_wait(lock);
            waiting.end();
            Some((guard, held))
        }
    }
}

/// Takes a lock if it is free.
#[inline]
pub(crate) fn take_free<G, E>(
    lock: Lock,
    site: &'static Location<'static>,
    attempt: impl FnOnce() -> Result<G, E>,
) -> Result<(G, Held), E> {
    let taker = if are_noted() { Taker::begin(lock, site) } else { None };
    match attempt() {
        Ok(guard) => Ok((guard, taker.map_or(Held::NONE, |taker| taker.taken(lock)))),
        Err(refusal) => {
            if let Some(taker) = taker {
                hand::give_up(taker.place());
            }
            Err(refusal)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use dormouse_testkit::{eventually, in_child};

    use super::*;
    use crate::rwlock::RwLock;
    use crate::times::{Holds, LockTimes};

    #[test]
    fn a_wait_reads_all_hands_twice() {
        in_child(|| {
            let lock = RwLock::new(());
            // Its holder is not noted.
            let guard = lock.read().unwrap();
            let _times = LockTimes::start(Holds::Sampled).unwrap();
            thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    drop(lock.write().unwrap());
                    hand::SCANS.get()
                });
                eventually(|| WAITERS.all().count() == 1);
                drop(guard);
                assert_eq!(writer.join().unwrap(), 2);
            });
        });
    }
}
