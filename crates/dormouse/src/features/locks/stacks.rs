//! The stacks of threads that wait for one another.
//!
//! Such a thread sleeps, so the lookout reads its stack from outside, as that of a thread in a long
//! poll: it is not woken, and gets no signal. A task that waits has no thread.

use std::time::{Duration, Instant};

use dormouse_locks::lock_waiters;
use dormouse_profile::{StackReader, ThreadStack};
use dormouse_protocol::LockCycleRow;

use crate::lookout::LOOKOUT;

/// The most stacks of an answer.
const STACKS: usize = 64;

/// The time for all of them. Threads that sleep take much less; one that has just been woken may
/// take 40 ms.
const TIME: Duration = Duration::from_millis(100);

/// How long an answer waits for the lookout, which may be busy with a disk.
const PATIENCE: Duration = Duration::from_secs(1);

/// Reads the stacks of the threads in these cycles. A stack counts if the same wait is still there
/// afterwards.
pub(super) fn read(cycles: &mut [LockCycleRow]) {
    let blocked = cycles.iter_mut().flat_map(|cycle| &mut cycle.blocked);
    let mut threads: Vec<_> = blocked.filter(|of| !of.waiter.place.awaited).collect();
    if threads.is_empty() {
        return;
    }
    let tids: Vec<u32> = threads.iter().map(|of| of.waiter.tid).collect();
    let found = LOOKOUT.ask_for(PATIENCE, move |_| stacks(&tids));
    let found = found.unwrap_or_else(|error| {
        threads.iter().map(|_| Err(format!("the lookout, which reads stacks: {error}"))).collect()
    });
    let waits = lock_waiters();
    for (of, found) in threads.iter_mut().zip(found) {
        let is_there = waits.iter().any(|wait| wait.number == of.waiter.number);
        match found {
            Ok(_) if !is_there => of.no_stack = Some("its wait has ended".to_owned()),
            Ok(stack) => (of.stack, of.way) = (stack.frames, stack.way.name().to_owned()),
            Err(why) => of.no_stack = Some(why),
        }
    }
}

/// The stacks of these threads, on a thread of dormouse's.
fn stacks(tids: &[u32]) -> Vec<Result<ThreadStack, String>> {
    let end = Instant::now() + TIME;
    let mut reader = StackReader::new();
    let read = |(at, tid): (usize, &u32)| match &mut reader {
        Ok(_) if at >= STACKS => Err(format!("only {STACKS} stacks are read at once")),
        Ok(_) if at > 0 && Instant::now() >= end => Err("there was no time to read it".to_owned()),
        Ok(reader) => reader.read_asleep(*tid).map_err(|why| why.to_string()),
        Err(why) => Err(why.to_string()),
    };
    tids.iter().enumerate().map(read).collect()
}
