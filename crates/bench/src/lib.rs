//! The benchmarks of dormouse, as `dormouse bench` runs them.
//!
//! A workload is a list of cases; the runner samples them interleaved, [`report`] prints what came of it, as
//! text and as JSON of a fixed schema. Peers and baselines are cases of the same run, never remembered
//! numbers; the figures of an origin are printed beside ours and marked as the origin's. What cannot be
//! measured on a machine is a row that says `unavailable` and why.
//!
//! A new workload is one file in `workloads/` and one line in its `mod.rs`.

mod affinity;
mod args;
mod clocks;
pub mod interrupts;
pub mod machine;
mod output;
mod progress;
pub mod report;
mod runner;
pub mod stats;
mod table;
mod workloads;

pub use args::{Args, Workload, run, run_to};
pub use workloads::breakpoint::BreakpointArgs;
