//! The readers of all this: lines that take locks, present holders and waits, and cycles.

use std::collections::{HashMap, HashSet};

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_sys::thread::TasksAround;

use crate::cell::Entry;
use crate::hand;
use crate::kind::LockKind;
use crate::long;
use crate::note::{latest, present};
use crate::row::{Blame, LockDurations, LockHolder, Row};
use crate::rows::{row, rows};
use crate::run::run;
use crate::table::{HOLDERS, WAITERS};

/// A line that takes locks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct LockPlace {
    /// The file as the compiler was given it. Of a very long name the end.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The column in the line.
    pub column: u32,
    /// How the line takes it.
    pub kind: LockKind,
    /// The type of the value in the lock; empty if it is not known.
    pub name: String,
}

/// The locks that a line and a group have taken since locks were first noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    /// The line.
    pub place: LockPlace,
    /// The number of the group; 0: none was current.
    pub group: u32,
    /// How often a lock was taken.
    pub acquisitions: u64,
    /// Waits for locks that were not free, those that were given up among them.
    pub waits: LockDurations,
    /// The number of waits that were given up: by time, because the task was dropped, or because
    /// the semaphore was closed.
    pub given_up: u64,
    /// The times for which locks were held, as far as they were timed.
    pub holds: LockDurations,
    /// The waits by the holder of the lock when they began, in nanoseconds.
    pub held_by: Vec<(LockHolder, u64)>,
    /// The longest wait.
    pub longest: Option<LongestWait>,
}

/// The longest wait of a line and a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongestWait {
    /// How long it took, in nanoseconds.
    pub ns: u64,
    /// The holder of the lock when it began.
    pub by: LockHolder,
    /// The line at which the holder had taken it, if the holder is known.
    pub place: Option<LockPlace>,
}

/// A present holder of a lock, or a present wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockUser {
    /// The same as long as it is the same hold or wait.
    pub number: u64,
    /// The address of the lock.
    pub address: usize,
    /// The line at which it was taken, or is waited for.
    pub place: LockPlace,
    /// The number of the group; 0: none was current.
    pub group: u32,
    /// The number of the task; 0: none was current.
    pub task: u64,
    /// The tasks in whose polls that task was polled, from the nearest one on; 0: none. Not known
    /// for the holds of threads.
    pub around: TasksAround,
    /// The id of the thread on which that began.
    pub tid: u32,
    /// For how long, in nanoseconds; `None`: the beginning was not timed.
    pub for_ns: Option<u64>,
    /// Whether a wait ends by time.
    pub is_timed: bool,
}

fn place(of: &Row) -> LockPlace {
    let (line, column) = of.position();
    LockPlace { file: of.file().to_owned(), line, column, kind: of.kind(), name: of.name().to_owned() }
}

/// How many acquisitions were noted, of all locks.
///
/// # Cost
///
/// Reads a word for each thread, line and group.
pub fn notes() -> u64 {
    rows().map(Row::acquisitions).sum()
}

/// Reads all lines and groups. Those of all threads are added up.
///
/// # Cost
///
/// Reads 3 KB for each thread, line and group, and makes 3 KB for each line and group. No thread
/// is stopped.
pub fn read_locks() -> Vec<LockRow> {
    let mut found: HashMap<(LockPlace, u32), LockRow> = HashMap::new();
    for of in rows() {
        let key = (place(of), of.group());
        let into = found.entry(key).or_insert_with_key(|(place, group)| LockRow {
            place: place.clone(),
            group: *group,
            acquisitions: 0,
            waits: LockDurations::NONE,
            given_up: 0,
            holds: LockDurations::NONE,
            held_by: Vec::new(),
            longest: None,
        });
        // Given-up waits first: no reading has more of them than waits.
        into.given_up += of.given_up();
        into.acquisitions += of.acquisitions();
        of.add_to(&mut into.waits, &mut into.holds);
        for (by, ns) in of.blamed() {
            match into.held_by.iter_mut().find(|(there, _)| *there == by) {
                Some((_, sum)) => *sum += ns,
                None => into.held_by.push((by, ns)),
            }
        }
        let longest = of.longest().filter(|(ns, _)| into.longest.as_ref().is_none_or(|it| *ns > it.ns));
        if let Some((ns, by)) = longest {
            into.longest = Some(longest_wait(ns, by));
        }
    }
    let mut all: Vec<LockRow> = found.into_values().collect();
    all.sort_unstable_by(|a, b| (&a.place, a.group).cmp(&(&b.place, b.group)));
    all
}

fn longest_wait(ns: u64, blame: Blame) -> LongestWait {
    LongestWait { ns, by: blame.by, place: blame.row.and_then(row).map(place) }
}

/// The number of rows that [`read_locks`] reads.
pub fn lock_rows() -> usize {
    crate::rows::made()
}

fn user((number, entry): (u64, Entry), now: u64) -> Option<LockUser> {
    let of = row(entry.row)?;
    Some(LockUser {
        number,
        address: entry.address,
        place: place(of),
        group: of.group(),
        task: entry.task,
        around: entry.around,
        tid: entry.tid,
        for_ns: (entry.since != 0).then(|| ticks_to_ns(now.saturating_sub(entry.since))),
        is_timed: entry.is_timed(),
    })
}

/// The present holders. Holds that began before locks were noted are not among them.
pub fn lock_holders() -> Vec<LockUser> {
    let run = run();
    let present = HOLDERS.all().chain(hand::all()).filter(|(_, entry)| Some(entry.run) == run);
    users(present)
}

/// The present holders of the lock at that address.
pub fn lock_holders_at(address: usize) -> Vec<LockUser> {
    users(run().into_iter().flat_map(|run| present(address, run)))
}

fn users(all: impl Iterator<Item = (u64, Entry)>) -> Vec<LockUser> {
    let now = stamp();
    let mut all: Vec<(u64, Entry)> = all.collect();
    // Of several holders of a mutex the one that `latest` finds.
    all.sort_by_key(|(_, entry)| !entry.is_left());
    let mut users: Vec<_> = all.into_iter().filter_map(|entry| user(entry, now)).collect();
    let mut seen = HashSet::new();
    users.reverse();
    users.retain(|user| !user.place.kind.is_of_one() || seen.insert(user.address));
    users.reverse();
    users
}

/// The present waits.
pub fn lock_waiters() -> Vec<LockUser> {
    let now = stamp();
    WAITERS.all().filter_map(|entry| user(entry, now)).collect()
}

/// A wait that took long, or that has taken long so far.
#[derive(Debug, Clone, Copy)]
pub struct LongWait {
    /// The number of the group; 0: none was current.
    pub group: u32,
    /// The number of the task; 0: none was current.
    pub task: u64,
    /// The id of the thread on which it began.
    pub tid: u32,
    /// When it began, as a stamp: a thread begins one wait at a time.
    pub began: u64,
    /// Its length, in nanoseconds.
    pub ns: u64,
    /// Whether it is over.
    pub is_over: bool,
    row: &'static Row,
    by: Option<&'static Row>,
}

impl LongWait {
    fn new(wait: Entry, ns: u64, is_over: bool, by: Option<u32>) -> Option<Self> {
        let (row, by) = (row(wait.row)?, by.and_then(row));
        let (task, tid, began) = (wait.task, wait.tid, wait.since);
        Some(Self { group: row.group(), task, tid, began, ns, is_over, row, by })
    }

    /// The line that waits.
    pub fn place(&self) -> LockPlace {
        place(self.row)
    }

    /// The group of the holder, and the line at which it had taken the lock, if that is known.
    pub fn held_by(&self) -> Option<(u32, LockPlace)> {
        self.by.map(|by| (by.group(), place(by)))
    }
}

/// From now on waits that take longer are kept for [`take_long_waits`]; `None`: none are. Only
/// while locks are noted.
pub fn keep_long_waits(longer_than_ns: Option<u64>) {
    long::keep(longer_than_ns);
}

/// Calls `each` for the waits that have taken longer so far, and for those that are kept since the
/// last call. Only one thread may call it at a time.
pub fn take_long_waits(longer_than_ns: u64, mut each: impl FnMut(LongWait)) {
    let (now, run) = (stamp(), run());
    // Thousands may wait for one lock, and its holder may be in any hand.
    let mut rows: HashMap<usize, Option<u32>> = HashMap::new();
    for (_, wait) in WAITERS.all() {
        let ns = ticks_to_ns(now.saturating_sub(wait.since));
        if ns > longer_than_ns {
            let find = || run.and_then(|run| latest(present(wait.address, run))).map(|held| held.row);
            let held = *rows.entry(wait.address).or_insert_with(find);
            if let Some(wait) = LongWait::new(wait, ns, false, held) {
                each(wait);
            }
        }
    }
    long::take(|wait, ns, by| {
        if let Some(wait) = LongWait::new(wait, ns, true, by) {
            each(wait);
        }
    });
}

/// One thread or task of a cycle: its wait, and the hold for which it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The wait.
    pub waiter: LockUser,
    /// The hold for which it waits: that of the next one in the cycle.
    pub holder: LockUser,
}

/// The cycles of threads and tasks that wait for one another, as it looks at this moment. One that
/// is there at a second look, with the same numbers, is a deadlock if threads alone are in it
/// (`!waiter.place.kind.is_awaited()`). A task in it may have another future, which goes on and
/// frees the lock that the task holds. No cycle goes through a semaphore, because any of its
/// permits may end a wait, or through a wait that ends by time.
pub fn lock_cycles() -> Vec<Vec<Blocked>> {
    cycles(&lock_waiters(), &lock_holders())
}

/// The cycles among `waiters`, by the holds for which they wait.
fn cycles(waiters: &[LockUser], holders: &[LockUser]) -> Vec<Vec<Blocked>> {
    // By waiter, the waiters for whose holds it waits, with these.
    let next = |at: usize| {
        let held = holders.iter().filter(|holder| waits_for(&waiters[at], holder));
        let its = |holder| waiters.iter().enumerate().map(move |(at, waiter)| (at, waiter, holder));
        let next = held.flat_map(its).filter(|(_, waiter, holder)| is_its(holder, waiter));
        next.map(|(at, _, holder)| (at, holder)).collect::<Vec<_>>()
    };
    let mut found: Vec<Vec<Blocked>> = Vec::new();
    let mut is_done = vec![false; waiters.len()];
    for first in (0..waiters.len()).filter(|at| is_endless(&waiters[*at])) {
        // Depth first; the way is that of the present reading.
        let mut way: Vec<(usize, Vec<(usize, &LockUser)>)> = Vec::new();
        if !is_done[first] {
            is_done[first] = true;
            way.push((first, next(first)));
        }
        while let Some((_, left)) = way.last_mut() {
            let Some((to, _)) = left.last().copied() else {
                way.pop();
                if let Some((_, left)) = way.last_mut() {
                    left.pop();
                }
                continue;
            };
            if let Some(from) = way.iter().position(|(at, _)| *at == to) {
                let blocked = way[from..].iter().filter_map(|(at, left)| {
                    let holder = left.last()?.1;
                    Some(Blocked { waiter: waiters[*at].clone(), holder: holder.clone() })
                });
                found.push(blocked.collect());
            }
            if is_done[to] {
                if let Some((_, left)) = way.last_mut() {
                    left.pop();
                }
            } else {
                is_done[to] = true;
                way.push((to, next(to)));
            }
        }
    }
    found
}

/// Whether the wait ends only by a certain hold's end.
fn is_endless(waiter: &LockUser) -> bool {
    !waiter.is_timed && !waiter.place.kind.is_permit()
}

fn waits_for(waiter: &LockUser, holder: &LockUser) -> bool {
    // Readers wait for a writer; that they may wait behind another one is not known.
    let is_beside = is_reader(waiter.place.kind) && is_reader(holder.place.kind);
    waiter.address == holder.address && !is_beside
}

/// Whether holder and waiter are one thread or one task, or one of them is a task in a poll of the
/// other. A thread cannot leave before its wait ends; a task can, by another of its futures.
fn is_its(holder: &LockUser, waiter: &LockUser) -> bool {
    let is_thread = !holder.place.kind.is_awaited() && !waiter.place.kind.is_awaited();
    let is_one =
        is_thread && holder.tid == waiter.tid || is_task_of(holder, waiter) || is_task_of(waiter, holder);
    is_one && is_endless(waiter)
}

fn is_task_of(outer: &LockUser, inner: &LockUser) -> bool {
    outer.task != 0 && (inner.task == outer.task || inner.around.contains(&outer.task))
}

fn is_reader(kind: LockKind) -> bool {
    matches!(kind, LockKind::Read | LockKind::AsyncRead)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn user(address: usize, kind: LockKind, tid: u32, task: u64) -> LockUser {
        let place = LockPlace { kind, ..LockPlace::default() };
        LockUser {
            number: 0,
            address,
            place,
            group: 0,
            task,
            around: [0; 2],
            tid,
            for_ns: None,
            is_timed: false,
        }
    }

    /// The threads of each cycle.
    fn found(waiters: &[LockUser], holders: &[LockUser]) -> Vec<Vec<u32>> {
        let tids = |cycle: Vec<Blocked>| cycle.iter().map(|blocked| blocked.waiter.tid).collect();
        cycles(waiters, holders).into_iter().map(tids).collect()
    }

    #[test]
    fn threads_in_a_circle_are_found() {
        let mutex = |address, tid| user(address, LockKind::Mutex, tid, 0);
        let holders = [mutex(1, 1), mutex(2, 2), mutex(3, 3)];
        assert_eq!(found(&[mutex(2, 1), mutex(3, 2), mutex(1, 3)], &holders), [[1, 2, 3]]);
        assert_eq!(found(&[mutex(2, 1), mutex(3, 2)], &holders), [[0; 0]; 0]);
        assert_eq!(found(&[mutex(1, 1)], &holders), [[1]], "a thread waits for itself");
        // A fourth thread waits for the cycle, and is not in it.
        assert_eq!(found(&[mutex(1, 4), mutex(2, 1), mutex(1, 2)], &holders), [[1, 2]]);
        let timed = LockUser { is_timed: true, ..mutex(1, 2) };
        assert_eq!(found(&[mutex(2, 1), timed], &holders), [[0; 0]; 0]);
    }

    #[test]
    fn tasks_hold_while_they_await() {
        let held = |address, task| user(address, LockKind::AsyncMutex, 9, task);
        let holders = [held(1, 1), held(2, 2)];
        let waiters = [user(2, LockKind::AsyncMutex, 7, 1), user(1, LockKind::AsyncMutex, 7, 2)];
        assert_eq!(found(&waiters, &holders), [[7, 7]]);
        // The same thread polls both: that is no reason to wait.
        let without_tasks = [held(1, 0), held(2, 0)];
        assert_eq!(found(&waiters, &without_tasks), [[0; 0]; 0]);
    }

    #[test]
    fn a_task_waits_for_those_in_its_polls() {
        let of = |address, task, around| LockUser { around, ..user(address, LockKind::AsyncMutex, 9, task) };
        // Task 3 is in a poll of 1, and 4 in one of 3.
        let other = (of(1, 2, [0; 2]), of(2, 2, [0; 2]));
        for (hold, wait) in
            [((1, [0; 2]), (3, [1, 0])), ((1, [0; 2]), (4, [3, 1])), ((3, [1, 0]), (1, [0; 2]))]
        {
            let holders = [of(1, hold.0, hold.1), other.1.clone()];
            let waiters = [of(2, wait.0, wait.1), other.0.clone()];
            assert_eq!(found(&waiters, &holders), [[9, 9]], "{hold:?} {wait:?}");
        }
        // Two in polls of one task: a set of futures, of which each may go on.
        let holders = [of(1, 3, [1, 0]), other.1];
        assert_eq!(found(&[of(2, 5, [1, 0]), other.0], &holders), [[0; 0]; 0]);
    }

    #[test]
    fn readers_wait_for_writers_alone() {
        let read = |address, tid| user(address, LockKind::Read, tid, 0);
        let write = |address, tid| user(address, LockKind::Write, tid, 0);
        assert_eq!(found(&[write(2, 1), write(1, 2)], &[read(1, 1), read(2, 2)]), [[1, 2]]);
        assert_eq!(found(&[read(2, 1), read(1, 2)], &[read(1, 1), read(2, 2)]), [[0; 0]; 0]);
    }

    #[test]
    fn a_permit_of_another_may_end_a_wait() {
        let permit = |address, tid| user(address, LockKind::Permit, tid, 0);
        assert_eq!(found(&[permit(2, 1), permit(1, 2)], &[permit(1, 1), permit(2, 2)]), [[0; 0]; 0]);
    }
}
