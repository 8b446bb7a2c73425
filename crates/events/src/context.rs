//! What was counted for one group of tasks.
//!
//! # Invariants
//!
//! 1. A thread adds to the shard of its start number; shards only grow.
//! 2. A read is the committed sum plus what running threads have not committed yet, and never smaller than an
//!    earlier read.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_sys::thread;

const SHARDS: usize = 8;

/// Counters of one thread's hash class, on a cache line of their own (two, because lines are fetched in
/// pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    cpu_ns: AtomicU64,
    entries: AtomicU64,
}

/// The counters of one group of tasks.
#[derive(Debug)]
pub struct Context {
    id: u32,
    /// The largest CPU time that a read has given.
    reported: AtomicU64,
    shards: [Shard; SHARDS],
}

impl Context {
    /// A context; `id` is what a thread's block shows while one of its tasks is current, and must not be 0.
    pub fn new(id: u32) -> Self {
        Self { id, reported: AtomicU64::new(0), shards: Default::default() }
    }

    /// The number that it was made with.
    pub fn id(&self) -> u32 {
        self.id
    }

    fn shard(&self, start: u64) -> &Shard {
        &self.shards[start as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn charge(&self, start: u64, cpu_ns: u64) {
        // Pairs with the load in `committed`: who sees the charge sees that a switch is under way.
        self.shard(start).cpu_ns.fetch_add(cpu_ns, Ordering::Release);
    }

    #[inline]
    pub(crate) fn count_entry(&self, start: u64) {
        self.shard(start).entries.fetch_add(1, Ordering::Relaxed);
    }

    /// How often one of its tasks became current.
    pub fn entries(&self) -> u64 {
        self.shards.iter().map(|s| s.entries.load(Ordering::Relaxed)).sum()
    }

    fn committed(&self) -> u64 {
        // Pairs with the addition in `charge`.
        self.shards.iter().map(|s| s.cpu_ns.load(Ordering::Acquire)).sum()
    }

    /// CPU time of its tasks, in nanoseconds, without that of contexts nested in them; what threads spend on
    /// them at this moment is included.
    ///
    /// # Cost
    ///
    /// A look at every thread's block, and a system call for each thread that runs one of its tasks now.
    pub fn cpu_ns(&self) -> u64 {
        let mut sum = self.committed();
        // What a thread commits while we look at it could be missed, or counted twice; then we look again.
        // When it never holds still, the committed part alone is behind by less than the time between two
        // commits.
        for _ in 0..8 {
            let pending = self.pending();
            let again = self.committed();
            if again == sum {
                sum += pending;
                break;
            }
            sum = again;
        }
        self.reported.fetch_max(sum, Ordering::Relaxed).max(sum)
    }

    /// What running threads have not committed yet.
    fn pending(&self) -> u64 {
        thread::live()
            .filter_map(|block| {
                let (current, stamp) = block.read_current()?;
                if current.group != self.id {
                    return None;
                }
                let now = dormouse_clock::thread_cpu_ns_of(block.tid())?;
                // The owner's clock may be a little ahead of the kernel's.
                block.is_still(stamp).then(|| now.saturating_sub(current.since))
            })
            .sum()
    }
}
