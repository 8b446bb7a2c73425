//! Everything that differs between processors, for this crate: the numbers that DWARF gives to
//! registers, and the form of addresses of code. A new processor is a file here.

#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), path = "portable.rs")]
mod processor;

pub use processor::*;

/// DWARF's operation that adds a distance to the register 0; those of the others follow it.
pub(crate) const BREG: u8 = 0x70;

/// Where the kernel's signal frame has the registers of the interrupted code, as distances from the
/// stack pointer. Where there is a link register, it lies two words below the instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalFrame {
    pub(crate) instruction: i32,
    pub(crate) stack: i32,
    pub(crate) frame: i32,
}
