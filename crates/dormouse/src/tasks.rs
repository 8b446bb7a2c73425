//! The numbers of tasks, and how many of them a group has.
//!
//! All threads that spawn would write the same words: of two, each takes eight times as long for a task as one alone. So
//! each thread takes numbers in blocks, and a group counts in shards, chosen by the block: threads that spawn at the same
//! time have different ones, mostly.
//!
//! # Invariants
//!
//! 1. A number is given once in a process. The first of each block is given to nobody: a thread that stands there
//!    has none left.
//! 2. A task is counted as finished in the shard where it was counted as started, and after that.
//!
//! # Async-signal-safety
//!
//! A handler may start and end tasks. One that interrupts its thread where that takes a number has a block for its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// How many numbers a thread takes at once.
const BLOCK: u64 = 1024;

const SHARDS: usize = 8;

static NEXT_BLOCK: AtomicU64 = AtomicU64::new(0);

struct Numbers {
    next: Cell<u64>,
    /// The thread is taking one: a handler finds it so.
    taking: Cell<bool>,
}

thread_local! {
    static NUMBERS: Numbers = const { Numbers { next: Cell::new(0), taking: Cell::new(false) } };
}

/// A number that no task of the process has had; not 0.
#[inline]
pub(crate) fn number() -> u64 {
    NUMBERS.with(|own| {
        if own.taking.replace(true) {
            return block();
        }
        compiler_fence(Ordering::SeqCst);
        let next = own.next.get();
        let number = if next.is_multiple_of(BLOCK) { block() } else { next };
        own.next.set(number + 1);
        compiler_fence(Ordering::SeqCst);
        own.taking.set(false);
        number
    })
}

/// The first number of a new block.
#[cold]
fn block() -> u64 {
    NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed) + 1
}

/// How many tasks of a group have started and finished.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    shards: [Shard; SHARDS],
}

/// In cache lines of their own (in twos, because lines are fetched in pairs).
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    started: AtomicU64,
    finished: AtomicU64,
}

impl Tasks {
    #[inline]
    fn shard(&self, task: u64) -> &Shard {
        &self.shards[(task / BLOCK) as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn start(&self, task: u64) {
        self.shard(task).started.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn finish(&self, task: u64) {
        // Pairs with the load in `read`: who sees the end sees the start.
        self.shard(task).finished.fetch_add(1, Ordering::Release);
    }

    /// How many have started, and of those, how many have finished.
    pub(crate) fn read(&self) -> (u64, u64) {
        // Finished first: of a task that starts and ends in between neither is seen, or the start alone.
        let finished = self.shards.iter().map(|shard| shard.finished.load(Ordering::Acquire)).sum();
        let started = self.shards.iter().map(|shard| shard.started.load(Ordering::Relaxed)).sum();
        (started, finished)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let numbers = || (0..3 * BLOCK).map(|_| number()).collect::<Vec<_>>();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(numbers)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!((distinct.len(), distinct.contains(&0)), (all.len(), false));
    }

    #[test]
    fn more_have_never_finished_than_started() {
        const TASKS: u64 = 20_000;
        let (tasks, stop) = (Tasks::default(), AtomicBool::new(false));
        let (tasks, stop) = (&tasks, &stop);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let (started, finished) = tasks.read();
                    assert!(finished <= started, "{finished} of {started}");
                }
            });
            // Started on one thread, finished on the other.
            let (hand, taken) = std::sync::mpsc::sync_channel(16);
            let other = scope.spawn(move || taken.into_iter().for_each(|task| tasks.finish(task)));
            for _ in 0..TASKS {
                let task = number();
                tasks.start(task);
                hand.send(task).unwrap();
            }
            drop(hand);
            other.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(tasks.read(), (TASKS, TASKS));
    }
}
