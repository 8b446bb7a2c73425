//! When the request came that a task answers.
//!
//! A connection's task reads the bytes of a request, and begins the request's task later, in the
//! same poll or in a later one. So a stream of ours ([`tokio::ServedStream`](crate::tokio)) notes
//! beside each operation when the bytes came that were last read from it, with the runtime's number
//! of the task that it runs in. A request that begins in that task came then. Without such a stream
//! it came when the connection's task was woken for its present poll.
//!
//! # Invariants
//!
//! 1. A note of another task is never used: the number is compared.
//! 2. A request that begins inside of another one came with its begin.

#[cfg(feature = "tokio")]
use std::cell::Cell;

#[cfg(feature = "tokio")]
use ::tokio::task::{Id, try_id};
use dormouse_waits::{Around, Arrival};
#[cfg(any(feature = "hyper", feature = "tower"))]
use dormouse_waits::{are_times_taken, around};

use crate::core::tasks::{Origin, is_request};

#[cfg(feature = "tokio")]
thread_local! {
    static NOTED: Cell<Option<(Id, Arrival)>> = const { Cell::new(None) };
    /// How many requests have begun on this thread whose arrival was known.
    static BEGUN: Cell<u64> = const { Cell::new(0) };
}

/// Requests that begin in the present task of the runtime came then, or it is not known when.
#[cfg(feature = "tokio")]
pub(crate) fn note(arrival: Option<Arrival>) {
    NOTED.set(try_id().zip(arrival));
}

/// When requests came that begin in the present task of the runtime, if that was noted.
#[cfg(feature = "tokio")]
#[inline]
pub(crate) fn noted() -> Option<Arrival> {
    let (task, arrival) = NOTED.get()?;
    (try_id() == Some(task)).then_some(arrival)
}

/// Notes the arrival while `f` runs, and returns whether a request began then.
#[cfg(any(feature = "axum", feature = "hyper"))]
pub(crate) fn noted_in<T>(arrival: Arrival, f: impl FnOnce() -> T) -> (T, bool) {
    note(Some(arrival));
    let before = BEGUN.get();
    (f(), BEGUN.get() != before)
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
