//! Why an address space has no answer.

use std::io;

use crate::error::NoSlot;
use crate::parse::ParseError;

/// Why an address space has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    /// There is no such process, or it has ended; the kernel may have given its number to another
    /// one.
    #[error("process {pid} is gone")]
    Gone {
        /// The id of the process.
        pid: u32,
    },
    /// The process executes another program than before.
    #[error("process {pid} executes another program now; look at it anew")]
    Replaced {
        /// The id of the process.
        pid: u32,
    },
    /// The process has no memory.
    #[error("process {pid} has no memory: it is a kernel thread, or has ended and waits for its parent")]
    NoMemory {
        /// The id of the process.
        pid: u32,
    },
    /// This user may not look at the process.
    #[error("the mappings of process {pid} may not be read; be its user with the same capabilities, or root")]
    Denied {
        /// The id of the process.
        pid: u32,
    },
    /// The kernel refuses to show the mappings for another reason.
    #[error("cannot read the mappings of process {pid}: {error}")]
    Read {
        /// The number of the process.
        pid: u32,
        /// The kernel's reason.
        #[source]
        error: io::Error,
    },
    /// The text is no list of mappings.
    #[error("the mappings of process {pid} cannot be understood: {error}")]
    Parse {
        /// The number of the process.
        pid: u32,
        /// The line at fault.
        #[source]
        error: ParseError,
    },
    /// No reader slot is free.
    #[error(transparent)]
    NoSlot(#[from] NoSlot),
}
