//! Watching a process from outside: nothing of dormouse is in it, and nothing comes into it.
//!
//! A signal to a process that has no handler for it is its end. So the kernel counts the hits and
//! records them into memory of the process that watches: thread, instruction, time, and the callers
//! by frame pointers. The watched process is not stopped, not written to, and gets no signal; a hit
//! costs it the trap, some eight microseconds.
//!
//! # Threads
//!
//! All threads are armed that are and that will be, or none. Processes that the target forks are
//! not, nor what a child of `vfork` writes before it executes its program. If the target executes a
//! program, or ends, the watch is over.
//!
//! # Descriptors
//!
//! Records need a descriptor for each line, thread and processor: [`OutsideBudget`] limits them.
//! Where it does not reach, one for each line and thread counts the hits alone, and the report says
//! so. Threads that start later need none.
//!
//! # Values
//!
//! Nobody is there at the moment of a hit to read the value. [`Outside::pass`] reads it when it
//! finds records: the old value is that of the pass before, the new one that of this pass, for all
//! hits between the two. So there are no filters by value from outside.
//!
//! # Cost
//!
//! The target: each hit, and 8 us for each thread that it starts. This process: locked memory for
//! each processor, not for each thread.

mod arm;
mod lines;
mod rings;
mod sites;
mod target;
mod watched;

pub use target::TargetEnd;
pub use watched::{Outside, OutsideBudget, OutsideReport, free_registers};
