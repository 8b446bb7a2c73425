//! Properties that hold for any bytes: one module a target, each with a function `check` that
//! panics where its property does not hold.
//!
//! `cargo +nightly fuzz run TARGET` drives one by what it covers; `tests/bounded.rs` drives all of
//! them for a second each, on any compiler.

#![deny(unsafe_code)]

pub mod agent;
pub mod answers;
pub mod command_line;
pub mod mappings;
pub mod network;
pub mod object_file;
pub mod profile;
pub mod range_map;
pub mod recorded_file;
pub mod records;
pub mod request;
pub mod rule;
/// The command is a program, not a library; the files of it that are checked here use this one.
#[allow(dead_code, unused_macros, unused_imports, reason = "a part of the command")]
#[path = "../../crates/cli/src/text.rs"]
mod text;
pub mod trace_file;
pub mod unwind_table;

/// Bytes as a supply of numbers, which ends.
#[derive(Debug)]
pub(crate) struct Supply<'a>(pub(crate) &'a [u8]);

impl Supply<'_> {
    /// The next byte.
    pub(crate) fn next(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}
