//! CPU time of the process without a system call: the group of all threads that call this, plus the
//! time of the other threads.
//!
//! A thread that calls this becomes a member of one [`ThreadGroup`], so the result always includes
//! its own time. The time used *outside* of the group (by threads that never call this, by members
//! before they joined, by threads that have ended) is measured now and then: one caller takes
//! [`process_exact`], then brings all members up to date. The process's time beyond the
//! group's is outside.
//!
//! # Invariants
//!
//! 1. The process is read before the members are brought up to date. So their records include all
//!    of their time that is in the process's reading, and the difference is never more than what
//!    was truly used outside.
//! 2. `outside` only grows, and so does the group's total: a read that happens after another one,
//!    on any thread, never returns less.
//! 3. `outside` plus the group's total is at most `pending` less than the time of the process at
//!    `synced`, as [`process_exact`] returned it. Since then the process can have used at
//!    most the time of all processors. These two make the bound.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::lab::{Claim, ns_to_ticks};
use dormouse_clock::{process_cpu_ns, process_exact, stamp, thread_cpu_ns, ticks_to_ns};
use dormouse_sys::perf::is_filtered;
use dormouse_sys::process::fork::{Phase, Reset};
use dormouse_sys::sync::OnceBox;

use crate::thread_group::{GroupTime, ThreadGroup};

/// The least time between two questions to the process, in nanoseconds.
const TOLERANCE: u64 = 1_000_000;

/// The pause after a question, in multiples of the CPU time that it took: it uses at most one part
/// in 50 of a processor.
const SHARE: u64 = 50;

/// The time by which the kernel's plain answer may be behind for each processor, in nanoseconds: a
/// tick of the slowest kernels.
const TICK: u64 = 10_000_000;

struct Process {
    group: ThreadGroup,
    /// The parts of the group's total and of its records that are a parent's, from before a fork.
    inherited: AtomicU64,
    inherited_records: AtomicU64,
    outside: AtomicU64,
    /// The time in the records that was not in the total when the last question ended: a thread was
    /// between the two.
    pending: AtomicU64,
    /// The stamp at which the last question began; 0: there was none in this process.
    synced: AtomicU64,
    /// The stamp from which on the next question is due.
    next: AtomicU64,
    syncing: Claim,
}

static PROCESS: OnceBox<Process> = OnceBox::new();

static FORGET: Reset = Reset::new(Phase::Estimates, forget);

/// CPU time of the process in nanoseconds, with a bound on the time that it leaves out. It includes
/// the calling thread's own time until now; that of other threads is about a millisecond old.
///
/// The bound does not include the time of switches that were under way when the process was last
/// read (see [`process_exact`]), some microseconds for each processor.
///
/// # Cost
///
/// The cost of [`ThreadGroup::read`]: no system call. At most once a millisecond, and for at most a
/// fiftieth of the time, one of the callers lists the threads of the process and makes two system
/// calls for each. The first call of a thread makes it a member; it stays one until it ends. A
/// thread that cannot join, because it is in four groups already, counts as outside. On a thread
/// with a seccomp filter, which might end the process for the listing, the kernel's plain reading
/// is used instead, and the bound is a tick wider.
pub fn process_estimate() -> GroupTime {
    let process = process();
    if !process.group.is_member() {
        // It leaves at the thread's end.
        let _or_outside = process.group.join().map(std::mem::forget);
    }
    process.sync_if_due();
    // Pairs with the store in `sync`: a reader of the new stamp reads the new `pending` and
    // `outside`, too.
    let synced = process.synced.load(Ordering::Acquire);
    // Pairs with the store in `sync`: a reader of the new `pending` reads the new `outside`, too.
    let pending = process.pending.load(Ordering::Acquire);
    let outside = process.outside.load(Ordering::Relaxed);
    let members = process.group.cpu_ns() - process.inherited.load(Ordering::Relaxed);
    let since = ticks_to_ns(stamp().wrapping_sub(synced));
    let behind_ns = since.saturating_mul(process.group.cpus()).saturating_add(pending);
    GroupTime { ns: outside + members, behind_ns }
}

fn process() -> &'static Process {
    // Each time: in the middle of a fork of this thread it has not joined.
    FORGET.join();
    PROCESS.get_or_init(|| {
        Box::new(Process {
            group: ThreadGroup::new(),
            inherited: AtomicU64::new(0),
            inherited_records: AtomicU64::new(0),
            outside: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            next: AtomicU64::new(stamp()),
            syncing: Claim::new(),
        })
    })
}

impl Process {
    fn sync_if_due(&self) {
        let late = stamp().wrapping_sub(self.next.load(Ordering::Relaxed)).cast_signed();
        if late >= 0
            && let Some(syncing) = self.syncing.take()
        {
            let used = thread_cpu_ns();
            self.sync();
            let pause = ((thread_cpu_ns() - used) * SHARE).max(TOLERANCE);
            self.next.store(stamp().wrapping_add(ns_to_ticks(pause)), Ordering::Relaxed);
            self.syncing.give_up(syncing);
        }
    }

    #[cold]
    fn sync(&self) {
        let begin = stamp();
        let (process, of) = match exact_where_allowed() {
            Some(ns) => (ns, begin),
            // As if it had been asked a tick ago.
            None => (process_cpu_ns(), begin.wrapping_sub(ns_to_ticks(TICK))),
        };
        if !self.group.refresh_all() {
            // The time of a thread that comes or leaves would be counted as outside now and as its
            // own later. Until the next question the bound grows.
            return;
        }
        let members = self.group.counted() - self.inherited_records.load(Ordering::Relaxed);
        let total = self.group.total() - self.inherited.load(Ordering::Relaxed);
        self.outside.fetch_max(process.saturating_sub(members), Ordering::Relaxed);
        // Both pair with the loads in `process_estimate`.
        self.pending.store(members.saturating_sub(total), Ordering::Release);
        self.synced.store(of, Ordering::Release);
    }
}

/// A fork child's CPU time begins at zero, and no other thread is in its group.
fn forget() {
    if let Some(process) = PROCESS.get() {
        process.group.forget_movers();
        process.inherited.store(process.group.total(), Ordering::Relaxed);
        process.inherited_records.store(process.group.counted(), Ordering::Relaxed);
        for word in [&process.outside, &process.pending, &process.synced] {
            word.store(0, Ordering::Relaxed);
        }
        process.next.store(stamp(), Ordering::Relaxed);
        process.syncing.forget();
    }
}

/// [`process_exact`]; `None` without `/proc`, and where a seccomp filter may end the process for
/// opening it.
pub(crate) fn exact_where_allowed() -> Option<u64> {
    if is_filtered() { None } else { process_exact().ok() }
}
