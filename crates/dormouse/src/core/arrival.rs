//! When the request came that a task answers.
//!
//! A connection's task reads the bytes of a request, and begins the request's task later, in the
//! same poll or in a later one. So a stream of ours ([`tokio::ServedStream`](crate::tokio)) notes
//! beside each operation when the bytes came that were last read from it, with the runtime's number
//! of the task that it runs in. A request that begins in that task came then. Without such a stream
//! it came when the connection's task was woken for its present poll.
//!
//! # A task that moves
//!
//! Each thread keeps the note that was made last on it. A task may make one on a worker, a newer
//! one on another worker, and come back to the first, whose old note is still there. So a table
//! has, by the task's number, the thread that noted last: a note is used only on that one. Two
//! tasks may have the same place in the table. Then the note of one of them is not used, and its
//! request came with the clone of its service, or with the wake.
//!
//! # Invariants
//!
//! 1. A note of another task is never used: the number is compared.
//! 2. A request that begins inside of another one came with its begin.
//! 3. A note is never used after a newer one of its task. A thread's cell has the last note that it
//!    made. If a task's place in the table has that thread, then none of the place's tasks has made
//!    one elsewhere since. The runtime orders what a task does on one thread before what it does on
//!    the next, so the table needs no ordering of its own.

#[cfg(feature = "tokio")]
use std::cell::Cell;
#[cfg(feature = "tokio")]
use std::ptr;
#[cfg(feature = "tokio")]
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(feature = "tokio")]
use ::tokio::task::{Id, try_id};
use dormouse_waits::{Around, Arrival};
#[cfg(any(feature = "hyper", feature = "tower"))]
use dormouse_waits::{are_times_taken, around};

#[cfg(feature = "tokio")]
use crate::core::runtime_task::{number, spread};
use crate::core::tasks::{Origin, is_request};

/// The number of places in the table of threads, in bits.
#[cfg(feature = "tokio")]
const PLACE_BITS: u32 = 10;

/// The thread that noted last for a task of each place, by the address of its cell.
#[cfg(feature = "tokio")]
static LAST: [AtomicUsize; 1 << PLACE_BITS] = [const { AtomicUsize::new(0) }; 1 << PLACE_BITS];

#[cfg(feature = "tokio")]
thread_local! {
    static NOTED: Cell<Option<(Id, Arrival)>> = const { Cell::new(None) };
    /// How many requests have begun on this thread whose arrival was known.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

/// Requests that begin in the present task of the runtime came then, or it is not known when.
#[cfg(feature = "tokio")]
pub(crate) fn note(arrival: Option<Arrival>) {
    let task = try_id();
    if let Some(task) = task {
        last(task).store(here(), Ordering::Relaxed);
    }
    NOTED.set(task.zip(arrival));
}

/// The thread that noted last for this task, or for another one of its place.
#[cfg(feature = "tokio")]
fn last(task: Id) -> &'static AtomicUsize {
    &LAST[spread(number(task), PLACE_BITS)]
}

/// This thread, in the table.
#[cfg(feature = "tokio")]
fn here() -> usize {
    NOTED.with(|noted| ptr::from_ref(noted).addr())
}

/// When requests came that begin in the present task of the runtime, if that was noted.
#[cfg(feature = "tokio")]
#[inline]
pub(crate) fn noted() -> Option<Arrival> {
    let (task, arrival) = NOTED.get()?;
    let is_its = try_id() == Some(task) && last(task).load(Ordering::Relaxed) == here();
    is_its.then_some(arrival)
}

/// Notes the arrival while `f` runs, and returns whether a request began then.
#[cfg(any(feature = "axum", feature = "hyper"))]
pub(crate) fn noted_in<T>(arrival: Arrival, f: impl FnOnce() -> T) -> (T, bool) {
    note(Some(arrival));
    let before = BEGUN.get();
    let returned = f();
    // A stream that is read in there has noted when its own bytes came.
    if noted() == Some(arrival) {
        NOTED.set(None);
    }
    (returned, BEGUN.get() != before)
}

#[cfg(not(feature = "tokio"))]
pub(crate) fn noted() -> Option<Arrival> {
    None
}

/// When a request came that the present task hands on; `None` while times are not taken.
#[cfg(feature = "hyper")]
pub(crate) fn arrival_here() -> Option<Arrival> {
    if are_times_taken() { around().and_then(|around| arrival(around, None)) } else { None }
}

/// Whether times are taken, and the present task is in no request.
#[cfg(feature = "tower")]
#[inline]
pub(crate) fn is_outside() -> bool {
    are_times_taken() && around().is_some_and(|around| !is_in_request(around))
}

/// When a request came that begins here, if that is known; `cloned_for` is what was noted where its
/// service was cloned.
#[inline]
pub(crate) fn arrival_of_request(around: Around, cloned_for: Option<Arrival>) -> Option<Arrival> {
    let arrival = arrival(around, cloned_for);
    #[cfg(feature = "tokio")]
    BEGUN.set(BEGUN.get() + u64::from(arrival.is_some()));
    arrival
}

#[inline]
fn arrival(around: Around, cloned_for: Option<Arrival>) -> Option<Arrival> {
    let innermost = around.innermost().map_or(Origin::Part, Origin::of);
    if innermost == Origin::Request || around.may_be_nested() && is_in_request(around) {
        return None;
    }
    // A request that waited before it began here has a later wake than its own.
    let woken = || around.woken().filter(|_| innermost == Origin::Connection);
    let here = || woken().map(|woken| Arrival { received: None, woken });
    noted().or(cloned_for).or_else(here)
}

/// Whether one of the tasks around is a request.
#[inline(never)]
fn is_in_request(around: Around) -> bool {
    around.tasks().any(is_request)
}

#[cfg(all(test, feature = "tokio"))]
mod tests {
    use ::tokio::sync::mpsc::unbounded_channel;

    use super::*;

    /// An arrival with a number of its own.
    fn arrival(woken: u64) -> Arrival {
        Arrival { received: None, woken }
    }

    #[test]
    fn a_task_that_moved_leaves_no_note() {
        let one = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
        for newest in [Some(arrival(2)), None] {
            let (go_on, mut wait) = unbounded_channel::<()>();
            let (tell, mut told) = unbounded_channel();
            let connection = one.spawn(async move {
                for arrival in [Some(arrival(1)), newest] {
                    note(arrival);
                    tell.send(noted()).unwrap();
                    wait.recv().await;
                }
                tell.send(noted()).unwrap();
            });
            // Whichever thread blocks on the runtime polls the task.
            let mut next = || one.block_on(told.recv()).unwrap();
            assert_eq!(next(), Some(arrival(1)));
            go_on.send(()).unwrap();
            assert_eq!(std::thread::scope(|scope| scope.spawn(&mut next).join().unwrap()), newest);
            go_on.send(()).unwrap();
            assert_eq!(next(), None, "this thread's note is older than the other's");
            one.block_on(connection).unwrap();
        }
    }

    #[cfg(any(feature = "axum", feature = "hyper"))]
    #[test]
    fn a_note_ends_with_its_call() {
        let one = ::tokio::runtime::Builder::new_current_thread().build().unwrap();
        let stream = one.spawn(async {
            let within = noted_in(arrival(1), noted);
            (within, noted())
        });
        assert_eq!(one.block_on(stream).unwrap(), ((Some(arrival(1)), false), None));
    }
}
