//! The unit of this process, and the row of the calling thread in it.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use dormouse_sys::process::fork::{Mutex, Phase, Reset, is_forking};
use dormouse_sys::thread::{self, ThreadBlock};

use super::kernel::Linux;
use super::row::EVENTS;
use super::unit::{MIGRATIONS, Perf, REFUSALS, Refusal};
use crate::error::Error;
use crate::pmu::event::{Event, Pmu};
use crate::pmu::scale::Times;

/// The events as the library lists them. (A static, because the oldest compilers allow no constant
/// that refers to a mutable static.)
pub(in crate::pmu) static KNOWN: [Event; EVENTS] = [
    Event::new("cycles", &PERF, 0),
    Event::new("instructions", &PERF, 1),
    Event::new("cache-references", &PERF, 2),
    Event::new("cache-misses", &PERF, 3),
    Event::new("branches", &PERF, 4),
    Event::new("branch-misses", &PERF, 5),
    Event::new("cpu-migrations-exact", &PERF, MIGRATIONS),
];

static CHANGES: Mutex<()> = Mutex::new(Phase::Units, ());

static IN_CHILD: Reset = Reset::new(Phase::Rows, in_child);

static PERF: Perf<Linux> = Perf::new(Linux::new());

/// How often a thread could not open an event's descriptor, by reason. Reasons that have not
/// occurred are left out.
pub fn refusals() -> Vec<(&'static str, u64)> {
    let counts = REFUSALS.iter().zip(&PERF.refusals);
    let counts = counts.map(|(reason, count)| (*reason, count.load(Ordering::Relaxed)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// The calling thread's answer about its row.
#[derive(Clone, Copy)]
enum Row {
    Unasked,
    Absent,
    At(usize),
}

thread_local! {
    static ROW: Cell<Row> = const { Cell::new(Row::Unasked) };
    static RUNS_TASKS: Cell<bool> = const { Cell::new(false) };
}

/// The row of the calling thread.
#[inline]
fn own_row() -> Option<usize> {
    match ROW.get() {
        Row::Unasked => find_row(),
        Row::Absent => None,
        Row::At(row) => Some(row),
    }
}

#[cold]
fn find_row() -> Option<usize> {
    // Without a block there is no row, and without the hooks its descriptors would never be closed.
    let hooked = || thread::on_thread_exit(at_exit) && IN_CHILD.join();
    let row = thread::current().filter(|_| hooked()).map(ThreadBlock::index);
    // In the middle of a fork by this thread the hooks were refused: the next read tries again.
    if row.is_some() || !is_forking() {
        ROW.set(row.map_or(Row::Absent, Row::At));
    }
    if row.is_none() {
        PERF.refuse(Refusal::Table);
    }
    row
}

/// The calling thread begins to run tasks. Its last charge reads its counters, maybe after
/// [`at_exit`].
pub(in crate::pmu) fn arrive() {
    RUNS_TASKS.set(true);
}

/// The calling thread has charged everything, and ends.
pub(in crate::pmu) fn depart() {
    RUNS_TASKS.set(false);
    at_exit();
}

fn at_exit() {
    if RUNS_TASKS.get() {
        return;
    }
    if let Row::At(row) = ROW.replace(Row::Absent) {
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
        let _alone = CHANGES.lock().map_err(|_| Error::Reentrant)?;
        Perf::begin(self, events).map_err(|(event, reason)| {
            let name = KNOWN.get(event as usize).map_or("perf", |event| event.name());
            Error::Unavailable { event: name.to_owned(), reason }
        })
    }

    fn end(&self, events: &[u32]) {
        // A handler over the same call finds the lock taken: then the descriptors stay open until a
        // later end.
        let Ok(_alone) = CHANGES.lock() else { return };
        Perf::end(self, events);
    }

    fn read_of(&self, thread: &ThreadBlock, events: &[u32], values: &mut [u64]) -> bool {
        Perf::read_of(self, thread.index(), thread.tid(), events, values)
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
