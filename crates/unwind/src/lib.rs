//! Finds the caller of a function that keeps no frame pointer, by the unwind table (`.eh_frame`) of
//! its object.
//!
//! For each instruction, compilers describe where the caller's frame begins and where the caller's
//! registers are saved. The description is a program (DWARF's call frame information). A
//! [`RowTable`] is made from these programs ahead of time: sorted rows, each with the first address
//! for which a [`FrameRule`] holds. So finding a caller takes a binary search and two reads of the
//! stack, which a signal handler may do.
//!
//! [`libraries`] has the tables of the objects that stay mapped as long as the process lives: the C
//! library, the dynamic linker and the kernel's vDSO.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | `arch` | the numbers of registers |
//! | `bytes` | [`MappedBytes`], and numbers read from them |
//! | `rule` | [`FrameRule`]: one row's way to the caller |
//! | `entry` | the entries of `.eh_frame`, and their programs |
//! | `table` | [`RowTable`]: all rows of an object |
//! | `process` | [`libraries`]: the tables of this process |
//!
//! # Things it does not do
//!
//! Not supported: expressions (if the frame's address is computed, the rule is
//! [`FrameRule::Unknown`]), registers other than the stack pointer and the frame pointer, and
//! tables of the program's own code, so also of a C library that is linked into it.
//!
//! # References
//!
//! DWARF 5, 6.4; LSB Core Generic 5.0, 10.6 (`.eh_frame`, `.eh_frame_hdr`); System V ABI for
//! x86-64, 3.6.2 (numbers of registers).

#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]

mod arch;
mod bytes;
mod entry;
mod process;
mod rule;
mod table;

pub use arch::RED_ZONE;
pub use bytes::MappedBytes;
pub use process::{Libraries, libraries, prepare_libraries};
pub use rule::{CallFrame, CallerStep, FrameBase, FrameRule};
pub use table::RowTable;
