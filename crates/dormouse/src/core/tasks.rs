//! The numbers of tasks, and how many tasks a group has.
//!
//! If all threads that spawn wrote the same words, two threads would each take eight times longer
//! for a task than one alone. So each thread takes numbers in blocks, and a group counts in shards,
//! chosen by the block: threads that spawn at the same time mostly use different ones.
//!
//! # Invariants
//!
//! 1. A number is used once in a process. The first of each block is not used: a thread at that
//!    number has none left.
//! 2. Numbers of requests are odd, those of parts even. A part may have the number with which its
//!    thread's next block would begin: no other task has that.
//! 3. A task is counted as finished in the shard where it was counted as started, and after that.
//!
//! # Async-signal-safety
//!
//! A handler may start and end tasks. If it interrupts its thread while that takes a number, it
//! uses a block of its own.

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

/// A number that no task of the process has had; not 0. It encodes where the task came from.
#[inline]
pub(crate) fn number(origin: Origin) -> u64 {
    NUMBERS.with(|own| {
        if own.taking.replace(true) {
            return origin.next(block());
        }
        compiler_fence(Ordering::SeqCst);
        let next = own.next.get();
        let number = origin.next(if next.is_multiple_of(BLOCK) { block() } else { next });
        own.next.set(if number.is_multiple_of(BLOCK) { number } else { number + 1 });
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

/// Whether a task came from outside of its group, or a task of its group began it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Request,
    Part,
}

impl Origin {
    /// The first number from `number` on that encodes this origin.
    #[inline]
    fn next(self, number: u64) -> u64 {
        if Self::of(number) == self { number } else { number + 1 }
    }

    #[inline]
    fn of(number: u64) -> Self {
        if number.is_multiple_of(2) { Self::Part } else { Self::Request }
    }
}

/// Whether the task with that number came from outside of its group.
#[inline]
pub(crate) fn is_request(task: u64) -> bool {
    Origin::of(task) == Origin::Request
}

/// How many tasks a group has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskTotals {
    pub(crate) started: u64,
    pub(crate) finished: u64,
    /// How many of them were not part of another task.
    pub(crate) requests: u64,
}

/// How many tasks of a group have started and finished.
#[derive(Debug)]
pub(crate) struct Tasks {
    shards: [Shard; SHARDS],
}

/// In cache lines of their own (in twos, because lines are fetched in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    started: AtomicU64,
    /// By [`Origin`], which the number encodes: one addition for each task.
    finished: [AtomicU64; 2],
}

impl Tasks {
    pub(crate) const fn new() -> Self {
        Self {
            shards: [const {
                Shard { started: AtomicU64::new(0), finished: [AtomicU64::new(0), AtomicU64::new(0)] }
            }; SHARDS],
        }
    }

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
        // Pairs with the load in `read`: a reader that sees the end sees the start.
        self.shard(task).finished[Origin::of(task) as usize].fetch_add(1, Ordering::Release);
    }

    /// How many have started, and of those, how many have finished.
    pub(crate) fn read(&self) -> TaskTotals {
        // Finished first: of a task that starts and ends in between neither is seen, or the start
        // alone.
        let finished = |origin: Origin| {
            self.shards
                .iter()
                .map(|shard| shard.finished[origin as usize].load(Ordering::Acquire))
                .sum::<u64>()
        };
        let (requests, parts) = (finished(Origin::Request), finished(Origin::Part));
        let started = self.shards.iter().map(|shard| shard.started.load(Ordering::Relaxed)).sum();
        TaskTotals { started, finished: requests + parts, requests }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let origin = |n: u64| if n % 5 < 2 { Origin::Request } else { Origin::Part };
        let numbers = || {
            let numbers = (0..3 * BLOCK).map(|n| (origin(n), number(origin(n))));
            numbers
                .inspect(|&(origin, n)| assert_eq!(Origin::of(n), origin))
                .map(|(_, n)| n)
                .collect::<Vec<_>>()
        };
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
        let (tasks, stop) = (Tasks::new(), AtomicBool::new(false));
        let (tasks, stop) = (&tasks, &stop);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let TaskTotals { started, finished, .. } = tasks.read();
                    assert!(finished <= started, "{finished} of {started}");
                }
            });
            // Started on one thread, finished on the other.
            let (hand, taken) = std::sync::mpsc::sync_channel(16);
            let other = scope.spawn(move || taken.into_iter().for_each(|task| tasks.finish(task)));
            for _ in 0..TASKS {
                let task = number(Origin::Part);
                tasks.start(task);
                hand.send(task).unwrap();
            }
            drop(hand);
            other.join().unwrap();
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(tasks.read(), TaskTotals { started: TASKS, finished: TASKS, requests: 0 });
    }
}
