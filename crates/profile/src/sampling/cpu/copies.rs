//! Copied stacks on their way from handlers.
//!
//! A handler that meets a function of which nothing has been learned yet leaves a copy of the
//! stack, and with it a sample that is marked. The sampler finds the callers in the copy, and
//! learns the function meanwhile. So stacks are whole from the first sample on, and copies become
//! rare. A handler that finds no room for a copy leaves the sample as frame pointers show it.

use std::time::Duration;

use dormouse_sys::own_stack::WalkEnd;
use dormouse_sys::perf;
use dormouse_unwind::{CallFrame, CopyEnd};

use super::handler::{self, Copied, Record, Tick};
use crate::Error;
use crate::sampling::copy::StackCopy;
use crate::sampling::own_tables::OwnTables;
use crate::sampling::queue::{self, Queue};
use crate::sampling::walk::DEPTH;

/// Copies of each processor that there is room for, each of 33 KiB.
const COPIES: usize = 16;
/// The most copies that there is room for: 4 MB.
const MOST_COPIES: usize = 128;

/// The times between two looks at the queue: the longest, and the shortest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(2));

/// While it lives, handlers copy stacks.
#[derive(Debug)]
pub(super) struct Copies {
    queue: &'static Queue<Copied>,
    /// The functions in those that were read before their samples.
    waiting: Vec<(Key, Functions)>,
    /// How many were read since the last look.
    found: u64,
    /// The time until the next look.
    pause: Duration,
}

impl Copies {
    /// Begins to copy stacks.
    pub(super) fn begin() -> Result<Self, Error> {
        let processors = perf::online_cpus().len();
        let copies = (processors * COPIES).min(MOST_COPIES);
        let queue = handler::begin_to_copy(copies).map_err(|error| {
            Error::Unavailable(format!("there is no memory for copies of stacks: {error}"))
        })?;
        Ok(Self { queue, waiting: Vec::new(), found: 0, pause: PAUSES.0 })
    }

    /// The pause until the next scan.
    pub(super) fn pause(&mut self) -> Duration {
        self.pause = next_pause(self.pause, std::mem::take(&mut self.found), self.queue.capacity());
        self.pause
    }

    /// A sample with the functions in the copy that belongs to it; `None`: frame pointers have
    /// found as many.
    pub(super) fn take(&mut self, of: &Record, tables: &mut OwnTables) -> Option<Record> {
        let Self { queue, waiting, found, .. } = self;
        let own = key(&of.of_kind);
        // One that belongs to no sample was left by a thread that a filter has ended.
        if waiting.len() as u64 >= queue.capacity() {
            waiting.clear();
        }
        let known = waiting.iter().position(|(key, _)| *key == own);
        let mut functions = known.map(|at| waiting.swap_remove(at).1);
        while functions.is_none() {
            let next = queue.pop(|queue::Record { of_kind: Copied { tick, stack }, .. }| {
                (key(tick), Functions::of(stack, |from, copy| tables.follow(from, copy)))
            });
            let (key, of_next) = next?;
            *found += 1;
            if key == own {
                functions = Some(of_next);
            } else if waiting.try_reserve(1).is_ok() {
                waiting.push((key, of_next));
            }
        }
        let Functions { frames, depth, end } =
            functions.filter(|functions| functions.are_more_than(of.depth))?;
        Some(Record { frames, depth, end, is_missed: false, ..*of })
    }
}

/// A sample: the value of its timer's signal, the CPU time of its thread, and the expiries that it
/// stands for.
type Key = (u64, u64, u32);

fn key(tick: &Tick) -> Key {
    (tick.value, tick.cpu_ns, tick.overruns)
}

/// The functions in a copy of a stack.
#[derive(Debug)]
pub(super) struct Functions {
    pub(super) frames: [usize; DEPTH],
    pub(super) depth: u32,
    pub(super) end: WalkEnd,
}

impl Functions {
    /// Those that `follow` finds in a copy, which is wiped.
    pub(super) fn of<'a>(
        copy: &mut StackCopy,
        follow: impl FnOnce(CallFrame, &[u8]) -> Option<(&'a [u64], CopyEnd)>,
    ) -> Self {
        let mut functions = Self { frames: [0; DEPTH], depth: 0, end: WalkEnd::Lost };
        if let Some((found, end)) = follow(copy.registers.into(), copy.bytes()) {
            for (place, &function) in functions.frames.iter_mut().zip(found) {
                *place = function as usize;
            }
            functions.depth = found.len().min(DEPTH) as u32;
            functions.end = match end {
                _ if found.len() > DEPTH => WalkEnd::Cut,
                CopyEnd::Outermost => WalkEnd::Last,
                CopyEnd::Copy if copy.is_cut => WalkEnd::Cut,
                CopyEnd::Copy | CopyEnd::Unknown => WalkEnd::Lost,
            };
        }
        copy.wipe();
        functions
    }

    /// Whether they show more than frame pointers, by which this many were found.
    pub(super) fn are_more_than(&self, depth: u32) -> bool {
        self.end == WalkEnd::Last || self.depth > depth
    }
}

/// The time in which enough copies come to fill a quarter of the queue, if `found` came in the last
/// pause.
fn next_pause(pause: Duration, found: u64, capacity: u64) -> Duration {
    let (longest, shortest) = PAUSES;
    let quarter = pause.as_nanos() as u64 * (capacity / 4) / found.max(1);
    Duration::from_nanos(quarter).clamp(shortest, longest)
}

impl Drop for Copies {
    fn drop(&mut self) {
        handler::end_to_copy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_follow_the_rate_of_copies() {
        // 64 processors, 250 copies a second of each, and room for 256: a full queue drops.
        let come = |pause: Duration| (16_000 * pause.as_micros() as u64 / 1_000_000).min(256);
        let mut pause = PAUSES.0;
        assert_eq!(come(pause), 256);
        for _ in 0..10 {
            pause = next_pause(pause, come(pause), 256);
        }
        assert!((32..=96).contains(&come(pause)), "{pause:?}");
        // Nobody runs any more.
        assert_eq!(next_pause(pause, 0, 256), PAUSES.0);
    }
}
