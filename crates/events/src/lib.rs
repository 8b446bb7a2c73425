//! Task contexts and the switch between them: what a thread does is charged to the task that it
//! runs.
//!
//! A [`Context`] holds the counts of one group of tasks, in all events. A [`Task`] is charged to
//! one; [`enter`] makes it current on the calling thread until the guard is dropped, [`switch`]
//! until the next switch. Counts are exclusive: while an inner task is current, the outer ones
//! stand still.
//!
//! Nothing is counted unless somebody holds a [`Counting`]. Until then each thread remembers only
//! which task it runs, and the hook in the switch sleeps behind a static key.
//!
//! # When counters are read
//!
//! A thread that goes from one task to another of the same context reads no counter: the sum over
//! the context would be the same (origin: Linux 564c2b210add, "`perf_counter`: Optimize context
//! switch between identical inherited contexts"). Counters are read at every switch only for
//! customized tasks: all tasks of a context that is [`Mode::TaskExact`], and, with the feature
//! `origin`, pinned ones and those with counters stopped, added or removed.
//!
//! A task could also stay current until the next one begins, which would save the reading at its
//! end. But a runtime also runs work that this crate does not see, and the task would be charged
//! for it. So the end of a task makes the task before it current again. A program in which every
//! piece of work on a thread is a task may make that thread lazy ([`set_lazy`]).
//!
//! # Layers
//!
//! Modules, each of which calls only those before it: `pmu` (units that count events), `event_set`
//! (which events are counted together), `span` (what one thread charges, and since which readings),
//! `ledger` (what was charged), `publishing` (whether threads show their contexts to other
//! processes), `thread` (the stack of tasks and the switch), `control` (beginning and ending to
//! count), `reading` (reading the counts of contexts).

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]
#![cfg_attr(
    all(test, loom),
    allow(dead_code, unused_imports, reason = "loom models the span and the handshake")
)]

#[cfg(not(all(test, loom)))]
mod control;
mod error;
mod event_set;
mod generation;
mod handshake;
#[cfg(not(all(test, loom)))]
mod ledger;
pub mod pmu;
mod primitive;
#[cfg(not(all(test, loom)))]
mod publishing;
#[cfg(not(all(test, loom)))]
mod reading;
mod span;
#[cfg(not(all(test, loom)))]
mod thread;

pub use error::Error;
pub use event_set::{MAX_COUNTERS, MAX_EVENTS};
pub use pmu::alloc::{Alloc, heap, sampling_keys};
pub use pmu::{Availability, Event, Pmu, Times, Unit, available, capability, user::Counter};
#[cfg(not(all(test, loom)))]
pub use {
    control::{ContextPublishing, Counting, Mode, suspend},
    ledger::Context,
    reading::{Count, Totals},
    thread::{
        AnnouncedPolls, Kind, MAX_DEPTH, Mark, PollScanner, SeenPoll, Switched, Task, TaskCounts, TaskGuard,
        TaskNesting, announced_polls, current_context, current_task, enter, is_counting, is_lazy, leave,
        nesting, overflows, park, poll_begins, poll_ends, set_lazy, switch, without_tasks,
    },
};
