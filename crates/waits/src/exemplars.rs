//! One recent request for each bucket: its task, its latency, its end, and its trace.
//!
//! The rows of threads contain only the number of a task for each bucket, so that they stay small.
//! Here a group has one entry for each bucket that is exported, four of ours, which all threads
//! share. To keep threads from contending for its cache line, an entry stays for [`STAYS_NS`]:
//! during that time a request that ends only reads it.
//!
//! A trace is useful only if it was kept somewhere, and that may be one request in a hundred. So an
//! entry with a sampled trace makes way for a request without one only after [`TRACED_STAYS_NS`],
//! when a scrape has seen it. A request that is the longest of its thread so far takes the entry at
//! once.
//!
//! A request that is answered takes an entry before anybody knows how it ends. Its end adds the
//! outcome, if the entry is still its own.
//!
//! # Invariants
//!
//! 1. A thread that wants to write an entry finds it free, or skips it: no thread waits.
//! 2. An entry that is read was written for one request. Only that request's end changes it.
//!
//! # Async-signal-safety
//!
//! A request may end in a signal handler. An entry that the interrupted thread is writing is not
//! free.
//!
//! # Safety
//!
//! The unsafe code makes references to mappings that stay. [`entries`] excludes the two pointers
//! that lead to none: null and [`NO_MEMORY`].
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use dormouse_clock::{realtime_ns, stamp, ticks_to_ns};
use dormouse_sys::prefetch;
use dormouse_sys::sync::Sequence;

use crate::buckets::{self, EXPORTED_SCALE, POWERS, SCALE};
use crate::memory::{self, Zeroed};
use crate::rows::{GROUPS, row_of};
use crate::trace_context::TraceContext;

/// The number of entries of a power of two.
const OF_POWER: usize = 1 << EXPORTED_SCALE;

/// The number of entries of a group, including that of the zero bucket.
const ENTRIES: usize = 1 + POWERS * OF_POWER;

/// How long an entry stays.
const STAYS_NS: u64 = 10_000_000;

/// How long an entry with a trace stays while requests without one end: a scrape comes each minute.
const TRACED_STAYS_NS: u64 = 60_000_000_000;

/// A request that stands for its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// The bucket's index in [`Histogram::buckets`](crate::Histogram).
    pub bucket: usize,
    /// The number of the request's task.
    pub task: u64,
    /// The request's duration, in nanoseconds.
    pub duration_ns: u64,
    /// When the request ended, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The number of its outcome, as its [end](crate::TaskWaits::end_with) has it; `None` while its
    /// body is being sent.
    pub outcome: Option<u8>,
    /// The request's trace, if that is known and sampled.
    pub trace: Option<TraceContext>,
}

/// A line of the cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Entry {
    sequence: Sequence,
    /// The request's answer, and later its end, as a stamp; 0 if the entry was never written.
    ends: AtomicU64,
    unix_ns: AtomicU64,
    /// In the low bits. Above them is the number of the outcome and one, or 0.
    duration_ns: AtomicU64,
    task: AtomicU64,
    trace: [AtomicU64; 3],
}

/// The bits of a duration: some two years.
const DURATION: u32 = 56;

fn packed(duration_ns: u64, outcome: Option<u8>) -> u64 {
    let longest = (1 << DURATION) - 1;
    duration_ns.min(longest) | outcome.map_or(0, |of| u64::from(of.saturating_add(1)) << DURATION)
}

/// The entries of a group.
#[derive(Debug)]
#[repr(C)]
struct Entries {
    /// The buckets whose entries were written, by bits: a reader passes the others by. The zero
    /// bucket belongs to no power of two and has no bit, so that those of one are in one word.
    used: [AtomicU64; (ENTRIES - 1).div_ceil(64)],
    by_bucket: [Entry; ENTRIES],
}

// SAFETY: atomics alone, of which zero is a value.
unsafe impl Zeroed for Entries {}

/// In place of a row's entries: there was no memory for them.
const NO_MEMORY: *mut Entries = ptr::dangling_mut();

static ROWS: [AtomicPtr<Entries>; GROUPS] = [const { AtomicPtr::new(ptr::null_mut()) }; GROUPS];

/// A request that was answered, or has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) task: u64,
    pub(crate) group: u32,
    pub(crate) lasted_ns: u64,
    pub(crate) bucket: usize,
    /// A stamp.
    pub(crate) ends: u64,
    /// Whether its thread has counted no longer one.
    pub(crate) is_longest: bool,
    /// Its outcome, if that is known yet.
    pub(crate) outcome: Option<u8>,
}

/// A request was answered, or has ended. Returns whether it has taken an entry. Few need `trace`.
#[inline]
pub(crate) fn ended(of: Ended, trace: impl Fn() -> Option<TraceContext>) -> bool {
    let row = &ROWS[row_of(of.group)];
    match entries(row) {
        Some(entries) => entries.take(of, trace),
        None if row.load(Ordering::Relaxed).is_null() => begin(row, of, trace()),
        None => false,
    }
}

/// A request has ended with that outcome that took an entry when it was answered.
#[cold]
pub(crate) fn has_outcome(task: u64, group: u32, lasted_ns: u64, outcome: u8) {
    if let Some(entries) = entries(&ROWS[row_of(group)]) {
        entries.by_bucket[entry_of(buckets::place(lasted_ns))].set_outcome(task, outcome);
    }
}

/// The number of the entry for a bucket.
#[inline]
fn entry_of(bucket: usize) -> usize {
    bucket.div_ceil(1 << (SCALE - EXPORTED_SCALE))
}

/// The entries of a row, if it has some.
#[inline]
fn entries(row: &AtomicPtr<Entries>) -> Option<&'static Entries> {
    // Acquire: pairs with the exchange in `put`.
    let entries = row.load(Ordering::Acquire);
    // SAFETY: neither null nor the sign of no memory: a mapping that stays.
    (!entries.is_null() && entries != NO_MEMORY).then(|| unsafe { &*entries })
}

/// A group's first request.
#[cold]
fn begin(row: &AtomicPtr<Entries>, of: Ended, trace: Option<TraceContext>) -> bool {
    match memory::map::<Entries>(1) {
        Some(made) => _ = memory::put(row, made),
        // Requests do not try again to map memory.
        None => {
            let _put = row.compare_exchange(ptr::null_mut(), NO_MEMORY, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
    entries(row).is_some_and(|entries| entries.take(of, || trace))
}

impl Entries {
    /// Whether the request has taken an entry.
    #[inline]
    fn take(&self, of: Ended, trace: impl Fn() -> Option<TraceContext>) -> bool {
        let bucket = entry_of(of.bucket);
        let taken = self.by_bucket[bucket].take(of, trace);
        if taken == Some(IsFirst(true))
            && let Some(bit) = bucket.checked_sub(1)
        {
            self.used[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
        taken.is_some()
    }

    /// The powers of two of which an entry was written, each with its buckets' bits.
    fn used(&self) -> impl Iterator<Item = (usize, u64)> {
        const ALL: u64 = (1 << OF_POWER) - 1;
        self.used.iter().enumerate().flat_map(|(word, used)| {
            let mut used = used.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                if used == 0 {
                    return None;
                }
                let lowest = used.trailing_zeros() as usize / OF_POWER;
                let bits = used >> (lowest * OF_POWER) & ALL;
                used &= !(ALL << (lowest * OF_POWER));
                Some((word * (64 / OF_POWER) + lowest, bits))
            })
        })
    }

    /// The written entries of a power of two, the longest requests first.
    fn written(&self, power: usize, used: u64) -> impl Iterator<Item = &Entry> {
        let written = (0..OF_POWER).rev().filter(move |at| used >> at & 1 != 0);
        written.map(move |at| &self.by_bucket[1 + power * OF_POWER + at])
    }

    /// Starts the fetch of all written entries into the cache. Each is a line that other threads
    /// write, so this avoids waiting for one after the other.
    fn fetch(&self) {
        for (power, used) in self.used() {
            self.written(power, used).for_each(prefetch);
        }
    }

    /// The powers of two of which an entry has a request that ended at `since` or later.
    fn changed(&self, since: u64) -> impl Iterator<Item = (usize, u64)> {
        let has_changed = move |entry: &Entry| entry.ends.load(Ordering::Relaxed) >= since;
        self.used().filter(move |&(power, used)| since == 0 || self.written(power, used).any(has_changed))
    }

    /// From the buckets of a power of two, the longest request with a trace, or else the longest.
    fn read(&self, power: usize, used: u64) -> Option<Exemplar> {
        let mut longest = None;
        for entry in self.written(power, used) {
            let read = entry.read();
            if read.is_some_and(|it| it.trace.is_some()) {
                return read;
            }
            longest = longest.or(read);
        }
        longest
    }
}

/// Whether the request that has taken an entry is the first one that did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IsFirst(bool);

impl Entry {
    /// Takes the entry for a request, if it is due; `None`: it stays.
    #[inline]
    fn take(&self, of: Ended, trace: impl Fn() -> Option<TraceContext>) -> Option<IsFirst> {
        let ends = self.ends.load(Ordering::Relaxed);
        if ends == 0 || of.is_longest {
            self.write(of, trace());
            return Some(IsFirst(ends == 0));
        }
        let stood_ns = ticks_to_ns(of.ends.saturating_sub(ends));
        if stood_ns < STAYS_NS { None } else { self.replace(of, trace(), stood_ns) }
    }

    /// Takes the entry for a request that is not the longest, if it is due after `stood_ns`.
    #[cold]
    fn replace(&self, of: Ended, trace: Option<TraceContext>, stood_ns: u64) -> Option<IsFirst> {
        let is_traced = || self.trace[..2].iter().any(|word| word.load(Ordering::Relaxed) != 0);
        let is_sampled = trace.is_some_and(TraceContext::is_sampled);
        let is_due = is_sampled || stood_ns >= TRACED_STAYS_NS || !is_traced();
        is_due.then(|| self.write(of, trace)).map(|()| IsFirst(false))
    }

    #[cold]
    fn write(&self, of: Ended, trace: Option<TraceContext>) {
        let unix_ns = realtime_ns();
        let trace = trace.filter(|trace| trace.is_sampled());
        let words = trace.map_or([0; 3], TraceContext::words);
        // Not written: another thread has just written a request of the same bucket.
        let _written = self.sequence.try_write(|| {
            self.ends.store(of.ends.max(1), Ordering::Relaxed);
            self.unix_ns.store(unix_ns, Ordering::Relaxed);
            self.duration_ns.store(packed(of.lasted_ns, of.outcome), Ordering::Relaxed);
            self.task.store(of.task, Ordering::Relaxed);
            for (to, from) in self.trace.iter().zip(words) {
                to.store(from, Ordering::Relaxed);
            }
        });
    }

    /// Adds the outcome, if the entry is that task's.
    fn set_outcome(&self, task: u64, outcome: u8) {
        // Not written: it is being written for another request.
        let _written = self.sequence.try_write(|| {
            if self.task.load(Ordering::Relaxed) == task {
                let duration_ns = self.duration_ns.load(Ordering::Relaxed) & ((1 << DURATION) - 1);
                self.duration_ns.store(packed(duration_ns, Some(outcome)), Ordering::Relaxed);
                self.ends.store(stamp(), Ordering::Relaxed);
            }
        });
    }

    /// `None` if it was never written, or is being written at every attempt.
    fn read(&self) -> Option<Exemplar> {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let read = || {
            let packed = load(&self.duration_ns);
            let duration_ns = packed & ((1 << DURATION) - 1);
            let exemplar = Exemplar {
                bucket: buckets::place(duration_ns),
                task: load(&self.task),
                duration_ns,
                unix_ns: load(&self.unix_ns),
                outcome: ((packed >> DURATION) as u8).checked_sub(1),
                trace: TraceContext::from_words(self.trace.each_ref().map(load), true),
            };
            (load(&self.ends) != 0).then_some(exemplar)
        };
        let (exemplar, is_whole) = self.sequence.read(read);
        exemplar.filter(|_| is_whole)
    }
}

/// The requests that stand for a group's, in the order of buckets, as `of` converts them: one for
/// each power of two, chosen from the buckets within. One with a trace is preferred, then the
/// longest. Groups whose numbers are past the table's have none.
///
/// There is no function that returns more of them: for a thousand groups, that would be a thousand
/// times more text.
///
/// # Cost
///
/// Reads 64 bytes for each, and for each other bucket of its power of two if none has a trace. No
/// thread is stopped.
pub fn exemplars<T>(group: u32, of: impl Fn(Exemplar) -> T) -> Vec<T> {
    exemplars_since(group, 0, of)
}

/// Does what [`exemplars`] does, for the powers of two that have changed since a stamp. (An entry
/// may be written some time after its request has ended.)
pub fn exemplars_since<T>(group: u32, since: u64, of: impl Fn(Exemplar) -> T) -> Vec<T> {
    let Some(entries) = ROWS.get(group as usize).and_then(entries) else { return Vec::new() };
    // Callers go from group to group.
    if let Some(next) = ROWS.get(group as usize + 1).and_then(self::entries) {
        prefetch(&next.used);
    }
    entries.fetch();
    // The list takes the memory that it needs, and no more: requests may come meanwhile.
    let count = entries.changed(since).count();
    let mut all = Vec::with_capacity(count);
    let read = entries.changed(since).filter_map(|(power, used)| entries.read(power, used));
    all.extend(read.take(count).map(of));
    all
}

/// In a forked child: another thread of the parent may have been about to write.
pub(crate) fn forget() {
    // Looked at first: what is written to is copied.
    for row in ROWS.iter().filter(|row| !row.load(Ordering::Relaxed).is_null()) {
        row.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use dormouse_clock::point;

    use super::*;

    fn request(group: u32, task: u64) -> Ended {
        let of =
            Ended { task, group, lasted_ns: 0, bucket: 0, ends: stamp(), is_longest: false, outcome: None };
        lasted(1_000_000, of)
    }

    fn lasted(lasted_ns: u64, of: Ended) -> Ended {
        Ended { lasted_ns, bucket: buckets::place(lasted_ns), ..of }
    }

    fn traced(byte: u8) -> Option<TraceContext> {
        TraceContext::new([byte; 16], [byte; 8])
    }

    fn only(group: u32) -> Exemplar {
        match exemplars(group, |it| it)[..] {
            [only] => only,
            ref all => panic!("{all:?}"),
        }
    }

    #[test]
    fn an_entry_stays_until_it_is_due() {
        let ticks = |ns: u64| (ns as f64 * point().hz / 1e9) as u64;
        let first = request(501, 1);
        ended(first, || None);
        let seen = only(501);
        assert_eq!((seen.task, seen.trace, seen.duration_ns), (1, None, first.lasted_ns));
        assert_eq!(seen.bucket, buckets::place(seen.duration_ns));
        let at = |ns: u64, task| Ended { ends: first.ends + ticks(ns), task, ..first };
        ended(at(STAYS_NS / 2, 3), || traced(3));
        assert_eq!(only(501), seen, "the same at each look, to the nanosecond");
        ended(at(STAYS_NS * 2, 5), || traced(5));
        assert_eq!((only(501).task, only(501).trace), (5, traced(5)));
        ended(at(TRACED_STAYS_NS / 2, 7), || None);
        let unsampled = traced(9).map(|trace| trace.sampled(false));
        ended(at(TRACED_STAYS_NS / 2, 9), || unsampled);
        assert_eq!(only(501).task, 5, "a trace is kept for a scrape");
        ended(Ended { is_longest: true, ..at(TRACED_STAYS_NS / 2, 11) }, || unsampled);
        assert_eq!((only(501).task, only(501).trace), (11, None), "the longest comes at once");
        ended(at(TRACED_STAYS_NS, 13), || traced(13));
        ended(at(3 * TRACED_STAYS_NS, 15), || None);
        assert_eq!(only(501).task, 15);
    }

    #[test]
    fn each_bucket_has_its_own() {
        for (task, ns) in [(1, 1_000), (3, 1_000_000), (5, 1_000_000_000)] {
            ended(lasted(ns, request(502, task)), || None);
        }
        assert_eq!(exemplars(502, |it| it.task), [1, 3, 5]);
        assert_eq!((exemplars(503, |it| it), exemplars(u32::MAX, |it| it)), (vec![], vec![]));
    }

    #[test]
    fn each_power_of_two_has_one() {
        let of = |bucket: usize, task, trace| {
            let ns = buckets::upper_bound_ns(bucket) * 0.98;
            ended(lasted(ns as u64, request(505, task)), || trace);
        };
        // The buckets 161 to 176 end with a power of two, and have an entry for four of them.
        for (bucket, task) in [(160, 1), (164, 2), (172, 3), (176, 4), (177, 5)] {
            of(bucket, task, None);
        }
        let seen = || exemplars(505, |it| (it.bucket, it.task));
        assert_eq!(seen(), [(160, 1), (176, 4), (177, 5)], "the longest of each");
        of(168, 6, traced(6));
        assert_eq!(seen(), [(160, 1), (168, 6), (177, 5)], "one with a trace is of more use");
    }

    #[test]
    fn an_end_adds_its_outcome() {
        let first = request(506, 1);
        assert!(ended(first, || None));
        assert_eq!(only(506).outcome, None);
        has_outcome(3, 506, first.lasted_ns, 2);
        assert_eq!(only(506).outcome, None, "the end of another request");
        has_outcome(1, 506, first.lasted_ns, 4);
        let (seen, ns) = (only(506), first.lasted_ns);
        assert_eq!((seen.outcome, seen.duration_ns, seen.bucket), (Some(4), ns, buckets::place(ns)));
        assert!(!ended(Ended { task: 5, ..first }, || None), "it is not due");
        assert!(ended(Ended { task: 7, is_longest: true, outcome: Some(0), ..first }, || None));
        assert_eq!((only(506).task, only(506).outcome), (7, Some(0)));
    }

    #[test]
    fn those_that_are_known_may_be_left_out() {
        let of = |seconds: f64, task| {
            let of = lasted((seconds * 1e9) as u64, request(507, task));
            ended(of, || None);
            of.ends
        };
        of(1e-6, 1);
        of(1e-3, 3);
        let since = of(0.9, 5);
        let seen = |since| exemplars_since(507, since, |it| it.task);
        assert_eq!((seen(0), seen(since), seen(since + 1)), (vec![1, 3, 5], vec![5], vec![]));
        of(1.5e-3, 7);
        assert_eq!(seen(since + 1), [7], "a longer one of the same power of two");
        of(0.6, 9);
        assert_eq!(seen(since + 1), [7, 5], "a shorter one");
        // Its outcome comes later than its answer.
        let now = stamp();
        has_outcome(1, 507, 1_000, 2);
        assert_eq!(seen(now), [1]);
    }

    #[test]
    fn an_entry_is_of_one_request() {
        const SEEN: u32 = if cfg!(miri) { 20 } else { 2_000 };
        let stop = &AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 1..4_u8 {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let of = request(504, writer.into());
                        ended(Ended { is_longest: true, ..of }, || traced(writer));
                    }
                });
            }
            let mut seen = 0;
            while seen < SEEN {
                for it in exemplars(504, |it| it) {
                    assert_eq!(it.trace, traced(it.task as u8), "{it:?}");
                    seen += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
