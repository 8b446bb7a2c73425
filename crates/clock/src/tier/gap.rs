//! A short gap as proof: no other thread can have run between two reads that are closer together
//! than the shortest time that a processor needs to switch to another thread and back.
//!
//! It needs a trustworthy counter and nothing from the kernel, so it still works in a container
//! that denies events, on a kernel that keeps `rseq_cs`. A thread that reads more rarely than that
//! asks the kernel at every read. Only time below one gap could hide: neither a switch nor a
//! processor taken away by a hypervisor, which switches as well.
//!
//! The time of a switch is not measured, because that needs a second thread and the right to pin
//! both. The time of a read of the thread's clock by the kernel is measured instead: it enters the
//! kernel, locks the processor's queue and brings one account up to date. A switch there and back
//! is two entries that do at least the same, two choices of the next thread and two changes of
//! registers and stacks, each of which takes longer than an entry. So three such reads fit well
//! into it (a test times both; in the virtual machine that this was written on, seven do).

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::proof::Proof;
use crate::arch::rdtsc;
use crate::kernel;
use crate::point::{ns_to_ticks, ticks_to_ns};

/// The longest gap in questions to the kernel, and in nanoseconds, however slow the machine is.
const QUESTIONS: u64 = 3;
const LONGEST: u64 = 2_000;

/// The longest gap, in ticks; 0 before the test.
static LONGEST_TICKS: AtomicU64 = AtomicU64::new(0);

pub(super) struct Thread {
    /// The counter at the last read.
    last: Cell<u64>,
    /// The longest gap, in ticks.
    longest: Cell<u64>,
}

impl Thread {
    pub(super) const fn new() -> Self {
        Self { last: Cell::new(0), longest: Cell::new(0) }
    }

    pub(super) fn longest(&self) -> u64 {
        self.longest.get()
    }
}

impl Proof for Thread {
    fn test(&self) -> Result<(), String> {
        let question = (0..100).map(|_| ticks(|| _ = kernel::thread_ns())).min().unwrap_or(u64::MAX);
        let longest = question.saturating_mul(QUESTIONS).min(ns_to_ticks(LONGEST));
        // A resync's bracket must be a short gap too.
        if longest < question + question / 2 {
            let question = ticks_to_ns(question);
            return Err(format!("asking the kernel takes {question} ns, as long as a switch elsewhere"));
        }
        LONGEST_TICKS.store(longest, Ordering::Relaxed);
        Ok(())
    }

    fn attach(&self) -> Result<(), &'static str> {
        self.longest.set(LONGEST_TICKS.load(Ordering::Relaxed));
        Ok(())
    }

    fn arm(&self) -> bool {
        self.last.set(rdtsc());
        true
    }

    /// A signal handler's read in the middle of this leaves `last` too early at worst, which makes
    /// the next gap look longer.
    #[inline(always)]
    fn holds(&self, tsc: u64) -> bool {
        let gap = tsc.wrapping_sub(self.last.replace(tsc));
        gap <= self.longest.get()
    }
}

fn ticks(work: impl FnOnce()) -> u64 {
    let before = rdtsc();
    work();
    rdtsc().wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity, sched_yield};

    use super::*;

    #[test]
    fn a_gap_that_is_too_long_proves_nothing() {
        let thread = Thread::new();
        thread.longest.set(1000);
        thread.arm();
        let start = thread.last.get();
        assert!(thread.holds(start + 900) && thread.holds(start + 1800));
        assert!(!thread.holds(start + 2900));
        assert!(thread.holds(start + 3000));
        // A counter that went back.
        assert!(!thread.holds(start));
    }

    /// The fewest ticks in which a processor switches to another thread and back: two threads of
    /// one process that yield to each other are the cheapest switch there is.
    fn switch() -> Option<u64> {
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        sched_setaffinity(None, &here).ok()?;
        let (turns, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            // It inherits our one processor.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    sched_yield();
                }
            });
            let there_and_back = || {
                let before = turns.load(Ordering::Relaxed);
                let took = ticks(sched_yield);
                (turns.load(Ordering::Relaxed) != before).then_some(took)
            };
            let fewest = (0..2000).filter_map(|_| there_and_back()).min();
            stop.store(true, Ordering::Relaxed);
            fewest
        })
    }

    #[test]
    fn the_longest_gap_is_shorter_than_a_switch() {
        let there_and_back = thread::spawn(switch).join().unwrap();
        let Some(there_and_back) = there_and_back else {
            return dormouse_testkit::skip("no switch was seen");
        };
        match crate::tsc::test().and_then(|()| Thread::new().test()) {
            Ok(()) => {
                let longest = LONGEST_TICKS.load(Ordering::Relaxed);
                assert!(longest < there_and_back, "{longest} ticks of {there_and_back}");
            }
            Err(reason) => dormouse_testkit::skip(reason),
        }
    }
}
