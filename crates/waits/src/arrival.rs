//! Arrivals of requests, and the time from there to the begin of their tasks.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_clock::ticks_to_ns;

use crate::counts::add;

/// When a request came, as stamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When the kernel had received it. `None`: that is not known, so the request may have come
    /// before it was looked at.
    pub received: Option<u64>,
    /// When a worker looked: the wake of the poll in which it was read.
    pub woken: u64,
}

/// The time from a request's arrival to the begin of its task, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedTicks {
    pub(crate) unseen: Option<u64>,
    pub(crate) behind: u64,
}

impl QueuedTicks {
    /// The queue of a request whose task begins at `now`. Counters of two processors may differ,
    /// and bytes may come after the wake of the poll in which they are read, so stamps are put in
    /// order.
    #[inline]
    pub(crate) fn new(arrival: Arrival, now: u64) -> Self {
        let Some(received) = arrival.received else {
            return Self { unseen: None, behind: now.saturating_sub(arrival.woken) };
        };
        let received = received.min(now);
        let woken = arrival.woken.clamp(received, now);
        Self { unseen: Some(woken - received), behind: now - woken }
    }

    #[inline]
    pub(crate) fn ticks(self) -> u64 {
        self.unseen.unwrap_or(0) + self.behind
    }
}

/// The requests of a group that a thread has begun, and what they had waited for. Written by the
/// thread alone.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct QueueSums {
    /// Requests of which it is not known when the kernel had received them, and the others.
    unreceived: AtomicU64,
    received: AtomicU64,
    unseen: AtomicU64,
    behind: AtomicU64,
}

impl QueueSums {
    #[inline]
    pub(crate) fn count(&self, queued: QueuedTicks) {
        add(&self.behind, queued.behind);
        if let Some(unseen) = queued.unseen {
            add(&self.unseen, unseen);
            add(&self.received, 1);
        } else {
            add(&self.unreceived, 1);
        }
    }

    pub(crate) fn add_to(&self, sum: &mut QueueTimes) {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let received = load(&self.received);
        sum.requests += received + load(&self.unreceived);
        sum.received += received;
        sum.unseen_ns += ticks_to_ns(load(&self.unseen));
        sum.behind_ns += ticks_to_ns(load(&self.behind));
    }
}

/// The time that the requests of a group waited before their tasks began, since times were first
/// taken. Requests of which no arrival is known are not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueTimes {
    /// The number of requests.
    pub requests: u64,
    /// The number of these requests of which it is known when the kernel had received them. The
    /// others have waited for longer than is known.
    pub received: u64,
    /// Time for which received requests lay in a socket that no worker had looked at, in
    /// nanoseconds.
    pub unseen_ns: u64,
    /// Time from the wake of the poll in which a request was read to the begin of its task, in
    /// nanoseconds: behind other tasks, and behind other work of the connection.
    pub behind_ns: u64,
}

impl QueueTimes {
    /// The times since `before`, an earlier reading.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            received: self.received.saturating_sub(before.received),
            unseen_ns: self.unseen_ns.saturating_sub(before.unseen_ns),
            behind_ns: self.behind_ns.saturating_sub(before.behind_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(received: Option<u64>, woken: u64) -> (Option<u64>, u64) {
        let QueuedTicks { unseen, behind } = QueuedTicks::new(Arrival { received, woken }, 100);
        (unseen, behind)
    }

    #[test]
    fn stamps_in_any_order_give_no_time_twice() {
        assert_eq!(queued(Some(10), 70), (Some(60), 30));
        assert_eq!(queued(None, 70), (None, 30));
        assert_eq!(queued(Some(80), 70), (Some(0), 20), "received after the wake");
        assert_eq!(queued(Some(110), 120), (Some(0), 0), "another processor's counter");
        assert_eq!(queued(Some(0), 0), (Some(0), 100));
    }
}
