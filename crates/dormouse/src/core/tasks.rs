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
//! 2. Numbers of requests are odd, those of parts multiples of 4, those of connections the rest. A
//!    part may have the number with which its thread's next block would begin: no other task has
//!    that.
//! 3. A task is counted as finished in the shard where it was counted as started, and after that.
//!    A request is counted by its outcome alone. One that turned out to be a stream has no outcome,
//!    and is counted as finished beside the shards: both together are how many finished.
//!
//! # Async-signal-safety
//!
//! A handler may start and end tasks. If it interrupts its thread while that takes a number, it
//! uses a block of its own.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use dormouse_protocol::is_connection;

use crate::core::ends::{Ending, OUTCOMES, PANICKED, TaskOutcome};
use crate::core::long_lived::{LongLived, LongSince};

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
        let (number, end) = (origin.next(next), next.next_multiple_of(BLOCK));
        let number = if next == end || number > end { origin.next(block()) } else { number };
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

/// Numbers from here on are of tasks that a runtime's hooks enter and leave
/// (`dormouse::tokio::group_spawns`): [`number`] does not come this far.
#[cfg(all(feature = "tokio", any(tokio_unstable, feature = "actix", feature = "tower")))]
pub(crate) const OF_RUNTIMES: u64 = 1 << 55;

/// Where a task came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It came from outside of its group.
    Request,
    /// A task of its group began it.
    Part,
    /// A server accepted a connection, or goes on with one of its streams: the task serves
    /// requests, and is none.
    Connection,
}

impl Origin {
    /// All of them, parts before those that begin them.
    const ALL: [Self; ORIGINS] = [Self::Part, Self::Request, Self::Connection];

    /// The first number from `number` on that encodes this origin.
    #[inline]
    fn next(self, number: u64) -> u64 {
        match self {
            Self::Request => number | 1,
            Self::Part => number.next_multiple_of(4),
            Self::Connection => ((number + 1) & !3) + 2,
        }
    }

    #[inline]
    pub(crate) fn of(number: u64) -> Self {
        match number % 4 {
            0 => Self::Part,
            _ if is_connection(number) => Self::Connection,
            _ => Self::Request,
        }
    }
}

/// Whether the task with that number came from outside of its group.
#[inline]
pub(crate) fn is_request(task: u64) -> bool {
    Origin::of(task) == Origin::Request
}

const ORIGINS: usize = 3;

/// How many tasks a group has had, by [`Origin`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TaskTotals {
    started: [u64; ORIGINS],
    finished: [u64; ORIGINS],
    /// How the requests among them ended. Those that have no outcome were streams.
    outcomes: [u64; OUTCOMES],
    /// How many that live for long are there, and the sum of their ages in seconds.
    long_lived: (u64, u64),
}

impl TaskTotals {
    pub(crate) fn started(self) -> u64 {
        self.started.iter().sum()
    }

    pub(crate) fn finished(self) -> u64 {
        self.finished.iter().sum()
    }

    /// Tasks that have ended, were not part of another task, and did not live for long.
    pub(crate) fn requests(self) -> u64 {
        self.outcomes.iter().sum()
    }

    /// How many that live for long are there, and the sum of their ages in seconds.
    pub(crate) fn long_lived(self) -> (u64, u64) {
        self.long_lived
    }

    /// How they ended, by the numbers of outcomes.
    pub(crate) fn outcomes(self) -> [u64; OUTCOMES] {
        self.outcomes
    }

    /// Those that failed, by an error or by a panic.
    pub(crate) fn failed(self) -> u64 {
        self.outcomes[Ending::Error as usize] + self.outcomes[PANICKED as usize]
    }

    pub(crate) fn alive(self) -> u64 {
        self.alive_of(0..ORIGINS)
    }

    /// Parts of other tasks that are alive.
    pub(crate) fn parts(self) -> u64 {
        let part = Origin::Part as usize;
        self.alive_of(part..part + 1)
    }

    /// Whether any of them was more than a part of another one.
    pub(crate) fn are_of_requests(self) -> bool {
        self.started() > self.started[Origin::Part as usize]
    }

    pub(crate) fn finished_parts(self) -> u64 {
        self.finished[Origin::Part as usize]
    }

    fn alive_of(self, origins: Range<usize>) -> u64 {
        let both = self.started.iter().zip(self.finished).take(origins.end).skip(origins.start);
        // C can end a task twice.
        both.map(|(started, finished)| started.saturating_sub(finished)).sum()
    }

    /// The difference to `before`, an earlier reading.
    pub(crate) fn since(self, before: Self) -> Self {
        fn since<const N: usize>(now: [u64; N], before: [u64; N]) -> [u64; N] {
            std::array::from_fn(|n| now[n].saturating_sub(before[n]))
        }
        Self {
            started: since(self.started, before.started),
            finished: since(self.finished, before.finished),
            outcomes: since(self.outcomes, before.outcomes),
            long_lived: self.long_lived,
        }
    }
}

/// How many tasks of a group have started and finished.
#[derive(Debug)]
pub(crate) struct Tasks {
    shards: [Shard; SHARDS],
    long_lived: LongLived,
    /// Requests that turned out to be streams, and have ended.
    streams: AtomicU64,
}

/// In cache lines of their own (in twos, because lines are fetched in pairs).
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// By [`Origin`], which the number encodes: one addition for each task, and one for its end.
    started: [AtomicU64; ORIGINS],
    /// Parts and connections; see [`finished_at`].
    finished: [AtomicU64; ORIGINS - 1],
    /// Requests, by how they ended.
    outcomes: [AtomicU64; OUTCOMES],
}

// One pair of lines.
const _: () = assert!(size_of::<Shard>() == 128);

/// Where a task that is no request counts as finished.
fn finished_at(origin: Origin) -> usize {
    usize::from(origin == Origin::Connection)
}

impl Tasks {
    pub(crate) const fn new() -> Self {
        Self {
            shards: [const {
                Shard {
                    started: [const { AtomicU64::new(0) }; ORIGINS],
                    finished: [const { AtomicU64::new(0) }; ORIGINS - 1],
                    outcomes: [const { AtomicU64::new(0) }; OUTCOMES],
                }
            }; SHARDS],
            long_lived: LongLived::new(),
            streams: AtomicU64::new(0),
        }
    }

    /// A task lives for long from now on.
    pub(crate) fn lives_long(&self) -> LongSince {
        self.long_lived.begin(LongSince::now())
    }

    /// A task that has lived for long ends. If it began as a request, it is no longer one.
    pub(crate) fn long_life_ends(&self, task: u64, since: LongSince) {
        self.long_lived.end(since);
        match Origin::of(task) {
            Origin::Request => self.streams.fetch_add(1, Ordering::Release),
            origin => self.shard(task).finished[finished_at(origin)].fetch_add(1, Ordering::Release),
        };
    }

    #[inline]
    fn shard(&self, task: u64) -> &Shard {
        &self.shards[(task / BLOCK) as usize % SHARDS]
    }

    #[inline]
    pub(crate) fn start(&self, task: u64) {
        // Pairs with the load in `read`: a reader that sees a part sees the request that began it.
        self.shard(task).started[Origin::of(task) as usize].fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub(crate) fn finish(&self, task: u64, outcome: TaskOutcome) {
        let (shard, origin) = (self.shard(task), Origin::of(task));
        let counted = match origin {
            Origin::Request => &shard.outcomes[outcome.index()],
            Origin::Part | Origin::Connection => &shard.finished[finished_at(origin)],
        };
        // Pairs with the load in `read`: a reader that sees the end sees the start.
        counted.fetch_add(1, Ordering::Release);
    }

    /// How many have started, and of those, how many have finished.
    pub(crate) fn read(&self) -> TaskTotals {
        let sum = |of: fn(&Shard) -> &[AtomicU64], n: usize| -> u64 {
            self.shards.iter().map(|shard| of(shard)[n].load(Ordering::Acquire)).sum()
        };
        let mut totals =
            TaskTotals { long_lived: self.long_lived.read(LongSince::now()), ..TaskTotals::default() };
        // Finished first: of a task that starts and ends in between neither is seen, or the start
        // alone. Parts before those that began them: a part is not seen without a request that is
        // alive.
        for origin in Origin::ALL {
            totals.finished[origin as usize] = match origin {
                Origin::Request => {
                    totals.outcomes = std::array::from_fn(|n| sum(|shard| &shard.outcomes, n));
                    totals.requests() + self.streams.load(Ordering::Acquire)
                }
                Origin::Part | Origin::Connection => sum(|shard| &shard.finished, finished_at(origin)),
            };
        }
        for origin in Origin::ALL {
            totals.started[origin as usize] = sum(|shard| &shard.started, origin as usize);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::core::ends::outcome_of;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let origin = |n: u64| match n % 5 {
            0 | 1 => Origin::Request,
            2 | 3 => Origin::Part,
            _ => Origin::Connection,
        };
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
                    let totals = tasks.read();
                    assert!(totals.finished() <= totals.started(), "{totals:?}");
                }
            });
            // Started on one thread, finished on the other.
            let (hand, taken) = std::sync::mpsc::sync_channel(16);
            let other = scope.spawn(move || {
                for task in taken {
                    tasks.finish(task, outcome_of(task, Ending::Completed));
                }
            });
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
        let totals = tasks.read();
        assert_eq!((totals.started(), totals.finished(), totals.requests()), (TASKS, TASKS, 0));
    }
}
