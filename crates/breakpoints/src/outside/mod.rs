//! Watching a process from outside: it need not contain dormouse, and nothing is put into it.
//!
//! A signal kills a process that has no handler for it. So the kernel counts the hits and records
//! them into memory of the process that watches: thread, instruction, time, and the callers by
//! frame pointers. The watched process is not stopped, not written to, and gets no signal; a hit
//! costs it the trap, some eight microseconds.
//!
//! # Threads
//!
//! All present and future threads are armed, or none. Processes that the target forks are not
//! watched, nor what a child of `vfork` writes before it executes its program. When the target
//! executes another program, or ends, the watch is over.
//!
//! # Descriptors
//!
//! Records need a descriptor for each line, thread and processor: [`OutsideBudget`] limits them. If
//! the budget is too small, one descriptor for each line and thread only counts the hits, and the
//! report states that. Threads that start later need none.
//!
//! # Values
//!
//! No code runs at the moment of a hit to read the value. [`Outside::pass`] reads it when it finds
//! records: the old value is that of the pass before, the new one that of this pass, for all hits
//! between the two. So there are no filters by value from outside.
//!
//! # Cost
//!
//! In the target: each hit, and 8 us for each thread that it starts. In this process: locked memory
//! for each processor, not for each thread.

mod arm;
mod lines;
mod rings;
mod sites;
mod target;
mod watched;

pub use target::TargetEnd;
pub use watched::{Outside, OutsideBudget, OutsideReport, free_registers};
