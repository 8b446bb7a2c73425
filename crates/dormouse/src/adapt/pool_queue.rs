//! For how long blocking work waits for a thread of its runtime, and which work has the threads.

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_locks::PermitQueue;
use dormouse_waits::are_times_taken;

use super::inherit::current;

/// The threads of all runtimes of tokio.
static THREADS: PermitQueue = PermitQueue::new("blocking pool");

/// A closure that is about to be handed to a runtime, and that runs in the group that is current
/// here. The time until it runs is counted in that group, while times of tasks are taken. While
/// locks are noted, it waits for a thread and then has it, as for a permit.
#[track_caller]
pub(super) fn queued<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let called = if are_times_taken() { current().map(|group| (group, stamp())) } else { None };
    let waiting = THREADS.enter();
    move || {
        if let Some((group, called)) = called {
            group.0.pool_queue.count(ticks_to_ns(stamp().saturating_sub(called)));
        }
        let _thread = waiting.begin();
        f()
    }
}
