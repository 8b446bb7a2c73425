//! Task contexts and the switch between them: what a thread does is charged to the task that it runs.
//!
//! A [`Context`] holds the counts of one group of tasks, in all events. A [`Task`] is charged to one; [`enter`]
//! makes it current on the calling thread until the guard is dropped, [`switch`] until the next switch. Counts are
//! exclusive: while an inner task is current, the outer ones stand still.
//!
//! Nothing is counted unless somebody holds a [`Counting`]: until then the switch keeps account of what each thread runs,
//! and its hook sleeps behind a static key.
//!
//! # When counters are read
//!
//! Going from one task to another of the same context, nothing has to be read: who added it up would get
//! the same (origin: Linux 564c2b210add, "`perf_counter`: Optimize context switch between identical inherited
//! contexts"). Only tasks that have something of their own are read at every switch: pinned ones, those with
//! counters stopped or changed, and all of a context that is [`Mode::TaskExact`].
//!
//! A task could also stay current until the next one comes, which saves reading at its end. On a runtime where
//! other work runs in between unseen, it would be charged for that. So the end of a task restores what was
//! current before; a thread may be made lazy ([`set_lazy`]) by who knows that all its work is tasks.

#![deny(unsafe_code)]
#![cfg_attr(all(test, loom), allow(dead_code, unused_imports, reason = "a model is of the stay alone"))]

mod account;
#[cfg(not(all(test, loom)))]
mod context;
#[cfg(not(all(test, loom)))]
mod control;
mod error;
mod layout;
pub mod pmu;
mod primitive;
mod stay;
#[cfg(not(all(test, loom)))]
mod switch;
#[cfg(not(all(test, loom)))]
mod task;

pub use account::MAX_EVENTS;
#[cfg(not(all(test, loom)))]
pub use context::{Context, Count};
#[cfg(not(all(test, loom)))]
pub use control::{Counting, Mode};
pub use error::Error;
pub use layout::MAX_COUNTERS;
pub use pmu::alloc::Alloc;
pub use pmu::{Availability, Event, Pmu, Times, Unit, available, capability, user::Counter};
#[cfg(not(all(test, loom)))]
pub use switch::{
    Entered, Kind, MAX_DEPTH, Switched, current_context, current_task, enter, is_lazy, overflows, park,
    set_lazy, switch,
};
#[cfg(not(all(test, loom)))]
pub use task::{Task, TaskCounts};
