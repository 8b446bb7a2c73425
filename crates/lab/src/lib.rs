//! Mechanisms that reproduce the table of an origin, and that no service needs. The bench alone
//! depends on this crate.
//!
//! | module | is | the bench's workload |
//! |---|---|---|
//! | [`ThreadGroup`] | CPU time of a group of threads as one number | `pound` |
//! | [`process_estimate`] | CPU time of the process without a system call | `pound` |
//! | [`ThreadMeter`], [`ProcessMeter`] | budgets of a thread, a group, the process | `clock` |
//! | [`faults`] | page faults of a program, recorded by the kernel into a file | `maps` |

#![deny(unsafe_code)]

mod error;
mod estimate;
pub mod faults;
mod meter;
mod thread_group;

pub use error::Error;
pub use estimate::process_estimate;
pub use meter::{ProcessMeter, ThreadMeter};
pub use thread_group::{GroupTime, Member, Refresh, ThreadGroup};
