//! The benchmarks of dormouse, as `dormouse bench` runs them.
//!
//! A workload is a list of cases; the runner samples them interleaved, and [`report`] prints the
//! rows, as text and as JSON of a fixed schema. Peers and baselines are cases of the same run,
//! never remembered numbers; the figures of an origin are printed beside ours and marked as the
//! origin's. A row that cannot be measured on a machine says `unavailable` and why.
//!
//! The modules, each of which uses only those above it:
//!
//! - `table`, `row`: numbers and text; `figures`: tables beside an origin's; `clocks`,
//!   `progress`;
//! - `runner`: cases, interleaved rounds; `affinity`, `neighbour`: processors and the thread
//!   beside; `apart`: forked children;
//! - `injected`: work added on purpose;
//! - `bench`: the run of one workload, from its cases to comparisons, goals and notes;
//! - `yardsticks`: rows that several workloads hold their own against;
//! - `workloads`: a folder each, whose `mod.rs` names the question, the peers and the origin;
//! - `machine`, `report`, `output`: of a report, its parts and places;
//! - `args`, `entry`: the list of workloads, one of which is measured;
//! - `child`, `page`, `run`: a workload in a process of its own, the page with all, and the run;
//! - `compare`: reports side by side.
//!
//! A new workload is one folder in `workloads/`, one line in its `mod.rs`, one in `args.rs` and one
//! in `entry.rs`; the page has a section for it in `page/sections.rs`.

mod affinity;
mod apart;
mod args;
mod bench;
mod child;
mod clocks;
pub mod compare;
mod entry;
mod figures;
mod injected;
pub mod interrupts;
pub mod machine;
mod neighbour;
mod output;
mod pace;
mod page;
mod progress;
pub mod report;
pub mod row;
mod run;
mod runner;
mod table;
mod workloads;
mod yardsticks;

pub use args::{BenchArgs, Workload};
pub use run::{run, run_to};
pub use workloads::breakpoint::BreakpointArgs;
