//! Why there is no answer, and why a change was refused. Either leaves the map as it was.

#[cfg(not(all(test, loom)))]
use std::io;

#[cfg(not(all(test, loom)))]
use crate::space::ParseError;

/// All reader slots are taken: there is no answer this time, which is not to say that nothing is there.
///
/// A slot is held for the time of one search. So many searches at one moment take as many threads or
/// signal handlers, interrupted in the middle of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no answer: all {slots} reader slots are taken by searches under way; try again")]
pub struct NoSlot {
    /// How many there are.
    pub slots: usize,
}

/// Why a change was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The range holds no address.
    #[error("the range {start:#x} to {end:#x} (excluded) holds no address")]
    Empty {
        /// First address.
        start: u64,
        /// The address after the last.
        end: u64,
    },
    /// Something is there, and [`Overlap::Reject`](crate::Overlap::Reject) was asked for.
    #[error(
        "the range {start:#x} to {last:#x} overlaps the mapping {there_start:#x} to {there_last:#x}; \
         remove it first, or insert by Overlap::Replace or Overlap::Split"
    )]
    Overlaps {
        /// First address of the refused range.
        start: u64,
        /// Its last address.
        last: u64,
        /// First address of the lowest mapping that is in the way.
        there_start: u64,
        /// Its last address.
        there_last: u64,
    },
    /// A mapping was to grow that is not there.
    #[error("no mapping lies inside the range {start:#x} to {last:#x}, so none can grow to it; insert it")]
    Absent {
        /// First address of the range.
        start: u64,
        /// Its last address.
        last: u64,
    },
}

/// Why an address space has no answer.
#[cfg(not(all(test, loom)))]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// There is no such process, or it has ended; its number may be another one's by now.
    #[error("process {pid} is gone")]
    Gone {
        /// Which.
        pid: u32,
    },
    /// It executes another program than it did.
    #[error("process {pid} executes another program now; look at it anew")]
    Replaced {
        /// Which.
        pid: u32,
    },
    /// It has no memory.
    #[error("process {pid} has no memory: it is a kernel thread, or has ended and waits for its parent")]
    NoMemory {
        /// Which.
        pid: u32,
    },
    /// It may not be looked at.
    #[error("the mappings of process {pid} may not be read; be its user with the same capabilities, or root")]
    Denied {
        /// Which.
        pid: u32,
    },
    /// Its mappings cannot be read.
    #[error("cannot read the mappings of process {pid}: {error}")]
    Read {
        /// Which.
        pid: u32,
        /// What the kernel says.
        #[source]
        error: io::Error,
    },
    /// What was read is no list of mappings.
    #[error("the mappings of process {pid} cannot be understood: {error}")]
    Parse {
        /// Which.
        pid: u32,
        /// Where.
        #[source]
        error: ParseError,
    },
    /// What lay there at that time is no longer remembered.
    #[error(
        "what lay at {addr:#x} at {time_ns} ns is forgotten: of mappings that ended before {forgotten_ns} ns not all are kept; \
         resolve sooner, or keep more"
    )]
    Forgotten {
        /// The address.
        addr: u64,
        /// The time, by the monotonic clock.
        time_ns: u64,
        /// Until when there are gaps in what is remembered.
        forgotten_ns: u64,
    },
    /// No reader slot is free.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
    /// A range that was to be registered is none.
    #[error(transparent)]
    Edit(#[from] EditError),
}
