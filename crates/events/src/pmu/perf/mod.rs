//! Events that the kernel counts behind a descriptor: those of the processor, and moves between processors.
//!
//! Each thread needs a descriptor of its own for each of them. It gets one at its first read after somebody has begun
//! to count, gives it back when nobody counts any more or when it ends, and all threads together have a quarter
//! of what the process may open. A thread that cannot have one goes without: its count stands still, its times say that
//! nothing was counted, and the reason is counted here.
//!
//! A read is `rdpmc` where the kernel permits it and the event is in the unit, else a system call. How long an event
//! was on is the thread's CPU time; how long it waited for its turn the kernel says.
//!
//! Experimental, as far as it is about the processor's own events: what was at hand to try it on has no PMU. The rest is
//! tried with events of the kernel's own.
//!
//! # Locking
//!
//! `changes` serialises those who begin and end. Nobody who reads takes it.
//!
//! # Safety
//!
//! In `row` and `kernel`.

mod kernel;
mod row;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use dormouse_sys::perf::Counted;
use dormouse_sys::thread::{self, MAX_THREADS, ThreadBlock};

use self::kernel::{Kernel, Linux};
use self::row::Row;
use super::{Event, Pmu, Times};
use crate::error::Error;

/// What is counted under which number.
const COUNTED: [Counted; EVENTS] = [
    Counted::Cycles,
    Counted::Instructions,
    Counted::CacheReferences,
    Counted::CacheMisses,
    Counted::Branches,
    Counted::BranchMisses,
    Counted::CpuMigrations,
];

const EVENTS: usize = 7;
const MIGRATIONS: u32 = 6;

/// As the library knows them.
pub(super) const KNOWN: [Event; EVENTS] = [
    Event::new("cycles", &PERF, 0),
    Event::new("instructions", &PERF, 1),
    Event::new("cache-references", &PERF, 2),
    Event::new("cache-misses", &PERF, 3),
    Event::new("branches", &PERF, 4),
    Event::new("branch-misses", &PERF, 5),
    Event::new("cpu-migrations-exact", &PERF, MIGRATIONS),
];

/// Why threads go without a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Budget,
    Limit,
    Denied,
    Absent,
    Table,
    Other,
}

const REFUSALS: [(Refusal, &str); 6] = [
    (Refusal::Budget, "a quarter of the descriptors that the process may open is in use (ulimit -n)"),
    (Refusal::Limit, "no descriptor was left (ulimit -n)"),
    (Refusal::Denied, "perf events are not allowed (kernel.perf_event_paranoid, seccomp)"),
    (Refusal::Absent, "nothing counts the event here"),
    (Refusal::Table, "there are more threads than the table of threads holds"),
    (Refusal::Other, "the kernel refused the event"),
];

impl Refusal {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Self::Limit,
            Some(libc::EACCES | libc::EPERM | libc::ENOSYS) => Self::Denied,
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => Self::Absent,
            _ => Self::Other,
        }
    }
}

/// How often a thread went without an event's descriptor, by reason; what has not happened is not in it.
pub fn refusals() -> Vec<(&'static str, u64)> {
    let counts = REFUSALS.iter().zip(&PERF.refusals);
    let counts = counts.map(|((_, reason), count)| (*reason, count.load(Ordering::Relaxed)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The unit. As many rows as there are blocks of threads, but for tests.
#[derive(Debug)]
struct Perf<K, const ROWS: usize = MAX_THREADS> {
    kernel: K,
    rows: [Row; ROWS],
    /// One past the highest row that was ever used.
    used: AtomicU32,
    /// How many count each event.
    wanted: [AtomicU32; EVENTS],
    /// The event can be had in user mode alone.
    user_only: [AtomicBool; EVENTS],
    /// Moves whenever it is worth trying again to open what was refused.
    generation: AtomicU32,
    /// Somebody was refused for want of a descriptor.
    starved: AtomicBool,
    open: AtomicU32,
    most: AtomicU32,
    refusals: [AtomicU64; REFUSALS.len()],
    changes: Mutex<()>,
}

static PERF: Perf<Linux> = Perf::new(Linux::new());

impl<K, const ROWS: usize> Perf<K, ROWS> {
    const fn new(kernel: K) -> Self {
        Self {
            kernel,
            rows: [const { Row::new() }; ROWS],
            used: AtomicU32::new(0),
            wanted: [const { AtomicU32::new(0) }; EVENTS],
            user_only: [const { AtomicBool::new(false) }; EVENTS],
            generation: AtomicU32::new(0),
            starved: AtomicBool::new(false),
            open: AtomicU32::new(0),
            most: AtomicU32::new(0),
            refusals: [const { AtomicU64::new(0) }; REFUSALS.len()],
            changes: Mutex::new(()),
        }
    }
}

impl<K: Kernel, const ROWS: usize> Perf<K, ROWS> {
    /// Whether the event can be had here; remembers how.
    fn may(&self, event: u32) -> Result<(), String> {
        let Some(&counted) = COUNTED.get(event as usize) else {
            return Err("there is no such event".to_owned());
        };
        let user_only = self.kernel.may(counted)?;
        if user_only && event == MIGRATIONS {
            // The kernel is where they happen.
            return Err(
                "only user mode may be counted, in which no thread moves: set kernel.perf_event_paranoid \
                        to 1, or grant CAP_PERFMON"
                    .to_owned(),
            );
        }
        self.user_only[event as usize].store(user_only, Ordering::Relaxed);
        Ok(())
    }

    fn begin(&self, events: &[u32]) -> Result<(), (u32, String)> {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        for &event in events {
            self.may(event).map_err(|reason| (event, reason))?;
        }
        let quarter = u32::try_from(self.kernel.limit() / 4).unwrap_or(u32::MAX);
        self.most.store(quarter, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
        for &event in events {
            self.wanted[event as usize].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn end(&self, events: &[u32]) {
        let _changing = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let last = |event: &u32| {
            self.wanted.get(*event as usize).is_some_and(|wanted| wanted.fetch_sub(1, Ordering::Relaxed) == 1)
        };
        let ended: Vec<u32> = events.iter().copied().filter(last).collect();
        // Pairs with the fence in `read`: a thread that opens meanwhile sees that it is in vain, or we see that it has
        // opened.
        fence(Ordering::SeqCst);
        for row in self.rows.iter().take(self.used.load(Ordering::Relaxed) as usize) {
            if ended.iter().any(|&event| row.slots[event as usize].is_open()) {
                self.close(row, &ended);
            }
        }
    }

    fn close(&self, row: &Row, events: &[u32]) {
        let closed = row.close(&self.kernel, events);
        if closed > 0 {
            self.open.fetch_sub(closed, Ordering::Relaxed);
            if self.starved.swap(false, Ordering::Relaxed) {
                self.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The thread of this row ends.
    fn leave(&self, row: usize) {
        const ALL: [u32; EVENTS] = [0, 1, 2, 3, 4, 5, 6];
        self.close(&self.rows[row], &ALL);
        self.rows[row].renew();
    }

    /// Reads for the thread whose row this is.
    fn read(&self, index: usize, events: &[u32], values: &mut [u64]) {
        let row = &self.rows[index];
        if row.is_inherited(&self.kernel) {
            row.forget(&self.kernel);
        }
        let mut opened = false;
        if let Some(_inside) = row.enter_own() {
            let now = self.kernel.clock();
            for &event in events {
                let Some(slot) = row.slots.get(event as usize) else { continue };
                if !slot.is_open() && self.is_worth_opening(row, event) {
                    opened |= self.open(index, event, now);
                }
                slot.read(&self.kernel, now);
            }
        }
        for (&event, value) in events.iter().zip(values) {
            *value = row.slots.get(event as usize).map_or(0, |slot| slot.total().count);
        }
        if opened {
            // Pairs with the fence in `end`.
            fence(Ordering::SeqCst);
            let ended = |event: &&u32| self.wanted[**event as usize].load(Ordering::Relaxed) == 0;
            for event in events.iter().filter(ended) {
                self.close(row, std::slice::from_ref(event));
            }
        }
    }

    fn is_worth_opening(&self, row: &Row, event: u32) -> bool {
        let event = event as usize;
        self.wanted[event].load(Ordering::Relaxed) > 0
            && row.slots[event].refused_in.load(Ordering::Relaxed) != self.generation.load(Ordering::Relaxed)
    }

    #[cold]
    fn open(&self, index: usize, event: u32, now: u64) -> bool {
        let row = &self.rows[index];
        let (slot, counted) = (&row.slots[event as usize], COUNTED[event as usize]);
        self.used.fetch_max(index as u32 + 1, Ordering::Relaxed);
        let generation = self.generation.load(Ordering::Relaxed);
        let user_only = self.user_only[event as usize].load(Ordering::Relaxed);
        let refusal = if self.open.fetch_add(1, Ordering::Relaxed) >= self.most.load(Ordering::Relaxed) {
            Refusal::Budget
        } else {
            match self.kernel.open(counted, user_only) {
                Ok(opened) => {
                    row.belongs_to(self.kernel.process());
                    slot.fill(opened, now);
                    return true;
                }
                Err(error) => Refusal::of(&error),
            }
        };
        self.open.fetch_sub(1, Ordering::Relaxed);
        if matches!(refusal, Refusal::Budget | Refusal::Limit) {
            self.starved.store(true, Ordering::Relaxed);
        }
        slot.refused_in.store(generation, Ordering::Relaxed);
        self.refuse(refusal);
        false
    }

    fn refuse(&self, refusal: Refusal) {
        self.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self, row: usize, events: &[u32], times: &mut [Times]) {
        for (&event, times) in events.iter().zip(times) {
            *times = self.rows[row]
                .slots
                .get(event as usize)
                .map_or_else(Times::default, |slot| slot.total().times);
        }
    }

    /// Accounts outlive their threads.
    fn share(&self, event: u32) -> Times {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let accounts = self.rows[..used.min(ROWS)].iter().filter_map(|row| row.slots.get(event as usize));
        accounts.map(|slot| slot.total().times).fold(Times::default(), |sum, times| Times {
            enabled_ns: sum.enabled_ns.saturating_add(times.enabled_ns),
            running_ns: sum.running_ns.saturating_add(times.running_ns),
        })
    }

    /// Reads for another thread.
    fn read_of(&self, row: usize, tid: u32, events: &[u32], values: &mut [u64]) -> bool {
        let row = &self.rows[row];
        let Some(_inside) = row.enter() else { return false };
        events.iter().zip(values).all(|(&event, value)| {
            let found = row.slots.get(event as usize).and_then(|slot| slot.of_other(&self.kernel, tid));
            found.inspect(|&found| *value = found).is_some()
        })
    }

    /// In a fork child.
    fn forget(&self) {
        for row in self.rows.iter().take(self.used.load(Ordering::Relaxed) as usize) {
            row.forget(&self.kernel);
        }
        self.open.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

/// No row: not asked for one yet, or there is none.
const NEW: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

thread_local! {
    static ROW: Cell<u32> = const { Cell::new(NEW) };
}

/// The row of the calling thread.
#[inline]
fn own_row() -> Option<usize> {
    match ROW.with(Cell::get) {
        NEW => find_row(),
        NONE => None,
        row => Some(row as usize),
    }
}

#[cold]
fn find_row() -> Option<usize> {
    // Without a block there is no row, and without the hooks nobody would close what is in it.
    // What a thread has counted is charged before it is closed: hooks run in the order in which they came.
    let hooked = || charges_at_exit() && thread::on_thread_exit(at_exit) && thread::on_fork_child(in_child);
    let row = thread::current().filter(|_| hooked()).map(ThreadBlock::index);
    ROW.with(|own| own.set(row.map_or(NONE, |row| row as u32)));
    if row.is_none() {
        PERF.refuse(Refusal::Table);
    }
    row
}

#[cfg(not(all(test, loom)))]
use crate::switch::charges_at_exit;
#[cfg(all(test, loom))]
fn charges_at_exit() -> bool {
    true
}

fn at_exit() {
    let row = ROW.with(|own| own.replace(NONE)) as usize;
    if row < MAX_THREADS {
        PERF.leave(row);
    }
}

fn in_child() {
    PERF.forget();
    PERF.kernel.forget();
}

impl Pmu for Perf<Linux> {
    fn name(&self) -> &'static str {
        "perf"
    }

    #[inline]
    fn read(&self, events: &[u32], values: &mut [u64]) {
        match own_row() {
            Some(row) => Perf::read(self, row, events, values),
            None => values.fill(0),
        }
    }

    fn begin(&self, events: &[u32]) -> Result<(), Error> {
        Perf::begin(self, events).map_err(|(event, reason)| {
            let name = KNOWN.get(event as usize).map_or("perf", |event| event.name());
            Error::Unavailable { event: name.to_owned(), reason }
        })
    }

    fn end(&self, events: &[u32]) {
        Perf::end(self, events);
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        Perf::read_of(self, thread.index(), thread.tid(), events, values)
    }

    fn times(&self, events: &[u32], times: &mut [Times]) -> bool {
        match own_row() {
            Some(row) => Perf::times(self, row, events, times),
            None => times.fill(Times { enabled_ns: self.kernel.clock(), running_ns: 0 }),
        }
        true
    }

    fn share(&self, event: u32) -> Option<Times> {
        Some(Perf::share(self, event))
    }

    fn note(&self, event: u32) -> Option<&'static str> {
        let user_only = self.user_only.get(event as usize)?.load(Ordering::Relaxed);
        match (event == MIGRATIONS, user_only) {
            (true, _) => None,
            (false, true) => Some("user mode only; experimental"),
            (false, false) => Some("experimental"),
        }
    }

    fn why_not(&self, event: u32) -> Option<String> {
        self.may(event).err()
    }
}
