//! Task contexts and the switch between them: what a thread does is charged to the task that it runs.
//!
//! Two ways to charge it:
//!
//! - A [`Context`] holds the CPU time of one group of tasks. [`enter`] makes a task of it current on the
//!   calling thread until the guard is dropped; then what ran before runs on. Time is exclusive: while an
//!   inner context is current, the outer ones stand still.
//! - A [`Parent`] holds a set of counters, of any [`Event`]s. Each task gets a [`TaskContext`], a clone of
//!   it, and [`switch`] takes a thread from one task to the next. Between two clones that nobody could
//!   tell apart it exchanges them and reads no counter; what each has counted is summed up in the
//!   parent's [`Ledger`] anyway.
//!
//! # Why `enter` is eager
//!
//! A context could stay current until the next task comes, which would save one of two clock reads. On a
//! runtime where other tasks run in between unseen, it would be charged for them. So the end of a task
//! restores what ran before, always. [`switch`] is for who sees every switch of a thread: an executor of
//! one's own, fibers, poll hooks.

#![deny(unsafe_code)]

mod context;
mod error;
mod inherit;
mod layout;
mod ledger;
pub mod pmu;
mod primitive;
mod swap;
mod switch;

pub use context::Context;
pub use error::Error;
pub use inherit::{Parent, TaskContext};
pub use layout::MAX_COUNTERS;
pub use ledger::{Count, Ledger};
pub use pmu::{Event, Pmu, user::Counter};
pub use swap::{Switched, strayed, switch, switch_eager};
pub use switch::{Entered, Kind, MAX_DEPTH, current_group, current_task, enter, overflows};
