//! The clock of stretches on the gap tier: CPU time from a beginning to an end, where nobody asks
//! for the time before the beginning.
//!
//! A poll that comes 200 µs after the last read begins after a gap that is too long to be a proof:
//! nobody knows how much of it the thread has run. For the thread's clock that takes a call to the
//! kernel. But the poll is charged from its beginning on, so the gap need not be known: this clock
//! *stands still* in it, and falls behind the thread's CPU time. A poll shorter than a gap then
//! takes no call at all. It catches up later, always at a beginning, so what it makes up for is
//! charged to no poll:
//!
//! | a read | the last read is a short gap ago | it is not |
//! |---|---|---|
//! | at a beginning, the kernel was asked 10 ms ago at most | runs on | stands still since the last read |
//! | at a beginning, later | runs on | asks the kernel, and takes its answer |
//! | at an end | runs on | asks the kernel; advances to its answer, but no further than by the time that has passed; the next beginning adds the rest |
//!
//! Like the thread's clock it asks after a millisecond of running on.
//!
//! # Invariants
//!
//! 1. The clock is never ahead of the thread's CPU time by more than the thread's clock would be.
//!    So a sum of stretches never exceeds the CPU time, and after each question at a beginning the
//!    two are equal.
//! 2. A stretch without a question to the kernel is exact. One with a question is never too short,
//!    and too long by at most the time for which the thread was descheduled in it, and at most what
//!    the clock was behind: the CPU time that the thread used outside of stretches since the last
//!    question.
//! 3. `turn` moves at each change of the other cells but `seen` and `last`; `is_whole` is false in
//!    the middle of one. A read that finds that a signal handler's read has moved it begins again.

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::arch::advance;
use crate::point::ticks_to_ns;
use crate::tsc;

/// Epochs after a question to the kernel in which a beginning asks nothing.
const EPOCHS: u64 = 10;

/// A side of a stretch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Begin,
    End,
}

/// The kernel's answer: the thread's CPU time when the counter stood at `tsc`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) ns: u64,
    pub(crate) tsc: u64,
}

impl Answer {
    /// The CPU time at `tsc` if the thread has run since, for an epoch at most.
    #[inline]
    fn until(self, tsc: u64, epoch: u64) -> u64 {
        let since = tsc.wrapping_sub(self.tsc);
        // No overflow: at most an epoch. Later, if a signal handler's read came in between.
        if since <= epoch { self.ns + ((since * tsc::rate()) >> 32) } else { self.ns }
    }
}

/// Ticks that the tier allows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The longest gap that is a proof.
    pub(crate) gap: u64,
    /// An epoch.
    pub(crate) epoch: u64,
}

/// The clock of one thread.
pub(crate) struct StretchClock {
    turn: Cell<u32>,
    is_whole: Cell<bool>,
    /// The clock was `ns` when the counter stood at `tsc`, and has run since.
    base: Cell<Answer>,
    /// The counter at the last question.
    asked: Cell<u64>,
    /// Nanoseconds that the next beginning adds.
    owed: Cell<u64>,
    /// The counter at the last read.
    seen: Cell<u64>,
    /// The largest value that was returned.
    last: Cell<u64>,
}

impl StretchClock {
    pub(crate) const fn new() -> Self {
        Self {
            turn: Cell::new(0),
            is_whole: Cell::new(false),
            base: Cell::new(Answer { ns: 0, tsc: 0 }),
            asked: Cell::new(0),
            owed: Cell::new(0),
            seen: Cell::new(0),
            last: Cell::new(0),
        }
    }

    /// A read; `None` from `ask` where a filter refuses the question.
    #[inline]
    pub(crate) fn read(
        &self,
        side: Side,
        limits: Limits,
        counter: impl Fn() -> u64,
        ask: impl Fn() -> Option<Answer>,
    ) -> u64 {
        loop {
            let turn = self.turn.get();
            compiler_fence(Ordering::SeqCst);
            let (is_whole, base, owed) = (self.is_whole.get(), self.base.get(), self.owed.get());
            let now = counter();
            let before = self.seen.replace(now);
            let is_short = now.wrapping_sub(before) <= limits.gap;
            compiler_fence(Ordering::SeqCst);
            if is_whole
                && is_short
                && now.wrapping_sub(base.tsc) <= limits.epoch
                && (side == Side::End || owed == 0)
                && self.turn.get() == turn
            {
                return self.give(base.until(now, limits.epoch));
            }
            // From the base to the last read the thread ran.
            let so_far = base.until(before, limits.epoch);
            let is_fresh = now.wrapping_sub(self.asked.get()) <= EPOCHS * limits.epoch;
            let (base, asked, owed) = if side == Side::Begin && is_whole && is_fresh {
                (Answer { ns: so_far + owed, tsc: now }, self.asked.get(), 0)
            } else {
                let Some(Answer { ns, tsc }) = ask() else { return self.last.get() };
                let most = match side {
                    Side::End if is_whole => so_far + ticks_to_ns(tsc.wrapping_sub(before)),
                    _ => u64::MAX,
                };
                self.seen.set(tsc);
                (Answer { ns: ns.min(most), tsc }, tsc, ns.saturating_sub(most))
            };
            if self.set(turn, base, asked, owed) {
                return self.give(base.ns);
            }
        }
    }

    /// False if a signal handler has come in between.
    fn set(&self, turn: u32, base: Answer, asked: u64, owed: u64) -> bool {
        if self.turn.replace(turn.wrapping_add(1)) != turn {
            self.is_whole.set(false);
            return false;
        }
        self.is_whole.set(false);
        compiler_fence(Ordering::SeqCst);
        self.base.set(base);
        self.asked.set(asked);
        self.owed.set(owed);
        compiler_fence(Ordering::SeqCst);
        // Else the cells are half of a handler's.
        self.is_whole.set(self.turn.get() == turn.wrapping_add(1));
        true
    }

    /// Never less than before.
    #[inline]
    fn give(&self, ns: u64) -> u64 {
        loop {
            let last = self.last.get();
            let ns = ns.max(last);
            if advance(&self.last, last, ns) {
                return ns;
            }
        }
    }

    /// The next read asks the kernel.
    pub(crate) fn forget(&self) {
        self.turn.set(self.turn.get().wrapping_add(1));
        self.is_whole.set(false);
        self.last.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { gap: 1_000, epoch: 1_000_000 };

    /// A thread whose counter has a tick for each nanosecond.
    struct Thread {
        clock: StretchClock,
        now: Cell<u64>,
        cpu: Cell<u64>,
        asked: Cell<u32>,
    }

    impl Thread {
        fn new() -> Self {
            assert!(tsc::calibrate() || tsc::rate() == 0);
            let thread = Self {
                clock: StretchClock::new(),
                now: Cell::new(1 << 40),
                cpu: Cell::new(5_000),
                asked: Cell::new(0),
            };
            thread.read(Side::Begin);
            thread
        }

        fn run(&self, ns: u64) {
            self.now.set(self.now.get() + ticks(ns));
            self.cpu.set(self.cpu.get() + ns);
        }

        fn sleep(&self, ns: u64) {
            self.now.set(self.now.get() + ticks(ns));
        }

        fn read(&self, side: Side) -> u64 {
            let limits = Limits { gap: ticks(LIMITS.gap), epoch: ticks(LIMITS.epoch) };
            let ask = || {
                self.asked.set(self.asked.get() + 1);
                Some(Answer { ns: self.cpu.get(), tsc: self.now.get() })
            };
            self.clock.read(side, limits, || self.now.get(), ask)
        }

        /// The length of a stretch by the clock.
        fn stretch(&self, work: impl FnOnce()) -> u64 {
            let begin = self.read(Side::Begin);
            work();
            self.read(Side::End) - begin
        }
    }

    fn ticks(ns: u64) -> u64 {
        crate::point::ns_to_ticks(ns)
    }

    /// Both ends are rounded to ticks, whose rate may be measured anew.
    fn near(ns: u64, expected: u64) -> bool {
        let tick = 1_000_000 / ticks(1_000_000);
        ns.abs_diff(expected) <= 3 + 2 * tick + expected / 1000
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no counter")]
    fn sparse_short_stretches_are_exact_without_questions() {
        let thread = Thread::new();
        for _ in 0..40 {
            thread.run(7_000);
            thread.sleep(200_000);
            let charged = thread.stretch(|| thread.run(400));
            assert!(near(charged, 400), "{charged}");
        }
        assert_eq!(thread.asked.get(), 1);
        // Later a beginning asks, and makes up for all that was left out.
        thread.sleep(3_000_000);
        let begin = thread.read(Side::Begin);
        assert_eq!((begin, thread.asked.get()), (thread.cpu.get(), 2));
    }

    #[test]
    fn a_long_stretch_asks_once() {
        let thread = Thread::new();
        for _ in 0..3 {
            thread.run(7_000);
            thread.sleep(200_000);
            let asked = thread.asked.get();
            let charged = thread.stretch(|| thread.run(50_000));
            assert!(near(charged, 50_000), "{charged}");
            assert_eq!(thread.asked.get(), asked + 1);
            assert!(near(thread.read(Side::Begin), thread.cpu.get()));
        }
    }

    #[test]
    fn a_descheduled_stretch_is_off_by_the_lag() {
        let thread = Thread::new();
        thread.run(7_000);
        thread.sleep(200_000);
        let charged = thread.stretch(|| {
            thread.run(20_000);
            thread.sleep(3_000_000);
            thread.run(20_000);
        });
        assert!(near(charged, 47_000), "{charged}");
        // Off by no more than it was away.
        thread.run(7_000);
        thread.sleep(200_000);
        let charged = thread.stretch(|| {
            thread.run(20_000);
            thread.sleep(2_000);
        });
        assert!(near(charged, 22_000), "{charged}");
    }

    #[test]
    fn no_sum_of_stretches_exceeds_the_cpu_time() {
        let thread = Thread::new();
        let (first, mut charged, mut state) = (thread.cpu.get(), 0, 1_u64);
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = |shift: u32, most: u64| (state >> shift) % most;
            thread.run(part(20, 30_000));
            thread.sleep(part(24, 400_000));
            charged += thread.stretch(|| {
                thread.run(part(28, 1 << part(32, 20)));
                thread.sleep(part(36, 2) * part(40, 50_000));
            });
            // The rate of the counter may be measured anew meanwhile.
            let most = thread.cpu.get() - first;
            assert!(charged <= most + most / 1000, "{charged} of {most}");
        }
        thread.sleep(20_000_000);
        assert!(thread.read(Side::Begin).abs_diff(thread.cpu.get()) <= 1_000);
    }

    #[test]
    fn a_child_begins_anew() {
        let thread = Thread::new();
        thread.run(700_000);
        thread.read(Side::End);
        thread.clock.forget();
        thread.cpu.set(100);
        assert_eq!(thread.read(Side::End), 100);
    }
}
