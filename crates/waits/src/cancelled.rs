//! Requests that were cancelled: where they waited, and the stacks that dropped them.
//!
//! A request is cancelled if its future is dropped before its end. While places are requested, the
//! drop stores in the slot where the task waits, before its leaves take their wakers along, and the
//! number of its own stack ([`DroppedTask`]). Only the end of the task knows the outcome; if that
//! is `cancelled`, the request is added to the row of its group, its place and that stack.
//!
//! Rows belong to a *span* of five minutes. Readers get the present one and the one before: the
//! requests of the last minutes, and no others. So a service that runs for months has room for the
//! rows of today. The lookout begins a new span in the place of the older one
//! ([`Cancelled::turn`]).
//!
//! # Invariants
//!
//! 1. A row belongs to one group, place and stack from its first request until its span is cleared.
//!    A thread that was preempted in between may count a request of an earlier span.
//! 2. A thread that finds the longest request of a row being written skips it: no thread waits.
//!
//! # Async-signal-safety
//!
//! Counting takes no lock, and allocates nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_sys::sync::Sequence;

use crate::buckets::{self, BUCKETS, EXPORTED_SCALE, Histogram, POWERS, SCALE};
use crate::cells::{cells, claim_cell, mixed};
use crate::known::{Known, is_yield};
use crate::rows::{GROUPS, row_of};
use crate::slot::Slot;
use crate::stacks::STACKS;
use crate::trace_context::TraceContext;

/// How many rows a span has.
const ROWS: usize = if cfg!(miri) { 16 } else { 256 };

/// How long a span lasts.
const SPAN_NS: u64 = 300_000_000_000;

/// A row's ages have wider buckets than other durations: it is shared by all threads.
const WIDER: usize = 1 << (SCALE - EXPORTED_SCALE);
const AGES: usize = 1 + POWERS * (1 << EXPORTED_SCALE);

/// Whether a request that was dropped had begun to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Waited {
    /// The request was polled last before times were taken, or no future was dropped: the answer
    /// itself was that the client is gone.
    Unknown = 0,
    /// The request was never polled.
    NotBegun = 1,
    /// The request awaited something.
    Awaiting = 2,
    /// The request was woken, and waited for a thread.
    Runnable = 3,
}

/// The drop of a task's future, as the task's slot has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DroppedTask {
    /// The state in which the task was dropped.
    pub waited: Waited,
    /// The place where the task waited; 0: it is not known, or there was none.
    pub place: u32,
    /// At how many more places it waited.
    pub more_places: u32,
    /// The number of the stack that drops it.
    pub stack: u32,
    /// Whether the thread unwinds by a panic.
    pub is_panicking: bool,
}

impl DroppedTask {
    const STACK: u32 = 16;
    const WAITED: u32 = 32;
    const PANICKING: u32 = 34;
    const MORE: u32 = 35;
    const IS_THERE: u64 = 1 << 38;
    const GROUP: u32 = 40;

    /// The drop of the slot's task, by the code with the stack of this number.
    pub(crate) fn now(slot: &Slot, stack: u32, is_panicking: bool) -> Self {
        let load = |word: &crate::primitive::AtomicU64| word.load(Ordering::Relaxed);
        let polls = slot.polls.load(Ordering::Relaxed);
        let (begun, woken) = (load(&slot.begun), load(&slot.woken));
        let waited = match polls {
            0 if begun == 0 => Waited::Unknown,
            0 => Waited::NotBegun,
            _ if woken == 0 || is_yield(woken, load(&slot.since)) => Waited::Awaiting,
            _ => Waited::Runnable,
        };
        let mut places = Known::now(slot).places.into_iter().filter(|place| *place != 0);
        let place = places.next().unwrap_or(0);
        Self { waited, place, more_places: places.count() as u32, stack, is_panicking }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from(self.place)
            | u64::from(self.stack) << Self::STACK
            | u64::from(self.waited as u8) << Self::WAITED
            | u64::from(self.is_panicking) << Self::PANICKING
            | u64::from(self.more_places) << Self::MORE
    }

    pub(crate) fn of(word: u64) -> Self {
        let waited = [Waited::Unknown, Waited::NotBegun, Waited::Awaiting, Waited::Runnable];
        Self {
            waited: waited[(word >> Self::WAITED) as usize % waited.len()],
            place: u32::from(word as u16),
            more_places: (word >> Self::MORE) as u32 & 0b111,
            stack: u32::from((word >> Self::STACK) as u16),
            is_panicking: word >> Self::PANICKING & 1 != 0,
        }
    }
}

const _: () = assert!(STACKS <= 1 << DroppedTask::STACK && GROUPS <= 1 << (64 - DroppedTask::GROUP));

/// A cancelled request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CancelledRequest {
    /// The slot's word; 0: no future was dropped.
    pub(crate) dropped: u64,
    pub(crate) task: u64,
    pub(crate) group: u32,
    /// In ticks; `None` if it began before times were taken.
    pub(crate) age: Option<u64>,
    pub(crate) trace: Option<TraceContext>,
}

/// The requests of a group that waited at one place and were dropped by one stack. Zeros are none.
struct Row {
    /// The word of [`DroppedTask`] and the group; 0: free.
    key: AtomicU64,
    requests: AtomicU64,
    /// When the last one ended, as a stamp.
    last: AtomicU64,
    /// By age, in buckets of [`EXPORTED_SCALE`].
    ages: [AtomicU32; AGES],
    longest: Longest,
}

/// The oldest request of a row.
struct Longest {
    sequence: Sequence,
    ticks: AtomicU64,
    task: AtomicU64,
    trace: [AtomicU64; 3],
}

/// Both spans. Zeros are empty ones.
pub(crate) struct Cancelled {
    /// The number of the present span.
    present: AtomicUsize,
    /// When each has begun, as a stamp; 0: not yet.
    begun: [AtomicU64; 2],
    rows: [[Row; ROWS]; 2],
    /// Requests that found no row.
    no_room: AtomicU64,
}

/// Cancelled requests of a group that waited at the same place and were dropped by the same code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cancellation {
    /// The number of the group; 0 for those past the table of groups.
    pub group: u32,
    /// The state in which the requests were dropped.
    pub waited: Waited,
    /// The number of the [place](crate::places) where they waited; 0 if it is not known, or there
    /// was none.
    pub place: u32,
    /// At how many other places each of them waited.
    pub more_places: u32,
    /// The number of the stack that dropped them, which [`places::place`](crate::places::place)
    /// has; 0 if no future was dropped.
    pub stack: u32,
    /// Whether they were dropped by a thread that unwound by a panic.
    pub is_panicking: bool,
    /// The number of requests.
    pub requests: u64,
    /// How long ago the last one ended, in nanoseconds.
    pub last_ns: u64,
    /// The ages of those that began while times were taken.
    pub ages: Histogram,
    /// The trace of the oldest one, if that is known.
    pub trace: Option<TraceContext>,
}

/// The time of a reading of cancelled requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CancelledFor {
    /// The requests were cancelled within this time.
    pub time: Duration,
    /// How many requests found no row since places were first requested.
    pub no_room: u64,
}

impl Cancelled {
    /// Forgets everything.
    pub(crate) fn begin(&self) {
        let [present, before] = &self.begun;
        self.rows.iter().flatten().for_each(Row::clear);
        before.store(0, Ordering::Relaxed);
        present.store(stamp(), Ordering::Relaxed);
        // Release: pairs with the load in `add`, whose thread finds the rows cleared.
        self.present.store(0, Ordering::Release);
    }

    /// Begins another span if this one has lasted long enough. One thread calls it.
    pub(crate) fn turn(&self) {
        self.turn_after(SPAN_NS);
    }

    fn turn_after(&self, span_ns: u64) {
        let (now, present) = (stamp(), self.present.load(Ordering::Relaxed) % 2);
        let lasted = now.saturating_sub(self.begun[present].load(Ordering::Relaxed));
        if ticks_to_ns(lasted) < span_ns {
            return;
        }
        let next = 1 - present;
        self.rows[next].iter().for_each(Row::clear);
        self.begun[next].store(now, Ordering::Relaxed);
        // Release: pairs with the load in `add`.
        self.present.store(next, Ordering::Release);
    }

    pub(crate) fn add(&self, request: CancelledRequest) {
        let group = row_of(request.group) as u64;
        let key = request.dropped | DroppedTask::IS_THERE | group << DroppedTask::GROUP;
        let rows = &self.rows[self.present.load(Ordering::Acquire) % 2];
        // Twice: the place is high in the key, and one product brings it no further down.
        let mut cells = cells(rows, mixed(mixed(key)) >> 32);
        match cells.find(|(_, row)| claim_cell(&row.key, key).is_some()) {
            Some((_, row)) => row.add(request),
            None => _ = self.no_room.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Passes the rows of both spans to `each`: some may come twice, once from each.
    pub(crate) fn read(&self, mut each: impl FnMut(&Cancellation)) -> CancelledFor {
        let now = stamp();
        let begun = self.begun.each_ref().map(|begun| begun.load(Ordering::Relaxed));
        for row in self.rows.iter().flatten() {
            if let Some(row) = row.read(now) {
                each(&row);
            }
        }
        let first = begun.into_iter().filter(|begun| *begun != 0).min().unwrap_or(now);
        CancelledFor {
            time: Duration::from_nanos(ticks_to_ns(now.saturating_sub(first))),
            no_room: self.no_room.load(Ordering::Relaxed),
        }
    }
}

impl Row {
    fn clear(&self) {
        if self.key.load(Ordering::Relaxed) == 0 {
            return;
        }
        for word in [&self.requests, &self.last, &self.longest.ticks, &self.longest.task] {
            word.store(0, Ordering::Relaxed);
        }
        self.ages.iter().for_each(|age| age.store(0, Ordering::Relaxed));
        // Release: pairs with the exchange in `claim_cell`, whose thread counts after that.
        self.key.store(0, Ordering::Release);
    }

    fn add(&self, CancelledRequest { task, age, trace, .. }: CancelledRequest) {
        self.last.store(stamp(), Ordering::Relaxed);
        if let Some(ticks) = age {
            let bucket = buckets::place(ticks_to_ns(ticks)).div_ceil(WIDER);
            self.ages[bucket.min(AGES - 1)].fetch_add(1, Ordering::Relaxed);
            if ticks > self.longest.ticks.load(Ordering::Relaxed) {
                self.longest.exceed(ticks, task, trace);
            }
        }
        // Release: who reads the count finds the rest.
        self.requests.fetch_add(1, Ordering::Release);
    }

    fn read(&self, now: u64) -> Option<Cancellation> {
        let key = self.key.load(Ordering::Relaxed);
        // Acquire: pairs with the addition in `add`.
        let requests = self.requests.load(Ordering::Acquire);
        if key == 0 || requests == 0 {
            return None;
        }
        let DroppedTask { waited, place, more_places, stack, is_panicking } = DroppedTask::of(key);
        let (longest, task, trace) = self.longest.read();
        let mut ages = Histogram { scale: EXPORTED_SCALE, max_task: task, ..Histogram::default() };
        for (at, count) in self.ages.iter().enumerate() {
            ages.buckets[(at * WIDER).min(BUCKETS - 1)] += u64::from(count.load(Ordering::Relaxed));
        }
        ages.max_ns = ticks_to_ns(longest);
        let last_ns = ticks_to_ns(now.saturating_sub(self.last.load(Ordering::Relaxed)));
        let group = (key >> DroppedTask::GROUP) as u32;
        Some(Cancellation {
            group,
            waited,
            place,
            more_places,
            stack,
            is_panicking,
            requests,
            last_ns,
            ages,
            trace,
        })
    }
}

impl Longest {
    #[cold]
    fn exceed(&self, ticks: u64, task: u64, trace: Option<TraceContext>) {
        let words = trace.map_or([0; 3], TraceContext::words);
        let _written = self.sequence.try_write(|| {
            self.ticks.store(ticks, Ordering::Relaxed);
            self.task.store(task, Ordering::Relaxed);
            for (to, from) in self.trace.iter().zip(words) {
                to.store(from, Ordering::Relaxed);
            }
        });
    }

    fn read(&self) -> (u64, u64, Option<TraceContext>) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let ((ticks, task, trace), is_whole) =
            self.sequence.read(|| (load(&self.ticks), load(&self.task), self.trace.each_ref().map(load)));
        if is_whole { (ticks, task, TraceContext::from_words(trace, true)) } else { (ticks, 0, None) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use dormouse_clock::point;

    use super::*;

    const fn zero() -> AtomicU64 {
        AtomicU64::new(0)
    }

    const fn row() -> Row {
        let trace = [const { zero() }; 3];
        let longest = Longest { sequence: Sequence::new(), ticks: zero(), task: zero(), trace };
        let ages = [const { AtomicU32::new(0) }; AGES];
        Row { key: zero(), requests: zero(), last: zero(), ages, longest }
    }

    #[expect(clippy::large_stack_arrays, reason = "for statics alone")]
    const fn empty() -> Cancelled {
        Cancelled {
            present: AtomicUsize::new(0),
            begun: [const { zero() }; 2],
            rows: [const { [const { row() }; ROWS] }; 2],
            no_room: zero(),
        }
    }

    fn begun(table: &'static Cancelled) -> &'static Cancelled {
        table.begin();
        table
    }

    fn request(stack: u32, task: u64, age_ms: Option<u64>) -> CancelledRequest {
        let waited = Waited::Awaiting;
        let dropped = DroppedTask { waited, place: 7, more_places: 2, stack, is_panicking: false };
        let age = age_ms.map(|ms| (point().hz / 1e3) as u64 * ms);
        CancelledRequest { dropped: dropped.word(), task, group: 3, age, trace: None }
    }

    fn rows(table: &Cancelled) -> Vec<Cancellation> {
        let mut rows = Vec::new();
        table.read(|row| rows.push(row.clone()));
        rows.sort_by_key(|row| (row.stack, row.requests));
        rows
    }

    #[test]
    fn a_word_comes_back_as_it_was() {
        for waited in [Waited::Unknown, Waited::NotBegun, Waited::Awaiting, Waited::Runnable] {
            for is_panicking in [false, true] {
                let dropped =
                    DroppedTask { waited, place: 16_383, more_places: 6, stack: 16_382, is_panicking };
                assert_eq!(DroppedTask::of(dropped.word() | DroppedTask::IS_THERE), dropped);
            }
        }
        assert_eq!(DroppedTask::of(0).waited, Waited::Unknown);
    }

    #[test]
    fn equal_ends_share_a_row() {
        static TABLE: Cancelled = empty();
        let table = begun(&TABLE);
        for (task, age) in [(1, Some(10)), (3, Some(30)), (5, Some(20)), (7, None)] {
            table.add(request(9, task, age));
        }
        table.add(request(8, 9, None));
        let seen = rows(table);
        assert_eq!(seen.iter().map(|row| (row.stack, row.requests)).collect::<Vec<_>>(), [(8, 1), (9, 4)]);
        let row = &seen[1];
        assert_eq!((row.group, row.place, row.more_places, row.waited), (3, 7, 2, Waited::Awaiting));
        assert_eq!((row.ages.count(), row.ages.max_task), (3, 3), "the age of one is not known");
        let median_ms = row.ages.quantile_ns(0.5).unwrap() / 1_000_000;
        assert!((15..=30).contains(&median_ms), "{median_ms}");
        assert_eq!((seen[0].ages.count(), seen[0].ages.quantile_ns(0.5)), (0, None));
    }

    #[test]
    fn old_requests_go_with_their_span() {
        static TABLE: Cancelled = empty();
        let table = begun(&TABLE);
        table.add(request(8, 1, Some(1)));
        table.turn();
        table.add(request(9, 3, Some(1)));
        assert_eq!(rows(table).len(), 2, "it has not lasted for long");
        table.turn_after(0);
        table.add(request(9, 5, Some(1)));
        assert_eq!(
            rows(table).iter().map(|row| (row.stack, row.requests)).collect::<Vec<_>>(),
            [(8, 1), (9, 1), (9, 1)]
        );
        table.turn_after(0);
        assert_eq!(rows(table).iter().map(|row| (row.stack, row.requests)).collect::<Vec<_>>(), [(9, 1)]);
    }

    #[test]
    fn requests_without_a_row_are_counted() {
        static TABLE: Cancelled = empty();
        let table = begun(&TABLE);
        for stack in 0..4 * ROWS as u32 {
            table.add(request(stack, 1, None));
        }
        let kept = rows(table).len() as u64;
        let lost = table.read(|_| ()).no_room;
        assert!(kept <= ROWS as u64 && kept > ROWS as u64 / 2, "{kept}");
        assert_eq!(kept + lost, 4 * ROWS as u64);
    }
}
