//! Reading the totals of contexts while threads run.
//!
//! A ledger holds what was charged. Uncharged counts are in the spans of threads. A read visits
//! each thread once, whatever task it runs, and reads its counters from outside. That is the
//! expensive part (two files of `/proc` for some events), and it is done once for all contexts and
//! events. The rest are loads:
//!
//! 1. The read adds up what was charged.
//! 2. For each thread it checks whether the thread is still in the span whose counters were read.
//!    If so, the delta of that span was not charged before step 1, and is added. If not, the read
//!    takes a new snapshot of the thread: its pending counts and the counts of its new span were
//!    not charged before step 1 either.
//! 3. It adds up what was charged once more. If nothing was charged since step 1, the sum is right.
//!    Otherwise the sum lacks what was charged in between, and the read begins again with step 1, a
//!    few times. The result is the largest sum of all rounds. It lacks only what was charged during
//!    the shortest of them.
//!
//! So nothing is counted twice, and no lock is taken: a host thread that reads does not wait for a
//! client that reads. A span that is flushed meanwhile counts as another span in step 2. Counts
//! that the flush has taken and not charged yet are missing as above. A read never returns less
//! than an earlier one (the ledger's row of reported sums).

use dormouse_sys::thread::ThreadBlock;

use crate::control::{EventTime, times};
use crate::event_set::{CLOCK, Readings, indices};
use crate::ledger::{Context, ENTRIES, SCOPES};
use crate::pmu::Event;
use crate::span::{self, Snapshot, Span};

/// How many rounds a read takes at most.
const ROUNDS: usize = 8;

/// The count of one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// The event.
    pub event: Event,
    /// The count in the event's unit, without what happened in contexts that were entered inside of
    /// this one.
    pub value: u64,
    /// The count in contexts that were entered inside of this one, up to their last switch. Once
    /// the event is no longer counted, the counts since that switch are left out.
    pub nested: u64,
    /// For how long the event was counted for this context, in nanoseconds of wall time, whether
    /// any of its tasks ran or not.
    pub enabled_ns: u64,
    /// The part of `enabled_ns` in which the event was really counted. It is shorter where a PMU
    /// has fewer counters than events and takes turns; the proportion is what all threads of the
    /// process have seen together ([`Pmu::share`](crate::Pmu::share)). `value` is scaled up for
    /// each thread and each interval between two reads.
    pub running_ns: u64,
}

/// The totals of a context.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Totals {
    /// See [`Context::cpu_ns`].
    pub cpu_ns: u64,
    /// See [`Context::entries`].
    pub entries: u64,
    /// See [`Context::polls`].
    pub polls: u64,
    /// See [`Context::read`].
    pub counts: Vec<Count>,
}

impl Context {
    /// How often a task of the context became current while anything was counted.
    ///
    /// # Cost
    ///
    /// Visits every thread's block; takes no lock.
    pub fn entries(&self) -> u64 {
        self.counters().entries
    }

    /// How often a future of the context was polled, or a thread switched to one of its tasks,
    /// while anything was counted. These are its entries without its scopes.
    ///
    /// # Cost
    ///
    /// The cost of [`Context::entries`].
    pub fn polls(&self) -> u64 {
        self.counters().polls
    }

    /// The counts of every event that was ever counted for this context, in the order in which the
    /// process first counted them. The running spans of threads are included if their PMU can be
    /// read from outside.
    ///
    /// # Cost
    ///
    /// Visits every thread's block. For each thread that runs a task of the context now, it reads
    /// the counters from outside (a system call for task-clock). It waits for a change of what is
    /// counted while the change stores the new set, but not while it flushes threads.
    ///
    /// # Async-signal-safety
    ///
    /// Not for signal handlers. In a handler that has interrupted a change of what is counted, the
    /// answer is empty.
    pub fn read(&self) -> Vec<Count> {
        Self::read_all(&[self], true).pop().unwrap_or_default().counts
    }

    /// The totals of several contexts; each thread is read once.
    ///
    /// # Cost
    ///
    /// The cost of [`Context::read`], for all contexts together. With `counts` false only CPU time
    /// is read, and [`Totals::counts`] stays empty.
    ///
    /// # Async-signal-safety
    ///
    /// See [`Context::read`].
    pub fn read_all(contexts: &[&Self], counts: bool) -> Vec<Totals> {
        let times = if counts { times(contexts) } else { Vec::new() };
        let ever = times.iter().flatten().fold(1 << CLOCK, |mask, time| mask | 1 << time.index);
        Request::new(contexts, ever).read(&times)
    }

    fn counters(&self) -> Totals {
        Request::new(&[self], 0).read(&[]).pop().unwrap_or_default()
    }

    /// CPU time of the context's tasks while task-clock was counted, in nanoseconds, without that
    /// of contexts entered inside of them. The running spans of threads are included. 0 if
    /// task-clock was never counted.
    ///
    /// # Cost
    ///
    /// Visits every thread's block, and makes a system call for each thread that runs a task of the
    /// context now. No lock.
    pub fn cpu_ns(&self) -> u64 {
        Self::read_all(&[self], false).pop().unwrap_or_default().cpu_ns
    }
}

/// The columns beside those of events. In the sums of a read the last one becomes that of polls.
const COUNTERS: [usize; 2] = [ENTRIES, SCOPES];

/// The request of a read: some columns of some ledgers. Its sums have a row for each context.
struct Request<'a> {
    contexts: &'a [&'a Context],
    /// The number and the row of each context, sorted.
    rows: Vec<(u32, usize)>,
    /// Events by index, then [`COUNTERS`].
    columns: Vec<usize>,
}

/// A thread with the counts that it has not charged.
struct Uncharged {
    block: &'static ThreadBlock,
    span: &'static Span,
    seen: Snapshot,
    /// The delta of the span: index and count of its context's events.
    delta: Vec<(usize, u64)>,
}

impl<'a> Request<'a> {
    /// Asks for the events of `mask`, and for how often tasks became current.
    fn new(contexts: &'a [&'a Context], mask: u64) -> Self {
        let mut rows: Vec<_> = contexts.iter().map(|context| context.id()).zip(0..).collect();
        rows.sort_unstable();
        Self { contexts, rows, columns: indices(mask).chain(COUNTERS).collect() }
    }

    fn read(&self, times: &[Vec<EventTime>]) -> Vec<Totals> {
        let mut threads: Vec<Uncharged> =
            span::live().map(|(block, span)| Uncharged::of(block, span, self)).collect();
        let width = self.columns.len();
        let mut most = vec![0; self.contexts.len() * width];
        let mut before = self.charged();
        for _ in 0..ROUNDS {
            let mut sums = before.clone();
            for thread in &mut threads {
                if !thread.span.is_still(&thread.seen) {
                    *thread = Uncharged::of(thread.block, thread.span, self);
                }
                thread.add_to(&mut sums, self);
            }
            for row in sums.chunks_mut(width) {
                if let [.., entries, scopes] = row {
                    // Saturating: a scope may have come since the entries were added up.
                    *scopes = entries.saturating_sub(*scopes);
                }
            }
            for (most, sum) in most.iter_mut().zip(&sums) {
                *most = (*most).max(*sum);
            }
            let again = self.charged();
            if again == before {
                break;
            }
            before = again;
        }
        let contexts = self.contexts.iter().zip(most.chunks(width)).enumerate();
        contexts.map(|(row, (context, sums))| self.totals(context, sums, times.get(row))).collect()
    }

    /// Where `column` of a context's row is, in sums.
    fn place(&self, context: u32, column: usize) -> Option<usize> {
        let row = self.rows.binary_search_by_key(&context, |&(id, _)| id).ok()?;
        let column = self.columns.iter().position(|&there| there == column)?;
        Some(self.rows[row].1 * self.columns.len() + column)
    }

    fn charged(&self) -> Vec<u64> {
        let mut sums = Vec::with_capacity(self.contexts.len() * self.columns.len());
        for context in self.contexts {
            sums.extend(self.columns.iter().map(|&column| context.charged(column)));
        }
        sums
    }

    fn totals(&self, context: &Context, sums: &[u64], times: Option<&Vec<EventTime>>) -> Totals {
        let report = |column| {
            let place = self.columns.iter().position(|&there| there == column);
            place.map_or(0, |place| context.report(column, sums[place]))
        };
        let count = |time: &EventTime| Count {
            event: time.event,
            value: report(time.index),
            nested: context.nested(time.index),
            enabled_ns: time.enabled_ns,
            running_ns: time.running_ns,
        };
        let (cpu_ns, [entries, polls]) = (report(CLOCK), COUNTERS.map(report));
        Totals { cpu_ns, entries, polls, counts: times.into_iter().flatten().map(count).collect() }
    }
}

impl Uncharged {
    fn of(block: &'static ThreadBlock, span: &'static Span, request: &Request<'_>) -> Self {
        let seen = span.snapshot();
        let mut delta = Vec::new();
        let wanted = request.columns.iter().filter(|&&c| c < ENTRIES).fold(0, |mask, c| mask | 1 << c);
        let baseline = &seen.baseline;
        let is_wanted = request.place(seen.context, ENTRIES).is_some();
        if is_wanted && baseline.set.mask() & wanted != 0 {
            let mut readings = Readings::default();
            let known = baseline.set.read_of(block, wanted, &mut readings);
            let deltas = baseline.deltas(&readings, known).filter(|delta| delta.is_shared);
            delta.extend(deltas.map(|delta| (delta.index, delta.n)));
            if !span.is_still(&seen) {
                // The readings are of a later span, at least in part. The next round looks again.
                delta.clear();
            }
        }
        Self { block, span, seen, delta }
    }

    fn add_to(&self, sums: &mut [u64], request: &Request<'_>) {
        let mut add = |context, column, n| {
            if let Some(place) = request.place(context, column) {
                sums[place] += n;
            }
        };
        for &(index, n) in &self.delta {
            add(self.seen.context, index, n);
        }
        let pending = &self.seen.pending;
        for (column, n) in [(CLOCK, pending.ns), (ENTRIES, pending.entries), (SCOPES, pending.scopes)] {
            add(pending.context, column, n);
        }
    }
}
