//! The histograms of one thread for one group.
//!
//! They have some 6 KB, so not every thread has some for every group: beyond [`MOST`] a thread
//! counts for the group in those of row 0. Sums have a line of their own
//! ([`Row`](crate::rows::Row)), and are not concerned.
//!
//! # Invariants
//!
//! 1. The thread that has the block alone writes them.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;

use crate::buckets::{self, BUCKETS, Histogram};
use crate::sequence::Sequence;

/// So many a process has beside those of the rows 0: 64 MB.
pub(crate) const MOST: u64 = (64 << 20) / (size_of::<Counts>().next_multiple_of(4096)) as u64;

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
    /// From the begin of a request to its end.
    Request = 3,
}

/// How many of them there are.
const TIMES: usize = 4;

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Counts {
    sequence: Sequence,
    sum_ns: [AtomicU64; TIMES],
    max_ns: [AtomicU64; TIMES],
    max_task: [AtomicU64; TIMES],
    buckets: [[AtomicU64; BUCKETS]; TIMES],
    /// The last request of each bucket.
    requests: [AtomicU64; BUCKETS],
}

/// Adds, for the only writer of `to`.
#[inline]
pub(crate) fn add(to: &AtomicU64, more: u64) {
    // Release: who sees it sees what the thread has written before.
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
}

impl Counts {
    /// Counts a time of a task that is over. Whether it is the longest so far.
    #[inline]
    pub(crate) fn count(&self, time: Time, ticks: u64, task: u64) -> bool {
        let (ns, at) = (ticks_to_ns(ticks), time as usize);
        let bucket = buckets::place(ns);
        add(&self.buckets[at][bucket], 1);
        add(&self.sum_ns[at], ns);
        if time == Time::Request {
            self.requests[bucket].store(task, Ordering::Relaxed);
        }
        let is_longest = ns > self.max_ns[at].load(Ordering::Relaxed);
        if is_longest {
            self.exceed(at, ns, task);
        }
        is_longest
    }

    #[cold]
    fn exceed(&self, at: usize, ns: u64, task: u64) {
        self.sequence.write(|| {
            self.max_ns[at].store(ns, Ordering::Relaxed);
            self.max_task[at].store(task, Ordering::Relaxed);
        });
    }

    /// Adds them to a histogram.
    pub(crate) fn add_to(&self, time: Time, histogram: &mut Histogram) {
        let at = time as usize;
        for (to, from) in histogram.buckets.iter_mut().zip(&self.buckets[at]) {
            *to += from.load(Ordering::Relaxed);
        }
        histogram.sum_ns = histogram.sum_ns.wrapping_add(self.sum_ns[at].load(Ordering::Relaxed));
        let max = || (self.max_ns[at].load(Ordering::Relaxed), self.max_task[at].load(Ordering::Relaxed));
        let ((ns, task), _) = self.sequence.read(max);
        if ns > histogram.max_ns {
            (histogram.max_ns, histogram.max_task) = (ns, task);
        }
        if time == Time::Request {
            for (to, from) in histogram.tasks.iter_mut().zip(&self.requests) {
                // Of those of several threads it is one.
                *to = (*to).max(from.load(Ordering::Relaxed));
            }
        }
    }
}
