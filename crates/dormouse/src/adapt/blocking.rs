//! A group for the threads on which a runtime does blocking work that no group has asked for.
//!
//! tokio's file system and libraries call tokio's own `spawn_blocking`, for which there is no hook.
//! There is one for the beginning of a thread, but workers are threads of the same pool; only a
//! worker parks. So a thread of the pool is in the group [`BLOCKING`] from its beginning until it
//! parks for the first time: a thread for blocking work for all its life, a worker while it starts.
//!
//! | the thread | event | then it is |
//! |---|---|---|
//! | new | starts | in the group, as a part of it: no request, and without times |
//! | in the group | parks | in none, for good |
//! | in the group | stops | in none |
//!
//! Work that is handed on while only this group is current inherits none: the thread may be a
//! worker that has not parked yet.

use std::cell::Cell;

use dormouse_events::Mark;

use crate::core::group::Group;

const BLOCKING: &str = "tokio blocking";

thread_local! {
    /// The thread's task of the group, while it is in it.
    static HERE: Cell<Option<Mark>> = const { Cell::new(None) };
}

/// Call this when a thread of a runtime starts; see
/// [`group_blocking`](crate::tokio::group_blocking).
///
/// ```
/// use dormouse::tokio::{thread_parks, thread_starts, thread_stops};
///
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// builder.on_thread_start(|| {
///     // … the program's own hook
///     thread_starts();
/// });
/// builder.on_thread_stop(thread_stops).on_thread_park(thread_parks);
/// ```
pub fn thread_starts() {
    let group = Group::new(BLOCKING);
    let number = group.begin_task(true);
    match group.enter_task(number) {
        Some(mark) => HERE.set(Some(mark)),
        None => group.end_task(number),
    }
}

/// Call this when a thread of a runtime is about to stop; see
/// [`group_blocking`](crate::tokio::group_blocking).
///
/// ```
/// use dormouse::tokio::{thread_parks, thread_starts, thread_stops};
///
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// builder.on_thread_start(|| {
///     // … the program's own hook
///     thread_starts();
/// });
/// builder.on_thread_stop(thread_stops).on_thread_park(thread_parks);
/// ```
pub fn thread_stops() {
    if let Some(mark) = HERE.take() {
        let group = Group::new(BLOCKING);
        group.leave_task(mark);
        group.end_task(mark.task);
    }
}

/// Whether the innermost task of this thread is that of the group.
pub(super) fn is_current() -> bool {
    HERE.get().is_some_and(|mark| mark.task == dormouse_events::current_task())
}
