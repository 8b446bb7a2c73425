//! Copied stacks on their way from handlers.
//!
//! A handler that meets a function of which nothing has been learned yet leaves a copy of the
//! stack, and with it a sample that is marked. The sampler finds the callers in the copy, and
//! learns the function meanwhile. So stacks are whole from the first sample on, and copies become
//! rare. A handler that finds no room for a copy leaves the sample as frame pointers show it.

use std::time::Duration;

use dormouse_sys::perf;

use super::handler::{self, Copied, Record, Tick};
use crate::Error;
use crate::sampling::queue::{self, Queue};
use crate::sampling::walk::Frames;

/// Copies of each processor that there is room for, each of 36 KiB.
const COPIES: usize = 16;
/// The most copies that there is room for: 4.5 MiB.
const MOST_COPIES: usize = 128;

/// The times between two readings of the queue: the longest, and the shortest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(2));

/// While it lives, handlers copy stacks.
#[derive(Debug)]
pub(super) struct Copies {
    queue: &'static Queue<Copied>,
    /// The functions in those that were read before their samples.
    waiting: Vec<(Key, Frames)>,
    /// Room for the functions in one copy.
    room: Vec<u64>,
    /// How many were read since the last reading.
    found: u64,
    /// The time until the next reading.
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
        Ok(Self { queue, waiting: Vec::new(), room: Vec::new(), found: 0, pause: PAUSES.0 })
    }

    /// The pause until the next reading.
    pub(super) fn pause(&mut self) -> Duration {
        self.pause = next_pause(self.pause, std::mem::take(&mut self.found), self.queue.capacity());
        self.pause
    }

    /// A sample with the functions in the copy that belongs to it; `None`: frame pointers have
    /// found as many.
    pub(super) fn take(&mut self, of: &Record) -> Option<Record> {
        let Self { queue, waiting, room, found, .. } = self;
        let own = key(&of.of_kind);
        // One that belongs to no sample was left by a thread that a filter has ended.
        if waiting.len() as u64 >= queue.capacity() {
            waiting.clear();
        }
        let known = waiting.iter().position(|(key, _)| *key == own);
        let mut functions = known.map(|at| waiting.swap_remove(at).1);
        while functions.is_none() {
            let next = queue.pop(|queue::Record { of_kind: Copied { tick, stack }, .. }| {
                (key(tick), stack.functions(room))
            });
            let (key, of_next) = next?;
            *found += 1;
            if key == own {
                functions = Some(of_next);
            } else if waiting.try_reserve(1).is_ok() {
                waiting.push((key, of_next));
            }
        }
        let frames = functions.filter(|functions| functions.are_more_than(&of.frames))?;
        Some(Record { frames, ..*of })
    }
}

/// A sample: the value of its timer's signal, the CPU time of its thread, and the expiries that it
/// stands for.
type Key = (u64, u64, u32);

fn key(tick: &Tick) -> Key {
    (tick.value, tick.cpu_ns, tick.overruns)
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
