//! The unit itself, over a kernel that tests imitate.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use dormouse_sys::perf::KernelEvent;
use dormouse_sys::thread::MAX_THREADS;

use super::kernel::Kernel;
use super::row::{EVENTS, Row};
use crate::pmu::patience;
use crate::pmu::scale::Times;

/// The kernel's events, by number.
const COUNTED: [KernelEvent; EVENTS] = [
    KernelEvent::Cycles,
    KernelEvent::Instructions,
    KernelEvent::CacheReferences,
    KernelEvent::CacheMisses,
    KernelEvent::Branches,
    KernelEvent::BranchMisses,
    KernelEvent::CpuMigrations,
];

pub(super) const MIGRATIONS: u32 = 6;
const ALL: [u32; EVENTS] = [0, 1, 2, 3, 4, 5, 6];

/// Why threads go without a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Budget,
    Limit,
    Denied,
    Absent,
    Table,
    Other,
}

/// In the order of [`Refusal`].
pub(super) const REFUSALS: [&str; 6] = [
    "a quarter of the descriptors that the process may open is in use (ulimit -n)",
    "no descriptor was left (ulimit -n)",
    "perf events are not allowed (kernel.perf_event_paranoid, seccomp)",
    "nothing counts the event here",
    "there are more threads than the table of threads holds",
    "the kernel refused the event",
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

/// The unit. As many rows as there are blocks of threads, but for tests.
#[derive(Debug)]
pub(super) struct Perf<K, const ROWS: usize = MAX_THREADS> {
    pub(super) kernel: K,
    rows: [Row; ROWS],
    /// One past the highest row that was ever used.
    used: AtomicU32,
    /// How many count each event.
    wanted: [AtomicU32; EVENTS],
    /// The event can be had in user mode alone.
    pub(super) user_only: [AtomicBool; EVENTS],
    /// Moves whenever it is worth trying again to open what was refused.
    generation: AtomicU32,
    /// Somebody was refused for want of a descriptor.
    starved: AtomicBool,
    open: AtomicU32,
    most: AtomicU32,
    pub(super) refusals: [AtomicU64; REFUSALS.len()],
}

impl<K, const ROWS: usize> Perf<K, ROWS> {
    pub(super) const fn new(kernel: K) -> Self {
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
        }
    }
}

impl<K: Kernel, const ROWS: usize> Perf<K, ROWS> {
    /// Whether the event can be had here; remembers how.
    pub(super) fn may(&self, event: u32) -> Result<(), String> {
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

    pub(super) fn begin(&self, events: &[u32]) -> Result<(), (u32, String)> {
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

    pub(super) fn end(&self, events: &[u32]) {
        let less = |n: u32| n.checked_sub(1);
        for wanted in events.iter().filter_map(|&event| self.wanted.get(event as usize)) {
            // None: its process was forked from the one that began, and has forgotten.
            let _before = wanted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
        // With those that an earlier end has had to leave open.
        let is_unwanted = |event: &u32| self.wanted[*event as usize].load(Ordering::Relaxed) == 0;
        let ended: Vec<u32> = ALL.into_iter().filter(is_unwanted).collect();
        // Pairs with the fence in `read`: a thread that opens meanwhile sees that it is in vain, or
        // we see that it has opened.
        fence(Ordering::SeqCst);
        for row in self.rows.iter().take(self.used.load(Ordering::Relaxed) as usize) {
            if ended.iter().any(|&event| row.slots[event as usize].is_open()) {
                self.close(row, &ended, patience::SHORT);
            }
        }
    }

    fn close(&self, row: &Row, events: &[u32], sleeps: u32) -> bool {
        let closed = row.close(&self.kernel, events, sleeps);
        if let Some(closed) = closed.filter(|&closed| closed > 0) {
            self.open.fetch_sub(closed, Ordering::Relaxed);
            if self.starved.swap(false, Ordering::Relaxed) {
                self.generation.fetch_add(1, Ordering::Relaxed);
            }
        }
        closed.is_some()
    }

    /// The thread of this row ends.
    pub(super) fn leave(&self, row: usize) {
        let row = &self.rows[row];
        row.leave_own();
        if !self.close(row, &ALL, patience::LONG) {
            row.abandon();
        }
        row.renew();
    }

    /// Reads for the thread whose row this is.
    pub(super) fn read(&self, index: usize, events: &[u32], values: &mut [u64]) {
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
                self.close(row, std::slice::from_ref(event), patience::SHORT);
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

    pub(super) fn refuse(&self, refusal: Refusal) {
        self.refusals[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Accounts outlive their threads.
    pub(super) fn share(&self, event: u32) -> Times {
        let used = self.used.load(Ordering::Relaxed) as usize;
        let accounts = self.rows[..used.min(ROWS)].iter().filter_map(|row| row.slots.get(event as usize));
        accounts.map(|slot| slot.total().times).fold(Times::default(), |sum, times| Times {
            enabled_ns: sum.enabled_ns.saturating_add(times.enabled_ns),
            running_ns: sum.running_ns.saturating_add(times.running_ns),
        })
    }

    /// Reads for another thread.
    pub(super) fn read_of(&self, row: usize, tid: u32, events: &[u32], values: &mut [u64]) -> bool {
        let row = &self.rows[row];
        let Some(_inside) = row.enter() else { return false };
        events.iter().zip(values).all(|(&event, value)| {
            let found = row.slots.get(event as usize).and_then(|slot| slot.of_other(&self.kernel, tid));
            found.inspect(|&found| *value = found).is_some()
        })
    }

    /// In a fork child.
    pub(super) fn forget(&self) {
        for row in self.rows.iter().take(self.used.load(Ordering::Relaxed) as usize) {
            row.forget(&self.kernel);
        }
        self.open.store(0, Ordering::Relaxed);
        // The parent's countings are not the child's.
        self.wanted.iter().for_each(|wanted| wanted.store(0, Ordering::Relaxed));
        self.starved.store(false, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
