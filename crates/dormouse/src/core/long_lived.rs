//! Tasks that live for long: connections, streams, upgraded connections. They are no requests: how
//! long they live is no latency, and how they end no outcome.
//!
//! Their number and the sum of their beginnings are one word, so a reader finds both of one moment:
//! `n` tasks have lived for `n * now - beginnings`, whichever they are.
//!
//! # Limits
//!
//! A group has fewer than four million of them at a time, which have lived for 69,000 years
//! together at most.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dormouse_sys::clock;

/// The low bits are the number of tasks; above them is the sum of their beginnings, which wraps.
const TASKS: u32 = 22;
const ONE: u64 = 1;

/// When a task began to live for long, in seconds of the monotonic clock, and one: half a word, for
/// which a task has room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LongSince(NonZeroU32);

impl LongSince {
    pub(crate) fn now() -> Self {
        Self::at(clock::monotonic_ns() / 1_000_000_000)
    }

    pub(crate) fn at(seconds: u64) -> Self {
        Self(NonZeroU32::MIN.saturating_add(u32::try_from(seconds).unwrap_or(u32::MAX)))
    }

    fn seconds(self) -> u64 {
        self.0.get().into()
    }

    /// Whether the clock has shown `seconds` more by `now`: they have passed, except for up to one.
    #[cfg(any(feature = "actix", feature = "tower"))]
    pub(crate) fn is_seconds_before(self, seconds: u64, now: Self) -> bool {
        now.seconds() >= self.seconds() + seconds
    }

    /// The word of one such task.
    fn word(self) -> u64 {
        (self.seconds() << TASKS).wrapping_add(ONE)
    }
}

/// How long the requests of a group live, where the service has said so.
#[derive(Debug)]
pub(crate) struct Lives(AtomicU8);

/// The service's word for a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    Nothing,
    Long,
    NotLong,
}

impl Lives {
    pub(crate) const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    pub(crate) fn say(&self, is_long: bool) {
        self.0.store(if is_long { 1 } else { 2 }, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn said(&self) -> Said {
        match self.0.load(Ordering::Relaxed) {
            0 => Said::Nothing,
            1 => Said::Long,
            _ => Said::NotLong,
        }
    }
}

/// The tasks of a group that live for long.
#[derive(Debug)]
pub(crate) struct LongLived(AtomicU64);

impl LongLived {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// One more lives from now on.
    pub(crate) fn begin(&self, now: LongSince) -> LongSince {
        self.0.fetch_add(now.word(), Ordering::Relaxed);
        now
    }

    pub(crate) fn end(&self, since: LongSince) {
        self.0.fetch_sub(since.word(), Ordering::Relaxed);
    }

    /// How many live, and the sum of their ages in seconds.
    pub(crate) fn read(&self, now: LongSince) -> (u64, u64) {
        let word = self.0.load(Ordering::Relaxed);
        let tasks = word & ((ONE << TASKS) - 1);
        let ages = (tasks.wrapping_mul(now.seconds()) << TASKS).wrapping_sub(word & !((ONE << TASKS) - 1));
        // Negative: a task has begun since `now`.
        (tasks, (ages.cast_signed().max(0) >> TASKS).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_those_of_the_living() {
        let tasks = LongLived::new();
        assert_eq!(tasks.read(LongSince::at(7)), (0, 0));
        let [first, second, third] = [1_000, 1_003, 1_010].map(|at| tasks.begin(LongSince::at(at)));
        assert_eq!(tasks.read(LongSince::at(1_010)), (3, 17));
        tasks.end(second);
        assert_eq!(tasks.read(LongSince::at(1_020)), (2, 30));
        assert_eq!(tasks.read(LongSince::at(1_004)), (2, 0), "one begins later");
        tasks.end(third);
        tasks.end(first);
        assert_eq!(tasks.read(LongSince::at(2_000)), (0, 0));
    }

    #[test]
    fn the_sum_of_beginnings_may_wrap() {
        let (tasks, uptime) = (LongLived::new(), 1 << 31);
        let all: Vec<_> = (0..4_000).map(|n| tasks.begin(LongSince::at(uptime + n))).collect();
        assert_eq!(tasks.read(LongSince::at(uptime + 4_000)), (4_000, 8_002_000));
        for since in all {
            tasks.end(since);
        }
        assert_eq!(tasks.read(LongSince::at(uptime + 4_000)), (0, 0));
    }
}
