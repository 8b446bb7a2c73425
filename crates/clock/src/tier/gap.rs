//! A short gap as proof: nobody can have run between two reads that are closer together than the shortest
//! time that a processor needs to switch to another thread and back.
//!
//! It wants nothing of the kernel but a trustworthy counter, so it is what remains in a container that
//! denies events on a kernel that keeps `rseq_cs`. A thread that reads more rarely than that asks the
//! kernel at every read. What could hide in spite of all is less than one gap: neither a switch nor a
//! processor taken away by a hypervisor, which switches as well.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity, sched_yield};

use super::Proof;
use crate::arch::rdtsc;
use crate::{kernel, moment};

/// The longest gap, in nanoseconds, however slow the machine switches.
const LONGEST: u64 = 2_000;

/// Switches that are timed, and how long that may take once there is one.
const ROUNDS: u32 = 64;
const ENOUGH: Duration = Duration::from_millis(2);
/// How often it is tried.
const TRIES: u32 = 1000;

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
}

impl Proof for Thread {
    fn test(&self) -> Result<(), String> {
        let away_and_back = thread::Builder::new()
            .name("dormouse-gap".into())
            .spawn(switch)
            .map_err(|error| format!("a switch cannot be timed without a thread: {error}"))?
            .join()
            .map_err(|_| "the thread that times a switch panicked")??;
        // Half of it: what is cheaper than this one is hardly half as dear.
        let longest = (away_and_back / 2).min(moment::from_ns(LONGEST));
        let call = (0..100).map(|_| ticks(|| _ = kernel::thread_ns())).min().unwrap_or(u64::MAX);
        if longest < call + call / 2 {
            return Err(format!(
                "asking the kernel takes {} ns, too long beside {} ns for a switch away and back",
                moment::to_ns(call),
                moment::to_ns(away_and_back)
            ));
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

    /// A signal handler's read in the middle of this leaves `last` too early at worst, which makes the next
    /// gap look longer.
    #[inline(always)]
    fn holds(&self, tsc: u64) -> bool {
        let gap = tsc.wrapping_sub(self.last.replace(tsc));
        gap <= self.longest.get()
    }

    fn detach(&self) {}
}

/// The fewest ticks in which this processor has switched to another thread and back. On a thread of its
/// own, which it may pin: two threads of one process that yield to each other are the cheapest switch there
/// is.
fn switch() -> Result<u64, String> {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    let pin = move || sched_setaffinity(None, &here).map_err(|error| format!("cannot pin a thread: {error}"));
    pin()?;
    let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let other = {
        let (turns, stop) = (Arc::clone(&turns), Arc::clone(&stop));
        // It inherits our one processor.
        thread::Builder::new().spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
                sched_yield();
            }
        })
    };
    let other = other.map_err(|error| format!("a switch cannot be timed without a thread: {error}"))?;
    let (mut fewest, mut rounds) = (u64::MAX, 0);
    let begin = Instant::now();
    for _ in 0..TRIES {
        let before = turns.load(Ordering::Relaxed);
        let took = ticks(sched_yield);
        if turns.load(Ordering::Relaxed) != before {
            fewest = fewest.min(took);
            rounds += 1;
        }
        if rounds >= ROUNDS || (rounds > 0 && begin.elapsed() > ENOUGH) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    other.join().map_err(|_| "the thread that is switched to panicked")?;
    if rounds == 0 {
        return Err("no thread could be switched to".into());
    }
    Ok(fewest)
}

fn ticks(work: impl FnOnce()) -> u64 {
    let before = rdtsc();
    work();
    rdtsc().wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_that_is_too_long_proves_nothing_and_the_next_one_counts_from_there() {
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
}
