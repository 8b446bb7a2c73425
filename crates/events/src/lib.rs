//! Task contexts and the switch between them: what a thread does is charged to the task that it runs.
//!
//! A [`Context`] holds what was counted for one group of tasks. [`enter`] makes a task of it current on the
//! calling thread until the guard is dropped; then what ran before runs on. Time is exclusive: while an
//! inner context is current, the outer ones stand still.
//!
//! # Why eager
//!
//! A context could stay current until the next task comes, which would save one of two clock reads. On a
//! runtime where other tasks run in between unseen, it would be charged for them. So the end of a task
//! restores what ran before, always.

#![deny(unsafe_code)]

mod context;
mod switch;

pub use context::Context;
pub use switch::{Entered, Kind, MAX_DEPTH, current_task, enter, overflows};
