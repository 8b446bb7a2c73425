//! CPU time of the process without a system call: the group of all threads that ask, and what the others use.
//!
//! Who asks becomes a member of one [`ThreadGroup`], so its own time is always in the answer. What was used
//! *outside* of the group (by threads that never ask, by members before they came, by threads that have
//! ended) is known from time to time: one reader takes [`process_exact`], then brings all members up to
//! date, and what the process has more than the group is outside.
//!
//! # Invariants
//!
//! 1. The process is asked before the members are brought up to date. So their records hold all that the
//!    process's answer holds of them, and the difference is never more than was truly used outside.
//! 2. `outside` only grows, and so does the group's total: a read that happens after another one, on any
//!    thread, is never smaller.
//! 3. `outside` and the group's total together are no more than `pending` below what the process had used at
//!    `synced`. It cannot have used more since than all processors had to give: the two are the bound.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::group::{GroupTime, ThreadGroup};
use crate::kernel::process_cpu_ns;
use crate::moment;
use crate::process::process_exact;
use crate::thread::thread_cpu_ns;

/// How old the last question to the process may be, in nanoseconds, at least.
const TOLERANCE: u64 = 1_000_000;

/// How many times as long as it takes: it uses no more than one part in so many of one processor.
const SHARE: u64 = 50;

/// How far the kernel's plain answer may be behind for each processor, in nanoseconds: a tick of the slowest
/// kernels.
const TICK: u64 = 10_000_000;

struct Process {
    group: ThreadGroup,
    /// What of the group's total, and of its records, is a parent's, from before a fork.
    inherited: AtomicU64,
    inherited_records: AtomicU64,
    outside: AtomicU64,
    /// What was in the records and not in the total when the last question ended: somebody was between the
    /// two.
    pending: AtomicU64,
    /// The moment when the last question began, 0: there was none in this process.
    synced: AtomicU64,
    /// The moment from which on the next one is due.
    next: AtomicU64,
    syncing: AtomicBool,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

/// CPU time of the process, in nanoseconds, with a bound on what it leaves out. The calling thread's own is
/// in it until now; that of others is about a millisecond old.
///
/// # Cost
///
/// That of [`ThreadGroup::read`]: no system call. At most once a millisecond, and for at most a fiftieth of
/// the time, one of the callers lists the threads of the process and makes two system calls for each. The
/// first call of a thread makes it a member; it stays one until it ends. A thread that cannot be one,
/// because it is in four groups already, is counted with those who do not ask.
pub fn process_estimate() -> GroupTime {
    let process = process();
    if !process.group.is_member() {
        // It leaves at the thread's end.
        let _or_outside = process.group.join().map(std::mem::forget);
    }
    process.sync_if_due();
    // In this order; each pairs with its store in `sync`: who sees one sees what was stored before it.
    let synced = process.synced.load(Ordering::Acquire);
    let pending = process.pending.load(Ordering::Acquire);
    let outside = process.outside.load(Ordering::Relaxed);
    let members = process.group.cpu_ns() - process.inherited.load(Ordering::Relaxed);
    let since = moment::to_ns(moment::now().wrapping_sub(synced));
    let behind_ns = since.saturating_mul(process.group.cpus()).saturating_add(pending);
    GroupTime { ns: outside + members, behind_ns }
}

fn process() -> &'static Process {
    loop {
        if let Some(process) = PROCESS.get() {
            return process;
        }
        dormouse_sys::thread::on_fork_child(forget);
        // Made before it is set: a fork in the middle leaves no lock behind.
        let _first = PROCESS.set(Process {
            group: ThreadGroup::new(),
            inherited: AtomicU64::new(0),
            inherited_records: AtomicU64::new(0),
            outside: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            next: AtomicU64::new(moment::now()),
            syncing: AtomicBool::new(false),
        });
    }
}

impl Process {
    fn sync_if_due(&self) {
        let late = moment::now().wrapping_sub(self.next.load(Ordering::Relaxed)).cast_signed();
        if late >= 0 && !self.syncing.swap(true, Ordering::Acquire) {
            let used = thread_cpu_ns();
            self.sync();
            let pause = ((thread_cpu_ns() - used) * SHARE).max(TOLERANCE);
            self.next.store(moment::now().wrapping_add(moment::from_ns(pause)), Ordering::Relaxed);
            // Pairs with the exchange above: one question after the other.
            self.syncing.store(false, Ordering::Release);
        }
    }

    #[cold]
    fn sync(&self) {
        let begin = moment::now();
        let (process, of) = match process_exact() {
            Ok(ns) => (ns, begin),
            // Without /proc; as if it had been asked a tick ago.
            Err(_) => (process_cpu_ns(), begin.wrapping_sub(moment::from_ns(TICK))),
        };
        if !self.group.refresh_all() {
            // What a thread that comes or goes has used would be counted as outside now and as its own
            // later. Until the next question the bound grows.
            return;
        }
        let members = self.group.counted() - self.inherited_records.load(Ordering::Relaxed);
        let total = self.group.total() - self.inherited.load(Ordering::Relaxed);
        self.outside.fetch_max(process.saturating_sub(members), Ordering::Relaxed);
        self.pending.store(members.saturating_sub(total), Ordering::Release);
        self.synced.store(of, Ordering::Release);
    }
}

/// A fork child's CPU time begins at zero, and nobody else is in its group.
fn forget() {
    if let Some(process) = PROCESS.get() {
        process.group.forget_movers();
        process.inherited.store(process.group.total(), Ordering::Relaxed);
        process.inherited_records.store(process.group.counted(), Ordering::Relaxed);
        for word in [&process.outside, &process.pending, &process.synced] {
            word.store(0, Ordering::Relaxed);
        }
        process.next.store(moment::now(), Ordering::Relaxed);
        process.syncing.store(false, Ordering::Relaxed);
    }
}
