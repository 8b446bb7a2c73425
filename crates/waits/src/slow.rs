//! Requests that took long, for a reader that waits for such requests.
//!
//! A request that ends compares its age with one word. The few that took longer go into a short
//! list, from which one reader takes them; one that finds no room is counted. The reader raises the
//! thresholds of groups whose requests it does not need, so that they leave room for others.
//!
//! | an entry is | who does what | next |
//! |---|---|---|
//! | free | an ending request takes it | being written |
//! | being written | that request has written it | full |
//! | full | the reader has read it | free |
//!
//! # Async-signal-safety
//!
//! All functions. A handler that interrupts its thread in the middle of an entry takes another one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use dormouse_clock::{point, ticks_to_ns};

use crate::rows::GROUPS;
use crate::trace_context::TraceContext;

/// Nobody waits for any.
const NONE: u64 = u64::MAX;

/// Entries: more than requests of one moment.
const ENTRIES: usize = 64;

const FREE: u32 = 0;
const WRITTEN: u32 = 1;
const FULL: u32 = 2;

/// In ticks of the stamp. Alone in its lines: each request that ends reads it.
static THRESHOLD: Alone = Alone(AtomicU64::new(NONE));
/// By group: the same, where it is higher. Read only by requests over that one.
static RAISED: [AtomicU64; GROUPS] = [const { AtomicU64::new(0) }; GROUPS];
static MISSED: AtomicU64 = AtomicU64::new(0);
static LIST: [Entry; ENTRIES] = [const { Entry::new() }; ENTRIES];

#[repr(align(128))]
struct Alone(AtomicU64);

struct Entry {
    state: AtomicU32,
    group: AtomicU32,
    task: AtomicU64,
    ticks: AtomicU64,
    trace: [AtomicU64; 3],
    is_sampled: AtomicBool,
}

/// A request that took long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlowRequest {
    /// The number of the request's task.
    pub task: u64,
    /// The number of the task's group.
    pub group: u32,
    /// The request's latency, in nanoseconds.
    pub age_ns: u64,
    /// The request's trace, if that is known.
    pub trace: Option<TraceContext>,
}

impl Entry {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            group: AtomicU32::new(0),
            task: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            trace: [const { AtomicU64::new(0) }; 3],
            is_sampled: AtomicBool::new(false),
        }
    }
}

/// From now on records requests that take longer than `threshold_ns` nanoseconds; `None` stops it.
///
/// Only requests whose times are taken ([`Waiting`](crate::Waiting)) are recorded.
pub fn note_slow(threshold_ns: Option<u64>) {
    THRESHOLD.0.store(threshold_ns.map_or(NONE, ticks), Ordering::Relaxed);
    for raised in &RAISED {
        raised.store(0, Ordering::Relaxed);
    }
}

/// Until the next [`note_slow`], requests of `group` are recorded only if they take longer than
/// `threshold_ns` nanoseconds.
pub fn raise_slow(group: u32, threshold_ns: u64) {
    if let Some(raised) = raised(group) {
        raised.store(ticks(threshold_ns), Ordering::Relaxed);
    }
}

/// Groups that share a row have none.
fn raised(group: u32) -> Option<&'static AtomicU64> {
    RAISED.get(group as usize).filter(|_| group != 0)
}

fn ticks(ns: u64) -> u64 {
    (ns as f64 * point().hz / 1e9) as u64
}

/// Calls `each` for the requests recorded since the last call. Returns how many found no room.
///
/// Only one thread may call it at a time.
pub fn take_slow(mut each: impl FnMut(SlowRequest)) -> u64 {
    for entry in &LIST {
        // Acquire: pairs with the last store in `note`.
        if entry.state.load(Ordering::Acquire) != FULL {
            continue;
        }
        let request = SlowRequest {
            task: entry.task.load(Ordering::Relaxed),
            group: entry.group.load(Ordering::Relaxed),
            age_ns: ticks_to_ns(entry.ticks.load(Ordering::Relaxed)),
            trace: TraceContext::from_words(
                entry.trace.each_ref().map(|word| word.load(Ordering::Relaxed)),
                entry.is_sampled.load(Ordering::Relaxed),
            ),
        };
        // Release: pairs with the exchange in `note`, which is after these loads.
        entry.state.store(FREE, Ordering::Release);
        each(request);
    }
    MISSED.swap(0, Ordering::Relaxed)
}

/// A forked child notes nothing, and has nothing of its parent's.
pub(crate) fn forget() {
    THRESHOLD.0.store(NONE, Ordering::Relaxed);
    for entry in &LIST {
        entry.state.store(FREE, Ordering::Relaxed);
    }
}

/// A request ends at this age, in ticks.
#[inline]
pub(crate) fn ends(task: u64, group: u32, ticks: u64, trace: impl Fn() -> Option<TraceContext>) {
    if ticks > THRESHOLD.0.load(Ordering::Relaxed) {
        note(task, group, ticks, trace());
    }
}

#[cold]
fn note(task: u64, group: u32, ticks: u64, trace: Option<TraceContext>) {
    if raised(group).is_some_and(|raised| ticks <= raised.load(Ordering::Relaxed)) {
        return;
    }
    // Requests that end together begin to look in different places.
    let first = task as usize / 2 % ENTRIES;
    for at in (first..ENTRIES).chain(0..first) {
        let entry = &LIST[at];
        // A reading first: while all are full, requests of all processors come here.
        if entry.state.load(Ordering::Relaxed) != FREE {
            continue;
        }
        // Acquire: pairs with the store in `take_slow`.
        if entry.state.compare_exchange(FREE, WRITTEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            entry.task.store(task, Ordering::Relaxed);
            entry.group.store(group, Ordering::Relaxed);
            entry.ticks.store(ticks, Ordering::Relaxed);
            for (to, from) in entry.trace.iter().zip(trace.map_or([0; 3], TraceContext::words)) {
                to.store(from, Ordering::Relaxed);
            }
            entry.is_sampled.store(trace.is_some_and(TraceContext::is_sampled), Ordering::Relaxed);
            // Release: who finds it full finds the rest.
            entry.state.store(FULL, Ordering::Release);
            return;
        }
    }
    MISSED.fetch_add(1, Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use dormouse_testkit::in_child;

    use super::*;

    fn taken() -> (Vec<SlowRequest>, u64) {
        let mut all = Vec::new();
        let missed = take_slow(|request| all.push(request));
        (all, missed)
    }

    #[test]
    fn slow_requests_are_noted_once() {
        // Requests of other tests that take long are not among them.
        in_child(|| {
            note_slow(Some(1_000_000));
            let millisecond = (point().hz / 1e3) as u64;
            let trace = TraceContext::new([4; 16], [2; 8]).map(|trace| trace.sampled(false));
            ends(1, 7, millisecond / 2, || trace);
            assert_eq!(taken(), (vec![], 0));
            ends(3, 7, 2 * millisecond, || trace);
            let (all, missed) = taken();
            assert_eq!((all.len(), missed), (1, 0));
            assert_eq!((all[0].task, all[0].group, (all[0].age_ns + 50_000) / 100_000), (3, 7, 20));
            assert_eq!(all[0].trace, trace);
            assert_eq!(taken(), (vec![], 0));
            // More than there is room for, of several threads.
            thread::scope(|scope| {
                for n in 0..4 {
                    scope.spawn(move || {
                        (0..ENTRIES as u64).for_each(|at| ends(at * 8 + n, 7, u64::MAX - 1, || None));
                    });
                }
            });
            let (all, missed) = taken();
            assert_eq!((all.len(), missed), (ENTRIES, 3 * ENTRIES as u64));
            // Of groups whose threshold was raised nothing takes room.
            raise_slow(7, 3_000_000);
            (0..ENTRIES as u64).for_each(|at| ends(at * 2 + 1, 7, 2 * millisecond, || None));
            ends(3, 8, 2 * millisecond, || None);
            ends(5, 7, 4 * millisecond, || None);
            let (all, missed) = taken();
            let mut groups: Vec<u32> = all.iter().map(|request| request.group).collect();
            groups.sort_unstable();
            assert_eq!((groups, missed), (vec![7, 8], 0));
            note_slow(Some(1_000_000));
            ends(3, 7, 2 * millisecond, || None);
            assert_eq!(taken().0.len(), 1);
            note_slow(None);
            ends(5, 7, u64::MAX - 1, || None);
            assert_eq!(taken(), (vec![], 0));
        });
    }
}
