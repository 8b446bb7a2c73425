//! Requests that ended without an answer, and their ages.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;

use crate::counts::add;

/// The requests of a group that ended on a thread without an answer. Written by the thread alone.
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct UnansweredSums {
    requests: AtomicU64,
    ticks: AtomicU64,
}

impl UnansweredSums {
    pub(crate) fn count(&self, ticks: u64) {
        add(&self.ticks, ticks);
        add(&self.requests, 1);
    }

    pub(crate) fn add_to(&self, sum: &mut Unanswered) {
        sum.requests += self.requests.load(Ordering::Relaxed);
        sum.age_ns += ticks_to_ns(self.ticks.load(Ordering::Relaxed));
    }
}

/// The requests of a group that ended without an answer since times were first taken: they were
/// cancelled, or they panicked. The histogram of latencies does not contain them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unanswered {
    /// The number of requests.
    pub requests: u64,
    /// The sum of their ages when they ended, in nanoseconds.
    pub age_ns: u64,
}

impl Unanswered {
    /// The requests since `before`, an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            age_ns: self.age_ns.saturating_sub(before.age_ns),
        }
    }
}
