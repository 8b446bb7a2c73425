//! The registers of running code from which its callers are found.

use crate::arch;

/// The registers of a function that runs or has called another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFrame {
    /// An address inside of an instruction: the next one of code that was interrupted; for a
    /// caller, its call (one less than the return address).
    pub instruction: usize,
    /// The stack pointer.
    pub stack: usize,
    /// The register of the frame pointer, whatever the function uses it for.
    pub frame: usize,
}

/// The registers of the function into which this is inlined. (Zeros on other processors.)
#[inline(always)]
pub fn here() -> CallFrame {
    arch::registers()
}
