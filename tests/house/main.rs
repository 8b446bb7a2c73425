//! The house's rules, checked on its sources: the order of modules inside each crate, names that
//! are given once, the facade's examples, and the form of files and sentences. `structure.rs` has
//! the order of crates.
//!
//! `HOUSE=events,keys` looks at these crates alone.

mod examples;
mod graph;
mod names;
mod source;
mod text;
mod unsafe_code;
mod words;
