//! Flushing the spans of other threads: the last step of a change.
//!
//! The counters of each thread that is in a task, and in a span of an older generation, are read
//! from outside. Its context is charged, and the span gets a new baseline, from which its thread
//! counts by the new set. So a thread that runs one task for hours is counted exactly from the
//! moment when counting begins until the moment when it ends.
//!
//! A span that its owner edits at that moment is visited again after the others, until the pass
//! over all threads is [`PATIENCE`] old. An owner that was descheduled in the middle of its edit
//! charges the span to its end when it runs again.

use std::ptr;
use std::time::{Duration, Instant};

use dormouse_sys::thread::ThreadBlock;

use crate::event_set::{EventSet, Readings};
use crate::generation::Generation;
use crate::ledger;
use crate::span::{self, Span};

/// How old a pass over the threads may become because of those that are in the middle of a switch.
const PATIENCE: Duration = Duration::from_millis(20);

/// Flushes all spans of generations before `generation`, in one pass. The caller has the lock of
/// changes.
pub(super) fn flush_remote_all(generation: Generation) {
    let give_up = Instant::now() + PATIENCE;
    let mut left: Vec<_> = span::live().collect();
    loop {
        left.retain(|(block, span)| !flush_remote(block, span, generation));
        if left.is_empty() || Instant::now() > give_up {
            return;
        }
        std::thread::yield_now();
    }
}

/// Flushes the span of one thread, if it is of an older generation; false if it has to be read
/// again.
fn flush_remote(block: &ThreadBlock, span: &Span, generation: Generation) -> bool {
    let Some(seen) = span.try_snapshot() else { return false };
    if seen.context == 0 || seen.generation == generation {
        return true;
    }
    if seen.was_never_counted() && !block.has_task() {
        // The thread will find the new generation before it has a task (cases 5 and 6 of
        // `thread::state`).
        return true;
    }
    let Some(context) = ledger::context(seen.context) else { return true };
    // The set stays the same until the change is over. Without room for all events the task counts
    // what its context does, as in `Customization::set`.
    let shared = context.set();
    let set = EventSet::of((shared.mask() | seen.added) & !seen.removed).unwrap_or(shared);
    let old = &seen.baseline;
    let mut now = Readings::default();
    let known = old.set.read_of(block, u64::MAX, &mut now);
    for (reading, from) in now.iter_mut().zip(&old.readings) {
        // The owner's clock may be a little ahead of the kernel's answer. A baseline does not go
        // back.
        *reading = (*reading).max(*from);
    }
    let mut fresh = Readings::default();
    let fresh_known = if ptr::eq(set, old.set) { 0 } else { set.read_of(block, u64::MAX, &mut fresh) };
    let next = old.followed_by((&now, known), set, shared.mask(), (&fresh, fresh_known));
    if !span.is_still(&seen) || !span.rebase(&seen, &next) {
        return false;
    }
    for delta in old.deltas(&now, known).filter(|delta| delta.is_shared) {
        context.charge(block.start(), delta.index, delta.n);
    }
    true
}
