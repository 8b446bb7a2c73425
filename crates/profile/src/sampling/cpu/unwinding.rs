//! Copied stacks on their way from handlers, and their callers by unwind tables.
//!
//! They have a queue of their own beside that of the samples: a record in it is as long as the
//! longest copy. A handler that finds it full leaves a sample without a copy. So a thread's samples
//! may come out of order, but only then, and their reader drops those that come late.

use std::time::Duration;

use dormouse_sys::own_stack::WalkEnd;
use dormouse_sys::process::identity;
use dormouse_sys::{memory, perf};

use super::handler::{self, Copied, Record};
use crate::Error;
use crate::sampling::copy::StackCopy;
use crate::sampling::queue::{self, Queue};
use crate::sampling::walk::DEPTH;
use crate::tables::{Reach, Tables};

/// Copies of each processor that there is room for, each of 33 KiB: some hundred milliseconds at
/// the highest rate of usual kernels.
const COPIES: usize = 32;
/// The most copies that there is room for: 8 MB.
const MOST_COPIES: usize = 256;

/// The times between two looks at the queue: the longest, and the shortest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(2));

/// While it lives, handlers copy stacks.
#[derive(Debug)]
pub(super) struct Unwinding {
    queue: &'static Queue<Copied>,
    tables: Tables,
    /// The time until the next look.
    pause: Duration,
}

impl Unwinding {
    /// Begins to copy stacks; `code` is how long the code of the process is.
    pub(super) fn begin(code: usize) -> Result<Self, Error> {
        // The tables are shorter.
        if !memory::is_there(code) {
            return Err(Error::Unavailable("there is no memory for the tables of callers".into()));
        }
        let tables = Tables::of(identity::pid())?;
        // The number is another process's, if another namespace's `/proc` is mounted.
        if !tables.is_code(handler::handle as *const () as u64) {
            return Err(Error::Unavailable("/proc does not show this process's mappings".into()));
        }
        let processors = perf::online_cpus().len();
        let copies = (processors * COPIES).min(MOST_COPIES);
        let queue = handler::begin_to_copy(copies).map_err(|error| {
            Error::Unavailable(format!("there is no memory for copies of stacks: {error}"))
        })?;
        Ok(Self { queue, tables, pause: PAUSES.0 })
    }

    /// The pause until the next scan, after one that has found `found` copies.
    pub(super) fn pause_after(&mut self, found: u64) -> Duration {
        self.pause = next_pause(self.pause, found, self.queue.capacity());
        self.pause
    }

    /// Gives the next sample that has a copy, as its frame pointers show it and as its copy does,
    /// or the former twice if that has more; false: there is none.
    pub(super) fn pop(&mut self, give: impl FnOnce(&Record, &Record)) -> bool {
        let Self { queue, tables, .. } = self;
        let found = queue.pop(|record| {
            let queue::Record {
                of_kind: Copied { tick, .. },
                at_ns,
                group,
                depth,
                end,
                lacks_caller,
                frames,
            } = record;
            let walked = Record {
                of_kind: *tick,
                at_ns: *at_ns,
                group: *group,
                depth: *depth,
                end: *end,
                lacks_caller: *lacks_caller,
                frames: *frames,
            };
            let unwound = match unwound(tables, record) {
                Some((frames, depth, end)) => {
                    Record { depth: depth as u32, end, lacks_caller: false, frames, ..walked }
                }
                None => walked,
            };
            record.of_kind.stack.wipe();
            give(&walked, &unwound);
        });
        found.is_some()
    }
}

/// The frames of a record by its copy, how many they are, and how they end. `None`: there are more
/// by its frame pointers.
pub(super) fn unwound(
    tables: &mut Tables,
    record: &queue::Record<Copied>,
) -> Option<([usize; DEPTH], usize, WalkEnd)> {
    let mut frames = record.frames;
    let (depth, end) = follow(tables, &record.of_kind.stack, &mut frames);
    (end == WalkEnd::Last || depth > record.frames().len()).then_some((frames, depth, end))
}

/// The time in which enough copies come to fill a quarter of the queue, if `found` came in the last
/// pause.
fn next_pause(pause: Duration, found: u64, capacity: u64) -> Duration {
    let (longest, shortest) = PAUSES;
    let quarter = pause.as_nanos() as u64 * (capacity / 4) / found.max(1);
    Duration::from_nanos(quarter).clamp(shortest, longest)
}

impl Drop for Unwinding {
    fn drop(&mut self) {
        handler::end_to_copy();
    }
}

/// Fills in the frames of a copied stack, as [`crate::sampling::walk::walk`] does.
fn follow(tables: &mut Tables, copy: &StackCopy, into: &mut [usize; DEPTH]) -> (usize, WalkEnd) {
    let from = copy.registers;
    let registers = [from.instruction, from.stack, from.frame, 0].map(|word| word as u64);
    let (callers, end) = tables.follow(registers, copy.bytes());
    into[0] = from.instruction;
    for (place, &returns_to) in into[1..].iter_mut().zip(callers) {
        *place = returns_to as usize - 1;
    }
    let depth = 1 + callers.len();
    match end {
        _ if depth > DEPTH => (DEPTH, WalkEnd::Cut),
        Reach::Outermost => (depth, WalkEnd::Last),
        Reach::Copy if copy.is_cut => (depth, WalkEnd::Cut),
        Reach::Copy | Reach::Lost => (depth, WalkEnd::Lost),
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
