//! For how long blocking work waits for a thread of its runtime.

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_waits::are_times_taken;

use super::inherit::current;

/// A closure that is about to be handed to a runtime. The time until it runs is counted in the
/// group that is current here, while times of tasks are taken.
pub(super) fn queued<T>(f: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let called = if are_times_taken() { current().map(|group| (group, stamp())) } else { None };
    move || {
        if let Some((group, called)) = called {
            group.0.pool_queue.count(ticks_to_ns(stamp().saturating_sub(called)));
        }
        f()
    }
}
