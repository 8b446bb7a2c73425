//! The numbers that DWARF gives to registers, the only part that differs between architectures.

/// The frame pointer.
#[cfg(target_arch = "x86_64")]
pub(crate) const FRAME: u64 = 6;
/// The stack pointer.
#[cfg(target_arch = "x86_64")]
pub(crate) const STACK: u64 = 7;

/// The frame pointer.
#[cfg(target_arch = "aarch64")]
pub(crate) const FRAME: u64 = 29;
/// The stack pointer.
#[cfg(target_arch = "aarch64")]
pub(crate) const STACK: u64 = 31;

/// No register has this number: each rule is unknown.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const FRAME: u64 = u64::MAX;
/// No register has this number, as for [`FRAME`].
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const STACK: u64 = u64::MAX;

/// The bytes below its stack pointer that a function may use, and that signal handlers leave alone.
pub const RED_ZONE: usize = if cfg!(target_arch = "x86_64") { 128 } else { 0 };

/// DWARF's operation that adds a distance to the register 0; those of the others follow it.
pub(crate) const BREG: u8 = 0x70;
