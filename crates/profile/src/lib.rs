//! Profiles: which function uses the CPU, allocates, or faults, by group and thread.
//!
//! Each line depends only on those above it.
//!
//! | module | is |
//! |---|---|
//! | [`Profile`] | a profile as data: raw addresses, weights, and what is missing |
//! | [`StackEnds`] | where its stacks end that are not whole |
//! | [`OwnCode`] | which of its functions are the program's own |
//! | [`Symbols`] | the names of its addresses, found by a process that has the files |
//! | [`Diff`] | two profiles, stack by stack |
//! | [`encode`] | the formats that tools read |
//! | [`NameFinder`] | the names, from the files that a process has mapped (feature `names`) |
//! | [`Profiling`] | a profile that is being taken |
//! | [`StackReader`] | the stack of one thread, for another one that asks |
//! | [`OutsideProfiling`] | one of a process that dormouse is not in |

#![cfg_attr(
    feature = "files",
    doc = "| [`decode`] | a profile of an earlier day, from its file |
| [`Tasks`] | the task of each sample, by the names in its stack |"
)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![deny(unsafe_code)]
#![cfg_attr(any(dormouse_fallback, miri, loom), allow(dead_code, reason = "nothing is sampled there"))]

mod aggregate;
#[cfg(feature = "files")]
pub mod decode;
mod diff;
pub mod drops;
pub mod encode;
mod ends;
mod error;
#[cfg(feature = "names")]
mod kernel_names;
mod mappings;
#[cfg(feature = "names")]
mod modules;
#[cfg(feature = "names")]
mod names;
mod options;
mod outside;
pub mod own;
mod pprof;
mod profiling;
#[cfg(all(test, target_os = "linux", not(miri)))]
mod scarce;
pub mod sets;
mod stack_reader;
pub mod symbols;
#[cfg(feature = "files")]
mod tasks;
mod thread_stack;
mod yields;

#[cfg(not(any(dormouse_fallback, miri, loom)))]
mod sampling;
#[cfg(any(dormouse_fallback, miri, loom))]
#[path = "no_sampling.rs"]
mod sampling;

pub use diff::Diff;
pub use dormouse_protocol::profile::{
    Column, MappedRange, Moment, NO_GROUP, Node, Profile, ProfileCoverage, ProfileGroup, ProfileKind, Sample,
    Thread, Values, WallState,
};
pub use dormouse_unwind::own as unwind_tables;
pub use ends::{ObjectEnd, StackEnd, StackEnds, deeper_than};
pub use error::Error;
pub use mappings::own_mappings;
#[cfg(feature = "names")]
pub use names::NameFinder;
pub use options::Options;
pub use outside::OutsideProfiling;
pub use own::OwnCode;
pub use profiling::{Profiling, capability, spent_ns};
pub use sets::settle_waits;
pub use stack_reader::StackReader;
pub use symbols::{Named, SourceFrame, Symbols};
#[cfg(feature = "files")]
pub use tasks::Tasks;
pub use thread_stack::{NoStack, StackWay, ThreadStack};
pub use yields::is_yield;
