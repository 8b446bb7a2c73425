//! The histograms of one thread for one group.
//!
//! They take 34 KB of addresses, so not every thread has its own for every group: beyond [`most`] a
//! thread counts for the group in those of row 0. Sums have a line of their own
//! ([`Row`](crate::rows::Row)), and are not affected.
//!
//! The kernel gives a page when it is first written to. So the buckets of all times stand side by
//! side, by powers of two: times from 1 µs to 100 ms take four of the nine pages.
//!
//! # Invariants
//!
//! 1. Only the thread that has the block writes them.
//! 2. A bucket that has a count has its bit set in `used`, for good: a reader skips the others.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;
use dormouse_sys::prefetch;
use dormouse_sys::sync::Sequence;

use crate::buckets::{self, BUCKETS, Histogram, OF_POWER};
use crate::memory::size_of_mapping;

/// The most that a process has beside those of the rows 0: 192 MB of addresses.
pub(crate) fn most() -> u64 {
    (192 << 20) / size_of_mapping::<Counts>(1) as u64
}

/// The times that are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Time {
    /// In polls.
    Poll = 0,
    /// From a wake to the poll that follows.
    Runnable = 1,
    /// From the end of a poll to the wake that follows.
    Await = 2,
    /// From the head of a response to the last frame of its body.
    Body = 3,
    /// From one frame of a stream to the next.
    Gap = 4,
    /// From the beginning of a request to its answer. The last one: see [`Power`].
    Request = 5,
}

/// How many of them there are.
pub(crate) const TIMES: usize = 6;

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Counts {
    sequence: Sequence,
    sum_ns: [AtomicU64; TIMES],
    max_ns: [AtomicU64; TIMES],
    max_task: [AtomicU64; TIMES],
    /// The buckets that hold any, by bits.
    used: [[AtomicU64; BUCKETS.div_ceil(64)]; TIMES],
    /// The zero bucket is the last one of the first block, and the only one there.
    powers: [Power; (ZERO + BUCKETS).div_ceil(OF_POWER)],
}

/// Where the zero bucket is, counted in buckets: all others begin with a block.
const ZERO: usize = OF_POWER - 1;

/// The buckets of a power of two.
#[derive(Debug)]
#[repr(C, align(64))]
struct Power {
    counts: [[AtomicU64; OF_POWER]; TIMES - 1],
    requests: [Requests; OF_POWER],
}

/// The requests of a bucket: both words in a line of the cache.
#[derive(Debug)]
#[repr(C, align(16))]
struct Requests {
    count: AtomicU64,
    /// The task of the last one.
    task: AtomicU64,
}

/// Adds, for the only writer of `to`.
#[inline]
pub(crate) fn add(to: &AtomicU64, more: u64) {
    // Release: who sees it sees what the thread has written before.
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
}

impl Counts {
    #[inline]
    fn bucket(&self, time: Time, bucket: usize) -> &AtomicU64 {
        match time {
            Time::Request => &self.requests(bucket).count,
            _ => &self.powers[(ZERO + bucket) / OF_POWER].counts[time as usize][(ZERO + bucket) % OF_POWER],
        }
    }

    #[inline]
    fn requests(&self, bucket: usize) -> &Requests {
        &self.powers[(ZERO + bucket) / OF_POWER].requests[(ZERO + bucket) % OF_POWER]
    }

    /// Counts a time of a task that is over. Whether it is the longest so far.
    #[inline]
    pub(crate) fn count(&self, time: Time, ticks: u64, task: u64) -> bool {
        let ns = ticks_to_ns(ticks);
        self.count_in(buckets::place(ns), time, ns, task)
    }

    /// Does what [`Counts::count`] does, for a time of which the bucket is known.
    #[inline]
    pub(crate) fn count_in(&self, bucket: usize, time: Time, ns: u64, task: u64) -> bool {
        let at = time as usize;
        let counted = self.bucket(time, bucket);
        if counted.load(Ordering::Relaxed) == 0 {
            self.begin(at, bucket);
        }
        add(counted, 1);
        add(&self.sum_ns[at], ns);
        if time == Time::Request {
            self.requests(bucket).task.store(task, Ordering::Relaxed);
        }
        let is_longest = ns > self.max_ns[at].load(Ordering::Relaxed);
        if is_longest {
            self.exceed(at, ns, task);
        }
        is_longest
    }

    #[cold]
    fn begin(&self, at: usize, bucket: usize) {
        // By an exchange: a handler of the thread may set another bit meanwhile.
        self.used[at][bucket / 64].fetch_or(1 << (bucket % 64), Ordering::Relaxed);
    }

    #[cold]
    fn exceed(&self, at: usize, ns: u64, task: u64) {
        self.sequence.write(|| {
            self.max_ns[at].store(ns, Ordering::Relaxed);
            self.max_task[at].store(task, Ordering::Relaxed);
        });
    }

    /// Has fetched what a reader looks at first.
    pub(crate) fn fetch(&self) {
        prefetch(&self.sequence);
        self.sum_ns.iter().for_each(prefetch);
        self.used.iter().for_each(prefetch);
    }

    /// Has fetched the buckets of these times that hold any; after [`Counts::fetch`].
    pub(crate) fn fetch_buckets(&self, times: &[Time]) {
        for &time in times {
            for (word, used) in self.used[time as usize].iter().enumerate() {
                for_each_bit(used.load(Ordering::Relaxed), |bit| {
                    prefetch(self.bucket(time, 64 * word + bit));
                });
            }
        }
    }

    /// Adds them to a histogram. Whether it holds any then.
    pub(crate) fn add_to(&self, time: Time, histogram: &mut Histogram) -> bool {
        let at = time as usize;
        let mut are_any = false;
        for (word, used) in self.used[at].iter().enumerate() {
            let used = used.load(Ordering::Relaxed);
            are_any |= used != 0;
            for_each_bit(used, |bit| {
                let bucket = 64 * word + bit;
                histogram.buckets[bucket] += self.bucket(time, bucket).load(Ordering::Relaxed);
                if time == Time::Request {
                    let task = self.requests(bucket).task.load(Ordering::Relaxed);
                    // Of those of several threads it is one.
                    histogram.tasks[bucket] = histogram.tasks[bucket].max(task);
                }
            });
        }
        histogram.sum_ns = histogram.sum_ns.wrapping_add(self.sum_ns[at].load(Ordering::Relaxed));
        let max = || (self.max_ns[at].load(Ordering::Relaxed), self.max_task[at].load(Ordering::Relaxed));
        let ((ns, task), _) = self.sequence.read(max);
        if ns > histogram.max_ns {
            (histogram.max_ns, histogram.max_task) = (ns, task);
        }
        // The sum of a time may be seen, and its bucket not yet.
        are_any || histogram.sum_ns != 0 || histogram.max_ns != 0
    }
}

/// Calls `of` with the number of each bit that is set.
fn for_each_bit(mut word: u64, mut of: impl FnMut(usize)) {
    while word != 0 {
        of(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}
