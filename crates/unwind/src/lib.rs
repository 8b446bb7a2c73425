//! Finds the callers of functions by the unwind tables (`.eh_frame`) of mapped objects, whether the
//! functions keep frame pointers or not.
//!
//! For each instruction, compilers describe where the caller's frame begins and where the caller's
//! registers are saved. The description is a program (DWARF's call frame information). A
//! [`RowTable`] has its results: sorted rows, each with the first address for which a [`FrameRule`]
//! holds. So finding a caller takes a search and two reads of the stack, which a signal handler may
//! do.
//!
//! [`UnwindTables`] are those of a process: each function's program is run when a stack first needs
//! it. [`own`] has those of this process, ready for threads that [`walk`] their own stacks, in
//! signal handlers, too.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | [`arch`] | the numbers of registers |
//! | `bytes` | [`MappedBytes`], and numbers read from them |
//! | `memory` | [`MemorySource`]: what can be read by address |
//! | `rule` | [`FrameRule`]: one row's way to the caller |
//! | `entry` | the entries of `.eh_frame`, and their programs |
//! | `index` | where the entry of a function is |
//! | `object` | where an object lies, and its index |
//! | `function` | the rows of one function, read without the tables |
//! | `table` | [`RowTable`]: the rows of an object |
//! | `tables` | [`UnwindTables`]: the objects of a process |
//! | `process` | [`ProcessTables`]: tables that follow the mappings of a process |
//! | `short` | rules in two bytes |
//! | `cache`, `pool` | [`ThreadCache`]: the memory of a thread |
//! | `published` | the tables of this process as walks find them |
//! | `learner` | the thread that learns, and how much time that takes |
//! | [`own`] | the tables of this process, which learn |
//! | `walk` | [`walk`]: the callers on the calling thread |
//! | [`frames`] | a deep stack in limited room |
//!
//! # Things it does not do
//!
//! Not supported: expressions other than those of stubs, aligned frames and signal frames
//! ([`FrameRule::Unknown`]), and registers other than the stack pointer and the frame pointer. Code
//! of an object without a table is taken for code with frame pointers.
//!
//! # References
//!
//! DWARF 5, 6.4; LSB Core Generic 5.0, 10.6 (`.eh_frame`, `.eh_frame_hdr`); System V ABI for
//! x86-64, 3.6.2, and DWARF for the Arm 64-bit Architecture, 4.1 (numbers of registers).

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

pub mod arch;
mod bytes;
mod cache;
mod entry;
pub mod frames;
mod function;
mod index;
mod learner;
mod memory;
mod object;
pub mod own;
mod pool;
mod process;
mod published;
mod rule;
mod short;
mod table;
mod tables;
mod walk;

pub use bytes::MappedBytes;
pub use cache::{CacheCounts, ThreadCache};
pub use memory::{MemorySource, ProcessMemory};
pub use pool::{ClaimedCache, claim};
pub use process::ProcessTables;
pub use rule::{CallFrame, CallerRule, CallerStep, FrameBase, FrameRule, SavedAt};
pub use table::{RowTable, TableRef};
pub use tables::{CallerWay, CopyEnd, MOST_FRAMES, UnwindTables};
pub use walk::{MAY_LACK_ROOM, Walk, WalkEnd, has_room, walk, walk_into, walk_unbound};
